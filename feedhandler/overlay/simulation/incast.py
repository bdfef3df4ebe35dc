"""Incast: the loss of reports that all receivers send to one node at the same time.

The node's socket holds `ROOM` datagrams, and the node takes one in `SERVICE_US`. Reports of all
receivers are sent at the same instant and spread by the network's noise alone. The source lost more
than 20 % of 100 receivers' reports ("Jasper", section 6); up a tree no node gets more at once than
it has children.
"""

import heapq

import numpy

#: A queue that loses about what the source lost: reports come within some 30 us.
ROOM = 60
SERVICE_US = 2.5
SPREAD_US = 12.0


def lost_share(senders: int, rounds: int, seed: int) -> float:
    """Return the share of datagrams that find the queue full, of `senders` sent at one instant."""
    rng = numpy.random.default_rng((seed, 13))
    lost = 0
    for _ in range(rounds):
        waiting: list[float] = []  # when each one in the queue will have been taken
        free_at = 0.0
        for at in numpy.sort(rng.exponential(SPREAD_US, senders)).tolist():
            while waiting and waiting[0] <= at:
                heapq.heappop(waiting)
            if len(waiting) >= ROOM:
                lost += 1
                continue
            free_at = max(free_at, at) + SERVICE_US
            heapq.heappush(waiting, free_at)
    return lost / (senders * rounds)
