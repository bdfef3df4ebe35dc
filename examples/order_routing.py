"""Order routing with the persistent queue: FIX orders queued, routed, cancelled, through crashes.

    python examples/order_routing.py --orders 2000 --crashes 3

A router takes orders for two simulated exchanges from many traders at once, acknowledges each once
it is on the disk, and sends it on; traders cancel some of their orders while that goes on. Now and
then the router's process is killed. The next one recovers the queue, sends what was not delivered
(marked as possibly sent before, PossDupFlag 43=Y), and goes on. At the end the books are compared:

    every acknowledged order is at its exchange, unless its trader asked to cancel it
    no order that was cancelled while it was pending ever reached an exchange
    an order is at its exchange twice only with PossDupFlag, and only around a crash

What a trader was told, and what an exchange received, are lines in files, as they would be in other
processes. The folder is a temporary one unless `--folder` names one.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from feedhandler.journal import CancelAnswer, Item, PersistentQueue, QueueSettings

SOH = "\x01"
EXCHANGES = {"CHA": "NYSE", "0728": "HKEX"}
TRADERS = 16
SETTINGS = QueueSettings(block_bytes=1 << 20, journal_bytes=64 << 10, checkpoint_bytes=1 << 20)


def new_order(number: str, symbol: str, shares: int) -> bytes:
    """NewOrderSingle (35=D), a market order, with body length and checksum."""
    fields = (("35", "D"), ("11", number), ("55", symbol), ("54", "1"), ("38", shares), ("40", "1"))
    body = "".join(f"{tag}={value}{SOH}" for tag, value in fields)
    text = f"8=FIX.4.3{SOH}9={len(body)}{SOH}{body}"
    return f"{text}10={sum(text.encode()) % 256:03}{SOH}".encode()


def field(message: bytes, tag: str) -> str:
    """One field of a FIX message."""
    (value,) = (part[len(tag) + 1 :] for part in message.decode().split(SOH)
                if part.startswith(tag + "="))  # fmt: skip
    return value


class Ledgers:
    """What was said to traders and what exchanges received: files that survive the router."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, name: str, *words: object) -> None:
        """Add a line."""
        with open(self.folder / f"{name}.txt", "a", encoding="utf-8") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self, name: str) -> list[list[str]]:
        """Every whole line."""
        path = self.folder / f"{name}.txt"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [line.split() for line in text.split("\n")[:-1]]


class Router:
    """One life of the router: traders in, exchanges out."""

    def __init__(self, queue: PersistentQueue, ledgers: Ledgers, first: int, last: int) -> None:
        self.queue = queue
        self.ledgers = ledgers
        self.numbers = iter(range(first, last + 1))
        self.recovered = queue.engine.store.visible_end

    async def trade(self, draw: random.Random) -> None:
        """A trader: places orders, cancels one in five a moment later."""
        for number in self.numbers:
            order = new_order(f"ORD{number}", draw.choice(list(EXCHANGES)), 100)
            placed = await self.queue.put(order)
            self.ledgers.note("acknowledged", f"ORD{number}", placed)
            if draw.random() < 0.2:
                for _ in range(draw.randrange(4)):
                    await asyncio.sleep(0)
                self.ledgers.note("cancelling", f"ORD{number}")
                answer = await self.queue.cancel(placed)
                if answer is CancelAnswer.CANCELLED:
                    self.ledgers.note("cancelled", f"ORD{number}")

    async def route(self) -> None:
        """Send what is pending to its exchange, for ever."""
        while True:
            items = await self.queue.get_many(8)
            for item in items:
                self.send(item)
            await self.queue.delivered(*(item.id for item in items))

    def send(self, item: Item) -> None:
        """Hand an order to its exchange; one that was there before a crash may have been sent."""
        possible = "43=Y" if item.id < self.recovered else "43=N"
        exchange = EXCHANGES[field(item.content, "55")]
        self.ledgers.note(exchange, field(item.content, "11"), possible)

    def forward(self, number: int) -> None:
        """A cancel that came too late here: the exchange is asked (OrderCancelRequest, 35=F)."""
        self.ledgers.note("forwarded", number)


