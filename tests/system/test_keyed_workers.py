"""Workers and producers at a keyed queue, by the Python API, over real sockets."""

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from feedhandler import keyed
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.keyed.definition import Definition
from feedhandler.keyed.settings import Full, Wrong
from tests.support.durable import QueueRig, orders, running

ACCOUNT = Definition(fields=("account",))
SECONDS = 30


def body(account: int, number: int) -> bytes:
    return json.dumps({"account": account, "n": number}).encode()


def url(rig: QueueRig) -> str:
    return f"amqp://127.0.0.1:{rig.port}"


class Ledger:
    """Handler that records what handlers have done, and how many are at work."""

    def __init__(self, wanted: int) -> None:
        self.got: dict[int, list[int]] = defaultdict(list)
        self.tokens: list[str] = []
        self.busy: set[int] = set()
        self.most = self.count = 0
        self.wanted = wanted
        self.all_done = asyncio.Event()

    async def __call__(self, message: keyed.Message) -> None:
        content = json.loads(message.body)
        account = content["account"]
        assert account not in self.busy, "one at a time"
        self.busy.add(account)
        self.most = max(self.most, len(self.busy))
        await asyncio.sleep(0)
        self.busy.remove(account)
        self.got[account].append(content["n"])
        self.tokens.append(message.token)
        self.count += 1
        if self.count == self.wanted:
            self.all_done.set()


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(SECONDS):
        await event.wait()


async def test_workers_are_serial_per_key_and_parallel_across(tmp_path: Path) -> None:
    async with running(orders(tmp_path, key=ACCOUNT)) as rig:
        ledger = Ledger(400)
        async with (
            keyed.consume(url(rig), "orders", ledger, workers=8) as work,
            keyed.producer(url(rig), "orders", id="p") as put,
        ):
            for number in range(400):
                await put.put_soon(body(number % 10, number))
            await put.flush()
            await until(ledger.all_done)
        assert all(got == list(range(account, 400, 10)) for account, got in ledger.got.items())
        assert ledger.most > 1
        assert len(set(ledger.tokens)) == 400
        assert (work.done, put.accepted) == (400, 400)
        await rig.until(lambda: rig.figure("delivered") == 400, "the acknowledgements")


@pytest.mark.parametrize(("key_run", "prefetch"), [(1, 8), (16, 0), (16, 24)])
async def test_workers_keep_the_order_of_a_key_of_which_they_have_several(
    tmp_path: Path, key_run: int, prefetch: int
) -> None:
    key = Definition(fields=("account",), run=key_run)
    async with running(orders(tmp_path, key=key)) as rig:
        ledger = Ledger(200)

        async def handler(message: keyed.Message) -> None:
            number = json.loads(message.body)["n"]
            if number % 37 == 0 and not message.tries:
                raise ValueError("not yet")
            await ledger(message)

        async with keyed.producer(url(rig), "orders", id="p") as put:
            for number in range(200):
                await put.put_soon(body(number % 3, number))
        options: dict[str, Any] = {"workers": 8, "prefetch": prefetch}
        async with keyed.consume(url(rig), "orders", handler, **options) as work:
            await until(ledger.all_done)
        assert ledger.got == {account: list(range(account, 200, 3)) for account in range(3)}
        assert (work.done, work.failed) == (200, 6)
        await rig.until(lambda: rig.figure("delivered") == 200, "the acknowledgements")


async def test_workers_share_a_queue_that_has_no_keys(tmp_path: Path) -> None:
    async with running(orders(tmp_path)) as rig:
        done, most, busy = 0, 0, 0
        all_done = asyncio.Event()

        async def handler(message: keyed.Message) -> None:
            nonlocal done, most, busy
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0)
            busy -= 1
            if json.loads(message.body)["n"] % 10 == 0 and not message.tries:
                raise ValueError("not yet")
            done += 1
            if done == 100:
                all_done.set()

        async with keyed.producer(url(rig), "orders") as put:
            for number in range(100):
                await put.put_soon(body(0, number))
        options: dict[str, Any] = {"workers": 8, "prefetch": 8}
        async with keyed.consume(url(rig), "orders", handler, **options) as work:
            await until(all_done)
        assert (work.done, work.failed) == (100, 10)
        assert most > 1


