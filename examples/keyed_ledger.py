"""A ledger behind a keyed queue: transfers by many workers, each once, in order for each account.

    python examples/keyed_ledger.py --transfers 2000 --workers 8 --crashes 3

Messages are {"src_id", "dst_id", "type", "amount"}, amounts in decimals. A transfer changes two
accounts, so the queue's rule is `any`: messages that share an account are worked on one after the
other, in the order in which they came, all others side by side. A transfer that its account cannot
pay is refused, so the order of an account's transfers matters. The ledger is a SQLite file: each
transfer and its token are one transaction, so that what comes again is known and not done twice.

Now and then the gateway is killed (kill -9) and started anew; producer and workers come back by
themselves. At the end the balances are compared with those of one worker without any queue: they
must be the same, to the last digit.
"""

import argparse
import asyncio
import json
import random
import signal
import sqlite3
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

from local_gateway import LocalGateway

from feedhandler import keyed
from feedhandler.keyed.settings import Rule
from feedhandler.ports import free_ports

ACCOUNTS = 40
OPENING = Decimal("100.00")
Transfer = dict[str, str]


def transfers(count: int, seed: int) -> list[Transfer]:
    """Return the transfers to be made, drawn from a seed."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        src, dst = draw.sample(range(ACCOUNTS), 2)
        amount = Decimal(draw.randrange(1, 4000)) / 100
        made.append({"src_id": str(src), "dst_id": str(dst), "type": "transfer",
                     "amount": str(amount)})  # fmt: skip
    return made


class Ledger:
    """Balances in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("create table balances (account text primary key, amount text)")
        self._database.execute("create table done (token text primary key)")
        self._database.executemany(
            "insert into balances values (?, ?)",
            [(str(account), str(OPENING)) for account in range(ACCOUNTS)],
        )
        self.refused = self.again = 0

    def balance(self, account: str) -> Decimal:
        """Return an account's balance."""
        row = self._database.execute("select amount from balances where account = ?", (account,))
        return Decimal(row.fetchone()[0])

    def make(self, transfer: Transfer, token: str) -> None:
        """Make a transfer, unless that was done before, or its account cannot pay."""
        self._database.execute("begin immediate")
        known = self._database.execute("insert or ignore into done values (?)", (token,))
        if not known.rowcount:
            self.again += 1
        else:
            src, dst, amount = transfer["src_id"], transfer["dst_id"], Decimal(transfer["amount"])
            if self.balance(src) < amount:
                self.refused += 1
            else:
                change = "update balances set amount = ? where account = ?"
                self._database.execute(change, (str(self.balance(src) - amount), src))
                self._database.execute(change, (str(self.balance(dst) + amount), dst))
        self._database.execute("commit")

    def balances(self) -> dict[str, Decimal]:
        """Return the balance of every account."""
        return {str(account): self.balance(str(account)) for account in range(ACCOUNTS)}


async def play(
    gateway: LocalGateway, made: list[Transfer], ledger: Ledger, workers: int, crashes: int
) -> None:
    """Put the transfers, work on them, and kill the gateway now and then."""
    busy: set[str] = set()

    async def handler(message: keyed.Message) -> None:
        transfer = json.loads(message.body)
        accounts = {transfer["src_id"], transfer["dst_id"]}
        assert not accounts & busy, "one at a time of each account"
        busy.update(accounts)
        await asyncio.sleep(0)
        busy.difference_update(accounts)
        ledger.make(transfer, message.token)

    async with (
        keyed.consume(gateway.url, "ledger", handler, workers=workers),
        keyed.producer(gateway.url, "ledger", id="bank", epoch=1) as put,
    ):
        deaths = {len(made) * (each + 1) // (crashes + 1) for each in range(crashes)}
        for number, transfer in enumerate(made):
            if number in deaths:
                await asyncio.to_thread(gateway.end, signal.SIGKILL)
                await asyncio.to_thread(gateway.start)
            await put.put_soon(json.dumps(transfer).encode())
        await put.flush()
        while (await keyed.ask(gateway.url, "ledger", operation="stat"))[1]["depth"]:
            await asyncio.sleep(0.05)


def main() -> int:
    """Run it; 0 where both ledgers are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transfers", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--crashes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, help="the gateway's; else one that is free")
    options = parser.parse_args()
    made = transfers(options.transfers, options.seed)
    definition = keyed.Definition(fields=("src_id", "dst_id"), rule=Rule.ANY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        serial, side_by_side = Ledger(folder / "serial.db"), Ledger(folder / "queue.db")
        for number, transfer in enumerate(made):
            serial.make(transfer, str(number))
        gateway = LocalGateway(folder, options.port or free_ports(1)[0], "ledger", key=definition)
        gateway.start()
        try:
            asyncio.run(play(gateway, made, side_by_side, options.workers, options.crashes))
        finally:
            gateway.end(signal.SIGTERM)
        same = serial.balances() == side_by_side.balances()
        total = sum(side_by_side.balances().values())
        print(
            f"{len(made):,} transfers by {options.workers} workers over {options.crashes} crashes:"
            f" {side_by_side.refused:,} refused, {side_by_side.again:,} known when they came again;"
            f" {total} in all; {'the same as' if same else 'NOT as'} by one"
        )
    return 0 if same and side_by_side.refused == serial.refused else 1


if __name__ == "__main__":
    sys.exit(main())