async def live(folder: Path, last: int, crash_after: int, seed: int) -> None:
    """One life: until all orders are placed and routed, or until it is killed."""
    ledgers = Ledgers(folder)
    draw = random.Random(seed)
    done = [int(line[1].removeprefix("ORD")) for line in ledgers.lines("placing")]
    first = max(done, default=0) + 1
    async with PersistentQueue.open(folder / "queue", SETTINGS) as queue:
        router = Router(queue, ledgers, first, last)
        queue.engine.on_forward = router.forward
        ledgers.note("lives", f"recovered={queue.statistics()['pending']}")
        routes = [asyncio.create_task(router.route()) for _ in range(2)]
        traders = [router.trade(random.Random(draw.random())) for _ in range(TRADERS)]
        if crash_after:
            routes.append(asyncio.create_task(_die(ledgers, router, crash_after)))
        router.numbers = _noted(router.numbers, ledgers)
        await asyncio.gather(*traders)
        while queue.statistics()["pending"]:
            await asyncio.sleep(0.001)
        for task in routes:
            task.cancel()


def _noted(numbers: Iterator[int], ledgers: Ledgers) -> Iterator[int]:
    """Numbers of orders, each noted before it is used, so that no life uses it again."""
    for number in numbers:
        ledgers.note("placing", "order", f"ORD{number}")
        yield number


async def _die(ledgers: Ledgers, router: Router, after: int) -> None:
    """Be killed, without a word, once so many orders are acknowledged in this life."""
    before = len(ledgers.lines("acknowledged"))
    while len(ledgers.lines("acknowledged")) - before < after:
        await asyncio.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


def check(ledgers: Ledgers) -> list[str]:
    """Compare the books: what is wrong."""
    acknowledged = {line[0] for line in ledgers.lines("acknowledged")}
    cancelled = {line[0] for line in ledgers.lines("cancelled")}
    # A router that was killed between cancelling and saying so has cancelled all the same.
    asked = {line[0] for line in ledgers.lines("cancelling")}
    received: Counter[str] = Counter()
    doubtful = set()
    for exchange in EXCHANGES.values():
        for line in ledgers.lines(exchange):
            received[line[0]] += 1
            if line[1] == "43=Y":
                doubtful.add(line[0])
    wrong = [f"{order} is lost" for order in acknowledged - asked - received.keys()]
    wrong += [f"{order} was cancelled and sent" for order in cancelled & received.keys()]
    wrong += [
        f"{order} was sent {count} times"
        for order, count in received.items()
        if count > 1 and order not in doubtful
    ]
    lives = ledgers.lines("lives")
    print(
        f"{len(acknowledged):,} orders acknowledged in {len(lives)} lives,"
        f" {len(cancelled):,} cancelled in time, {len(ledgers.lines('forwarded')):,} cancels"
        f" forwarded, {len(received):,} orders at exchanges,"
        f" {sum(received.values()) - len(received)} of them sent again after a crash;"
        f" recovered: {', '.join(line[0].removeprefix('recovered=') for line in lives[1:]) or '-'}"
    )
    return wrong


def main() -> int:
    """Run the lives one after the other, then compare the books; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--crashes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--life", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.life is not None:
        asyncio.run(live(options.folder, options.orders, options.life, options.seed))
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        draw = random.Random(options.seed)
        each = max(options.orders // (options.crashes + 1), 1)
        for number in range(options.crashes + 1):
            crash = draw.randrange(1, each) if number < options.crashes and each > 1 else 0
            words = [sys.executable, __file__, "--folder", folder, "--orders", options.orders,
                     "--life", crash, "--seed", options.seed + number]  # fmt: skip
            code = subprocess.run([str(word) for word in words], check=False).returncode
            if code not in (0, -signal.SIGKILL):
                return code
        wrong = check(Ledgers(folder))
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