async def test_a_producer_run_again_stores_nothing_twice(tmp_path: Path) -> None:
    async with running(orders(tmp_path, key=ACCOUNT)) as rig:
        for count in (30, 50):
            async with keyed.producer(url(rig), "orders", id="file", epoch=1) as put:
                for number in range(count):
                    await put.put_soon(body(1, number))
        assert (rig.figure("depth"), rig.figure("repeated")) == (50, 30)
        async with keyed.producer(url(rig), "orders", id="file", epoch=2) as newer:
            await newer.put(body(1, 99))
            async with keyed.producer(url(rig), "orders", id="file", epoch=1) as older:
                with pytest.raises(PeerError, match="is over"):
                    await older.put(body(1, 100))


async def test_what_a_handler_raises_decides_what_becomes_of_its_message(tmp_path: Path) -> None:
    tries: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def handler(message: keyed.Message) -> None:
        number = json.loads(message.body)["n"]
        tries.append((number, message.tries))
        if number == 1 and message.tries < 2:
            raise ValueError("not yet")
        if number == 2:
            raise keyed.Reject("never")
        if number == 3:
            done.set()

    configs = (
        orders(tmp_path / "a", key=ACCOUNT, dead="dead"),
        orders(tmp_path / "b", name="dead"),
    )
    async with running(*configs) as rig:
        async with keyed.producer(url(rig), "orders") as put:
            for number in (1, 2, 3):
                await put.put(body(7, number))
        async with keyed.consume(url(rig), "orders", handler, workers=4) as work:
            await until(done)
        assert tries == [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]
        assert (work.done, work.failed, work.rejected) == (2, 2, 1)
        await rig.until(lambda: rig.figure("dead") == 1, "the dead message")


def double(message: keyed.Message) -> None:
    """A handler for a process: it leaves a mark in the folder that the message names."""
    content = json.loads(message.body)
    Path(content["folder"], str(content["n"])).touch()


@pytest.mark.parametrize("processes", [False, True])
async def test_handlers_in_threads_and_in_processes(tmp_path: Path, processes: bool) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    async with running(orders(tmp_path / "q", key=ACCOUNT)) as rig:
        options: dict[str, Any] = {"workers": 2, "processes": processes}
        async with (
            keyed.consume(url(rig), "orders", double, **options),
            keyed.producer(url(rig), "orders") as put,
        ):
            for number in range(10):
                content = {"account": number % 3, "n": number, "folder": str(marks)}
                await put.put(json.dumps(content).encode())
            await rig.until(lambda: rig.figure("delivered") == 10, "the acknowledgements")
    assert len(list(marks.iterdir())) == 10


async def test_a_lost_connection_is_made_again_and_nothing_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    async with running(orders(tmp_path, key=ACCOUNT)) as rig:
        ledger = Ledger(300)
        async with (
            keyed.consume(url(rig), "orders", ledger, workers=4) as work,
            keyed.producer(url(rig), "orders", id="p", epoch=1) as put,
        ):
            for number in range(300):
                await put.put_soon(body(number % 5, number))
                if number in (80, 200):
                    for connection in list(rig.node.connections):
                        connection.end()
                    await asyncio.sleep(0)
            await put.flush()
            await rig.until(lambda: rig.figure("depth") == 0, "the end of the queue")
        assert put.connects > 1
        assert work.connects > 1
        assert sorted(set(ledger.tokens)) == sorted(set(ledger.tokens))
        for account, got in ledger.got.items():
            once = list(dict.fromkeys(got))
            assert once == list(range(account, 300, 5)), "in order; what comes again is known"


async def test_the_socket_of_a_connection_that_was_lost_is_closed(tmp_path: Path) -> None:
    async with (
        running(orders(tmp_path, key=ACCOUNT)) as rig,
        keyed.consume(url(rig), "orders", Ledger(1)) as work,
        keyed.producer(url(rig), "orders") as put,
    ):
        former = [each._connection for each in (work, put)]
        sockets = [each._sock for each in former if each is not None]
        assert all(sock is not None and sock.fileno() >= 0 for sock in sockets)
        for connection in list(rig.node.connections):
            connection.end()
        await rig.until(lambda: work.connects == put.connects == 2, "other connections")
        assert former != [work._connection, put._connection]
        assert [sock.fileno() for sock in sockets if sock is not None] == [-1, -1]


