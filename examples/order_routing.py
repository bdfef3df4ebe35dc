"""Order routing through the gateway's durable queue: FIX orders in over AMQP, routed, cancelled,
through crashes.

    python examples/order_routing.py --orders 2000 --crashes 3

A gateway process has the durable queue `orders`. Traders put FIX orders for two simulated exchanges
into it, each with its ClOrdID as message-id, and go on once an order is accepted: then it is on the
disk. Now and then one is cancelled, while the router takes orders out and sends them on: the queue
answers whether the cancel came in time, or is to be forwarded to the exchange, where it races with
the fill. Now and then the gateway is killed (kill -9). The next one recovers the queue; traders put
again what they got no answer for (marked PossResend, 97=Y), the router sends what may have been
sent before as such (PossDupFlag, 43=Y). At the end the books are compared:

    every accepted order is at its exchange, unless its trader asked to cancel it
    no order that was cancelled in the queue ever reached an exchange; where a gateway died since it
      was put, the router may have sent it before: then its exchange is asked to cancel it as well
    an exchange gets an order twice only with 43=Y or 97=Y, and takes it once

The folder is a temporary one unless `--folder` names one.
"""

import argparse
import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import proton
from local_gateway import LocalGateway
from proton import Delivery, Message
from proton.utils import BlockingConnection, SyncRequestResponse

from feedhandler.ports import free_ports

SOH = "\x01"
MARKETS = {"CHA": "NYSE", "0728": "HKEX"}
TRADERS = 4
QUEUE = "queue.orders"
PATIENCE_S = 60.0
#: An exchange takes a moment for an order: meanwhile others wait in the queue.
ORDER_S = 0.002
#: What a client sees of a gateway that is gone: all of it means connect again.
GONE = (proton.ProtonException, OSError)


def fix(kind: str, number: str, **fields: object) -> bytes:
    """Return a FIX message with body length and checksum; `fields` are tags as `t55=...`."""
    body = "".join(
        f"{tag}={value}{SOH}"
        for tag, value in (("35", kind), ("11", number), *((k[1:], v) for k, v in fields.items()))
    )
    text = f"8=FIX.4.3{SOH}9={len(body)}{SOH}{body}"
    return f"{text}10={sum(text.encode()) % 256:03}{SOH}".encode()


def tags(message: bytes) -> dict[str, str]:
    """Return a FIX message's fields."""
    return dict(part.split("=", 1) for part in message.decode().split(SOH) if part)


class Gateway(LocalGateway):
    """The gateway's process, with the durable queue `orders`."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port, "orders")

    def connect(self) -> BlockingConnection:
        """Connect once the gateway accepts; return the connection."""
        while self.up.wait(PATIENCE_S):
            with contextlib.suppress(*GONE):
                return BlockingConnection(f"127.0.0.1:{self.port}", timeout=PATIENCE_S)
        raise TimeoutError("there is no gateway")


class Exchange:
    """A simulated exchange: orders rest in its book until they are filled or cancelled."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._lock = threading.Lock()
        self.received: Counter[str] = Counter()
        self.open: set[str] = set()
        self.filled: set[str] = set()
        self.cancelled: set[str] = set()
        self.wrong: list[str] = []

    def order(self, message: bytes) -> None:
        """Send a NewOrderSingle (35=D)."""
        fields = tags(message)
        number = fields["11"]
        time.sleep(ORDER_S)
        with self._lock:
            self.received[number] += 1
            if self.received[number] > 1:
                if "Y" not in (fields.get("43"), fields.get("97")):
                    self.wrong.append(f"{number} was sent twice as a new order")
                return
            self.open.add(number)
            if self._draw.random() < 0.5:
                self._fill(self._draw.choice(sorted(self.open)))

    def _fill(self, number: str) -> None:
        self.open.discard(number)
        self.filled.add(number)

    def cancel(self, message: bytes) -> bool:
        """Send an OrderCancelRequest (35=F); return whether the order was still open."""
        number = tags(message)["41"]
        with self._lock:
            if number not in self.open:
                return False
            self.open.discard(number)
            self.cancelled.add(number)
            return True


