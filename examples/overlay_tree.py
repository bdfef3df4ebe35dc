"""A tree of the overlay multicast in one process: what each receiver has, and when.

    python examples/overlay_tree.py

Two proxies that help each other out, four receivers, sockets on loopback, a thread a member. Ten
messages go down the tree; then one proxy ends, and ten more. Every receiver has all twenty.
"""

import os
import threading
import time

from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.release import Deliver
from feedhandler.overlay.running import Loop, open_socket
from feedhandler.overlay.topology import Topology, make_topology
from feedhandler.overlay.tree import Shape

PORT = int(os.environ.get("PORT", "17000"))
PATIENCE_S = 30.0


def begin(topology: Topology, name: str, had: dict[str, list[int]]) -> threading.Event:
    """Start a member in a thread of its own; the event ends it."""
    me, ended = topology.member(name), threading.Event()
    sock = open_socket(me)

    def output(events: object, _: int) -> None:
        had[name] += [each.id for each in events if isinstance(each, Deliver)]  # type: ignore[attr-defined]

    if me.role == "proxy":
        loop = Loop(Proxy(topology, name, time.time_ns()), sock)
    else:
        had[name] = []
        loop = Loop(Receiver(topology, name, time.time_ns()), sock, output)

    def work() -> None:
        with sock:
            loop.run(ended.is_set)

    threading.Thread(target=work, daemon=True).start()
    return ended


def main() -> None:
    """Send, take a proxy away, send on, and print what arrived."""
    shape = Shape(receivers=4, depth=2, fan_out=2, hedging=1)
    addresses = [("127.0.0.1", PORT + n) for n in range(7)]
    topology = make_topology(shape, 1, addresses, (os.urandom(32) for _ in range(8)))
    had: dict[str, list[int]] = {}
    ended = {each.name: begin(topology, each.name, had) for each in topology.members[1:]}
    sender = Sender(topology, time.time_ns())
    with open_socket(topology.members[0]) as sock:
        loop = Loop(sender, sock)

        def send(count: int) -> None:
            for _ in range(count):
                loop.send(sender.send(b"a message", time.time_ns()))
            deadline = time.monotonic() + PATIENCE_S
            while any(len(each) < sender.last_id for each in had.values()):
                assert time.monotonic() < deadline, f"never came: {had}"
                loop.turn(1_000_000)

        send(10)
        ended["proxy-0-0"].set()
        send(10)
    for name, ids in sorted(had.items()):
        print(f"{name}: {len(ids)} messages, {ids[0]} to {ids[-1]}, in order: {ids == sorted(ids)}")


if __name__ == "__main__":
    main()
