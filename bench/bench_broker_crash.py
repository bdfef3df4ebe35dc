"""RabbitMQ 3.10 killed and restarted every 30 seconds for five minutes (`make bench-long`).

The gateway publishes 5,000 packets a second, confirmed, all the while. The bars: every packet is
found in the broker; what is found twice has the same message-id and the same bytes, and is no more
than what was sent again; the broker confirms as many as are sent; what waits for the broker stays
within its bound, and the gateway's memory does not grow from the second restart on.

A queue takes the messages of one restart. Behind it the next queue is bound before that one is
let go, so that each message comes to one of them, or to both. A stock client reads a queue that
is let go, accepts nothing, and begins anew where the broker died meanwhile.
"""

import queue
import threading
import time
from typing import Any

from bench.broker_rig import EXCHANGE, BrokerRig, Found, broker_rig, key, missing, read, seal

RATE = 5_000
CYCLES, PERIOD_SECONDS = 10, 30.0
QUICK_CYCLES = 2
QUEUE_BYTES = 128 * 2**20
#: Bars: growth of memory from the second kill to the end; confirmed of what is sent.
GROWTH_BYTES_MAX = 16 * 2**20
CONFIRMED_SHARE_MIN = 0.999
SMOKE: dict[str, object] = {
    "QUICK_CYCLES": 1,
    "PERIOD_SECONDS": 8.0,
    "broker_rig.READER_NICENESS": 0,  # other benches run beside it
}


class Ledger:
    """The queues, and what was found in those that are done."""

    def __init__(self, rig: BrokerRig) -> None:
        self.broker = rig.broker
        self.found: list[Found] = []
        self.broken_off = 0
        self.up = threading.Event()
        self.up.set()
        self._number = 0
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.broker.queue(self._name, EXCHANGE, key())

    @property
    def _name(self) -> str:
        return f"ledger.{self._number}"

    def turn(self) -> None:
        """Declare the next queue for new messages, and have the one before read."""
        old = self._name
        self._number += 1
        self.broker.queue(self._name, EXCHANGE, key())
        self.broker.unbind(old, EXCHANGE, key())
        seal(self.broker, old)
        self._waiting.put(old)

    def _read(self) -> None:
        while (name := self._waiting.get()) is not None:
            while True:
                self.up.wait()
                found = read(self.broker, name)
                if found is not None:
                    break
                self.broken_off += 1
            self.found.append(found)
            self.broker.delete(name)

    def close(self) -> None:
        """Read what is left."""
        self.turn()
        self._waiting.put(None)
        self._reader.join()


def run(quick: bool = False) -> dict[str, Any]:
    """Restart the broker; measure what was found, what came twice, what was held."""
    cycles = QUICK_CYCLES if quick else CYCLES
    with broker_rig(QUEUE_BYTES) as rig:
        ledger = Ledger(rig)
        rig.until(lambda sample: sample.destination["state"] == "UP", "connected")
        load = threading.Thread(target=rig.rig.load.run, args=(RATE, cycles * PERIOD_SECONDS, 1000))
        load.start()
        settled = []
        began = time.monotonic()
        for cycle in range(cycles):
            time.sleep(max(0.0, began + (cycle + 0.2) * PERIOD_SECONDS - time.monotonic()))
            settled.append(rig.samples[-1].memory_bytes)
            ledger.up.clear()
            rig.broker.kill()
            rig.broker.start()
            ledger.up.set()
            rig.until(lambda sample: sample.destination["state"] == "UP", "connected again")
            rig.until(lambda sample: sample.held_bytes < RATE * 200, "caught up")
            ledger.turn()
        load.join()
        done = rig.settled().destination
        settled.append(rig.samples[-1].memory_bytes)
        ledger.close()
        sent = rig.rig.numbers_sent
        lost = missing(ledger.found, sent)
        held = max(sample.held_bytes for sample in rig.samples)
    doubled = sum(each.doubled for each in ledger.found)
    differing = sum(each.differing for each in ledger.found)
    disordered = sum(each.disordered for each in ledger.found)
    # Before the first kill nothing had ever waited.
    growth = settled[-1] - settled[1]
    problems = [
        text
        for wrong, text in (
            (lost, f"{lost} packets not found"),
            (done["dropped"] or done["abandoned"], "some were given up"),
            (done["confirmed"] < CONFIRMED_SHARE_MIN * sent, "not all confirmed"),
            (doubled > done["resent"], "twice what was not sent again"),
            (differing, f"{differing} with one message-id differ"),
            # The broker may have kept the later of two unconfirmed ones, and not the earlier.
            (disordered > done["resent"], f"{disordered} out of order that were sent once"),
            (held > QUEUE_BYTES, "more held than the bound"),
            (growth > GROWTH_BYTES_MAX, "memory grows"),
            (done["connects"] != cycles + 1, f"{done['connects']} connects"),
        )
        if wrong
    ]
    print(
        f"  RabbitMQ 3.10 killed {cycles} times, {sent:,} packets at {RATE:,} a second:"
        f" {lost} lost, {done['resent']:,} sent again, {doubled:,} of them came twice"
        f" ({differing} differ), {disordered} out of order;"
        f" {held / 1e6:.0f} MB held at most (bound {QUEUE_BYTES / 1e6:.0f}),"
        f" memory {growth / 1e6:+.1f} MB from the second kill to the end"
        f" (bar {GROWTH_BYTES_MAX / 1e6:.0f}): " + ("; ".join(problems) or "as it should be")
    )
    return {
        "cycles": cycles, "packets": sent, "lost": lost, "confirmed": done["confirmed"],
        "resent": done["resent"], "doubled": doubled, "differing": differing,
        "disordered": disordered, "held_bytes": held, "growth_bytes": growth,
        "memory_bytes": settled, "reads_broken_off": ledger.broken_off, "problems": problems,
    }  # fmt: skip