class Desk:
    """Everything but the gateway: traders, router, exchanges, and what each has received."""

    def __init__(self, gateway: Gateway, orders: int, seed: int) -> None:
        self.gateway = gateway
        draw = random.Random(seed)
        self.exchanges = {name: Exchange(random.Random(seed)) for name in MARKETS.values()}
        self.numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(1, orders + 1):
            self.numbers.put(number)
        self.accepted: set[str] = set()
        self.asked: set[str] = set()
        self.cancelled: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.resent = self.again = 0
        self.trading = TRADERS
        self.failures: list[BaseException] = []
        self._draws = [random.Random(draw.random()) for _ in range(TRADERS)]
        self._threads = [
            threading.Thread(target=self._guarded, args=about, daemon=True)
            for about in [(self._route,), *((self._trade, each) for each in self._draws)]
        ]

    def start(self) -> None:
        """Open for business."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Return when every order is placed and routed."""
        for thread in self._threads:
            thread.join()

    @property
    def busy(self) -> bool:
        """Whether any party still works."""
        return not self.failures and any(thread.is_alive() for thread in self._threads)

    def _guarded(self, task: Callable[..., None], *about: Any) -> None:
        try:
            task(*about)
        except BaseException as error:
            self.failures.append(error)

    # -- traders ----------------------------------------------------------------------------

    def _trade(self, draw: random.Random) -> None:
        """Place orders until there are none; cancel one in five a moment later."""
        trader = Trader(self.gateway)
        while True:
            try:
                number = f"ORD{self.numbers.get_nowait()}"
            except queue.Empty:
                break
            market = draw.choice(list(MARKETS))
            gateways = trader.gateways
            self.resent += trader.place(number, market)
            self.accepted.add(number)
            if draw.random() < 0.2:
                self.asked.add(number)
                self._cancel(trader, number, market, gateways)
        trader.close()
        self.trading -= 1

    def _cancel(self, trader: "Trader", number: str, market: str, gateways: int) -> None:
        """Cancel an order: in the queue, or else at its exchange. `gateways` is how many the trader
        had met before it put the order."""
        answer = trader.cancel(number)
        exchange = self.exchanges[MARKETS[market]]
        request = fix("F", f"C{number}", t41=number, t55=market, t54=1)
        if answer == "delivered":
            answer = "forwarded" if exchange.cancel(request) else "filled"
        elif answer == "cancelled" and trader.gateways > gateways:
            # The router may have had it from the gateway that died, and have sent it.
            exchange.cancel(request)
            answer = "cancelled and forwarded"
        elif answer == "cancelled":
            self.cancelled.add(number)
        self.answers[answer] += 1

    # -- router -----------------------------------------------------------------------------

    def _route(self) -> None:
        """Send what the queue gives to its exchange; accept it when it is there."""
        while True:
            connection = self.gateway.connect()
            try:
                if self._route_some(connection):
                    connection.close()
                    return
            except GONE:
                pass

    def _route_some(self, connection: BlockingConnection) -> bool:
        """Route until nothing more can come; whether that was the end."""
        receiver = connection.create_receiver(QUEUE, credit=2)
        desk = SyncRequestResponse(connection, f"{QUEUE}/$management")
        while True:
            last = self.trading == 0
            if last or receiver.fetcher.has_message:
                left = desk.call(Message(properties={"operation": "stat"})).body["depth"]
                if last and left == 0:
                    return True
            try:
                message = receiver.receive(timeout=0.2)
            except proton.Timeout:
                continue
            order = bytes(message.body)
            if not message.first_acquirer:
                self.again += 1
                fields = tags(order)
                order = fix("D", fields["11"], t43="Y", t55=fields["55"], t54=1, t38=100, t40=1)
            self.exchanges[MARKETS[tags(order)["55"]]].order(order)
            receiver.accept()