async def test_a_worker_that_is_refused_hears_why(tmp_path: Path) -> None:
    async with running(orders(tmp_path, key=ACCOUNT)) as rig:
        with pytest.raises(PeerError, match="no queue is named 'other'"):
            async with keyed.consume(url(rig), "other", Ledger(1)):
                pass
        with pytest.raises(PeerError, match="cannot connect"):
            async with keyed.producer("amqp://127.0.0.1:1", "orders"):
                pass
        async with keyed.producer(url(rig), "orders") as put:
            with pytest.raises(keyed.Refused, match="it has no account"):
                await put.put(b"{}")
            await put.put(body(1, 1))
    with pytest.raises(UsageError, match="workers = 0"):
        keyed.consume("amqp://localhost", "orders", Ledger(1), workers=0)


async def test_a_put_whose_caller_leaves_keeps_no_other_from_its_answer(tmp_path: Path) -> None:
    async with running(orders(tmp_path, key=ACCOUNT)) as rig, asyncio.timeout(SECONDS):
        async with keyed.producer(url(rig), "orders") as put:
            sent = [await put.put_soon(body(1, number)) for number in range(10)]
            sent[3].cancel()
            answers = await asyncio.gather(*sent, return_exceptions=True)
            assert [*answers[:3], *answers[4:]] == [1, 2, 3, 5, 6, 7, 8, 9, 10]
        assert rig.figure("put") == 10


async def test_a_producer_behind_a_gap_that_nothing_fills_is_over(tmp_path: Path) -> None:
    async with running(orders(tmp_path, key=ACCOUNT)) as rig, asyncio.timeout(SECONDS):
        async with keyed.producer(url(rig), "orders", id="one") as put:
            await put.put(body(1, 1))
            with pytest.raises(keyed.Refused, match="takes messages of 262144 bytes"):
                await put.put(body(1, 2) + b" " * 300_000)
            for number in (3, 4):
                with pytest.raises(PeerError, match="is over: sequence 3: something before it"):
                    await put.put(body(1, number))
        async with keyed.producer(url(rig), "orders", id="two", sequence=5) as put:
            with pytest.raises(PeerError, match="is over: sequence 5: something before it"):
                await put.put(body(1, 5))


async def test_a_producer_waits_for_room_where_the_queue_rejects(tmp_path: Path) -> None:
    key = Definition(fields=("account",), key_messages_max=1, full=Full.REJECT)
    async with (
        asyncio.timeout(SECONDS),
        running(orders(tmp_path, key=key)) as rig,
        keyed.producer(url(rig), "orders") as put,
    ):
        await put.put(body(1, 1))
        sent = [await put.put_soon(body(account, 2)) for account in (1, 2)]
        await rig.until(lambda: rig.figure("refused") > 0, "no room")
        ledger = Ledger(3)
        async with keyed.consume(url(rig), "orders", ledger):
            await until(ledger.all_done)
        assert await asyncio.gather(*sent) == [2, 3]
        assert put.refused == 0


async def test_who_asks_and_leaves_while_it_connects_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    connecting = asyncio.Event()

    async def never(*_: object) -> None:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "sock_connect", never)
    asking = loop.create_task(keyed.ask("amqp://127.0.0.1:1", "orders", operation="stat"))
    await connecting.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_queue_is_created_and_looked_at_by_the_api(tmp_path: Path) -> None:
    async with running(folder=str(tmp_path)) as rig:
        made = Definition(fields=("account",), wrong=Wrong.REJECT)
        assert await keyed.create(url(rig), "made", made)
        assert not await keyed.create(url(rig), "made", made)
        with pytest.raises(UsageError, match="created with fields"):
            await keyed.create(url(rig), "made", Definition(fields=("symbol",)))
        async with keyed.producer(url(rig), "made") as put:
            await put.put(body(1, 1))
        reply, figures = await keyed.ask(url(rig), "made", operation="stat")
        assert (reply["answer"], figures["depth"], figures["keys"]) == ("stat", 1, 1)


async def test_without_reconnect_the_node_may_end_work_without_a_reason(tmp_path: Path) -> None:
    async with running(orders(tmp_path, key=ACCOUNT)) as rig:
        async with keyed.consume(url(rig), "orders", Ledger(1), reconnect=False) as work:
            (connection,) = rig.node.connections
            connection.engine.close()
            connection.work()
            async with asyncio.timeout(SECONDS):
                with pytest.raises(PeerError, match="the node closed the connection"):
                    await work.wait()
        assert work.connects == 1