class Trader:
    """One trader's connection to the queue: whatever happens, an order is placed in the end."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: How many gateways it has met: one more each time its connection was lost.
        self.gateways = 0
        self._connect()

    def _connect(self) -> None:
        self.gateways += 1
        while True:
            try:
                self._connection = self._gateway.connect()
                self._sender = self._connection.create_sender(QUEUE)
                self._desk = SyncRequestResponse(self._connection, f"{QUEUE}/$management")
                return
            except GONE:
                pass

    def place(self, number: str, market: str) -> int:
        """Put an order until it is accepted; how often again."""
        tries = 0
        while True:
            order = fix(
                "D", number, t55=market, t54=1, t38=100, t40=1, **({"t97": "Y"} if tries else {})
            )
            try:
                outcome = self._sender.send(Message(id=number, body=order, durable=True))
            except GONE:
                tries += 1
                self._connect()
                continue
            assert outcome.remote_state == Delivery.ACCEPTED
            return tries

    def cancel(self, number: str) -> str:
        """Ask the queue to cancel an order; return its outcome where the router has it."""
        request = {"operation": "cancel", "message-id": number, "wait": True}
        while True:
            try:
                return str(self._desk.call(Message(properties=request)).properties["answer"])
            except GONE:
                self._connect()

    def close(self) -> None:
        """Go home."""
        with contextlib.suppress(*GONE):
            self._connection.close()


def check(desk: Desk) -> list[str]:
    """Compare the books: what is wrong."""
    wrong = [text for exchange in desk.exchanges.values() for text in exchange.wrong]
    received: set[str] = set()
    for exchange in desk.exchanges.values():
        received |= exchange.received.keys()
    wrong += [f"{order} is lost" for order in desk.accepted - desk.asked - received]
    wrong += [f"{order} was cancelled and sent" for order in desk.cancelled & received]
    return wrong


def report(desk: Desk, recovered: list[str]) -> None:
    """Print what happened."""
    filled = sum(len(exchange.filled) for exchange in desk.exchanges.values())
    received = sum(len(exchange.received) for exchange in desk.exchanges.values())
    cancels = ", ".join(f"{count} {answer}" for answer, count in sorted(desk.answers.items()))
    print(
        f"{len(desk.accepted):,} orders accepted over {len(recovered) + 1} gateways; cancels:"
        f" {cancels}; {received:,} orders at exchanges, {filled:,} of them filled;"
        f" {desk.resent} put again without an answer, {desk.again} routed as possible duplicates;"
        f" pending when killed: {', '.join(recovered) or '-'}"
    )


def main() -> int:
    """Trade through the crashes, then compare the books; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--crashes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--port", type=int, help="the gateway's; else one that is free")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        gateway = Gateway(folder, options.port or free_ports(1)[0])
        return trade(gateway, folder, options.orders, options.crashes, options.seed)


def trade(gateway: Gateway, folder: Path, orders: int, crashes: int, seed: int) -> int:
    """Trade orders through so many crashes; return the exit code."""
    draw = random.Random(seed)
    desk = Desk(gateway, orders, seed)
    gateway.start()
    recovered = []
    each = max(orders // (crashes + 1), 1)
    desk.start()
    try:
        for crash in range(crashes):
            enough = crash * each + draw.randrange(1, each + 1)
            while desk.busy and len(desk.accepted) < enough:
                time.sleep(0.002)
            gateway.end(signal.SIGKILL)
            recovered.append(pending(folder))
            gateway.start()
        while desk.busy:
            time.sleep(0.02)
    finally:
        gateway.end(signal.SIGTERM)
    if desk.failures:
        raise desk.failures[0]
    report(desk, recovered)
    wrong = check(desk)
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


def pending(folder: Path) -> str:
    """Return how many orders a killed gateway has left, by `feedhandler queue stat`."""
    words = [sys.executable, "-m", "feedhandler", "queue", "stat", str(folder / "queue")]
    result = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ})
    return next((x.split()[1] for x in result.stdout.splitlines() if x.startswith("pending")), "?")


if __name__ == "__main__":
    sys.exit(main())
