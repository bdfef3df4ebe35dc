"""Durable queues when something fails: a disk that fails, a disk that is full, rights, days."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import proton
import pytest

from feedhandler.amqp.durable.queues import DurableQueues
from feedhandler.codecs.errors import UsageError
from feedhandler.config.amqp import UserConfig
from feedhandler.keyed.definition import Definition
from tests.support.durable import ACCEPTED, QueueClient, QueueRig, of_account, orders, running
from tests.support.node import in_thread
from tests.support.security import SECRET, cheap_hash, gate
from tests.support.simulated_disk import Fault, SimulatedDisk


async def test_a_disk_that_fails_stops_the_queue_and_nothing_else(tmp_path: Path) -> None:
    disk = SimulatedDisk()

    def talk(client: QueueClient) -> None:
        putting, link = client.sender(), client.taker(credit=5)
        client.put_numbers(putting, 1, 2)
        client.wait_for(link, 2)
        disk.fault = Fault(disk.calls + 1, for_good=True)
        lost = client.send(putting, proton.Message(body=3))
        for each in (putting, link):
            condition = client.refusal(each)
            assert condition.name == "amqp:internal-error"
            assert "queue orders has stopped" in condition.description
        assert lost.remote_state == 0
        for other in (client.sender(), client.taker(), client.sender("queue.orders/$management")):
            assert client.refusal(other).name == "amqp:internal-error"
        client.sync()

    async with running(orders(tmp_path), disk={"files": disk}) as rig:
        await in_thread(talk, await rig.client())
        assert rig.figure("state") == "stopped"
        assert "its disk failed" in rig.figure("reason")
        client = await rig.client()
        market = await in_thread(client.receiver, "euronext.104", 1000, settled=True)
        client._receive = lambda delivery: (  # the feed's messages, undecoded
            client.messages.append((delivery.link.name, None, delivery)),
            delivery.link.advance(),
        )
        await in_thread(client.sync)
        await rig.stream(1, 20)
        enough = lambda: len(client.of(market)) > 20  # noqa: E731
        await in_thread(client.pump, enough, "the feed")


async def test_a_read_that_fails_stops_the_queue(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    async with running(orders(tmp_path), disk={"files": disk}) as rig:
        client = await rig.client()
        await in_thread(client.put_numbers, await in_thread(client.sender), 1, 2)
        rig.orders.intake.recent.clear()

        def fail(*_: Any) -> bytes:
            raise OSError(5, "Input/output error")

        disk.pread = fail  # type: ignore[method-assign]
        link = await in_thread(client.taker)
        assert (await in_thread(client.refusal, link)).name == "amqp:internal-error"
        assert "Input/output error" in rig.figure("reason")


@pytest.mark.parametrize("key", [None, Definition(fields=("account",))], ids=["plain", "keyed"])
async def test_a_dead_message_that_cannot_be_read_stops_its_queue_and_nothing_else(
    tmp_path: Path, key: Definition | None
) -> None:
    disk = SimulatedDisk()
    stray: list[dict[str, Any]] = []
    configs = (
        orders(tmp_path / "orders", key=key, dead="dead"),
        orders(tmp_path / "dead", name="dead"),
    )
    async with running(*configs, disk={"files": disk}) as rig:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context))
        client = await rig.client()
        await in_thread(client.put, await in_thread(client.sender), of_account("a", 1))
        link = await in_thread(client.taker)
        await in_thread(client.wait_for, link, 1)

        def fail(*_: Any) -> bytes:
            raise OSError(5, "Input/output error")

        disk.pread = fail  # type: ignore[method-assign]
        client.of(link)[0][1].update(proton.Delivery.REJECTED)
        client.of(link)[0][1].settle()
        assert (await in_thread(client.refusal, link)).name == "amqp:internal-error"
        assert "Input/output error" in rig.figure("reason")
        assert not rig.queues.all["dead"].fault
        gc.collect()
        assert not stray


async def test_bytes_that_do_not_verify_are_left_out(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    async with running(orders(tmp_path), disk={"files": disk}) as rig:
        client = await rig.client()
        putting = await in_thread(client.sender)
        for number in (1, 2, 3):
            await in_thread(client.put_numbers, putting, number)
        rig.orders.intake.recent.clear()
        file = disk._files[rig.orders.store.engine._store.live[0].path]
        file.content[file.content.index(b"m2")] ^= 1
        link = await in_thread(client.taker)
        assert await in_thread(client.wait_for, link, 2) == [1, 3]
        assert rig.figure("damaged") == 1


async def test_the_loop_goes_on_while_the_disk_takes_its_time(tmp_path: Path) -> None:
    released, entered = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        if name == "sync" and slow_now:
            entered.set()
            released.wait(20)

    slow_now: list[int] = []
    disk = SimulatedDisk(slow)
    async with running(orders(tmp_path), disk={"files": disk}) as rig:
        client = await rig.client()
        putting = await in_thread(client.sender)
        slow_now.append(1)
        sent = await in_thread(client.send, putting, proton.Message(body=1))
        await in_thread(client.sync)  # the node answers, and has read the message
        assert await asyncio.to_thread(entered.wait, 20)
        assert not sent.settled
        other = await rig.client()
        await in_thread(other.new_session)
        await in_thread(other.sync)
        assert not sent.settled
        slow_now.clear()
        released.set()
        await in_thread(client.pump, lambda: sent.settled, "the outcome")
        assert sent.remote_state == ACCEPTED


async def test_a_queue_that_is_full_makes_producers_wait_not_fail(tmp_path: Path) -> None:
    body = b"x" * 60_000

    def fill(client: QueueClient, link: Any, rig: QueueRig) -> list[Any]:
        sent: list[Any] = []
        while True:
            client.pump(lambda: link.credit > 0 or rig.figure("stalls") > 0, "credit, or the end")
            if not link.credit:
                return sent
            sent.append(client.send(link, proton.Message(body=body)))

    config = orders(tmp_path, blocks_max=2, waiting_bytes_max=1 << 17, credit=4)
    async with running(config) as rig:
        client, other = await rig.client(), await rig.client()
        await in_thread(other.new_session)
        await in_thread(other.sync)  # logged in, however long the queue takes to be full
        link = await in_thread(client.sender)
        sent = await in_thread(fill, client, link, rig)
        accepted = [each for each in sent if each.settled]
        assert 10 < len(accepted) < len(sent)
        assert all(each.remote_state == ACCEPTED for each in accepted)
        taker = await in_thread(other.taker, credit=1000)
        for _ in range(100):
            await in_thread(other.wait_for, taker, 1)
            await in_thread(other.settle_all, taker)
            await in_thread(client.sync)
            if all(each.settled for each in sent):
                break
        assert all(each.remote_state == ACCEPTED for each in sent)
        assert rig.figure("full") == 0
        assert rig.figure("stalls") > 0


async def test_users_have_what_they_were_given(tmp_path: Path) -> None:
    users = (
        UserConfig(name="trader", password=cheap_hash(SECRET), services=(), put=("orders",)),
        UserConfig(name="router", password=cheap_hash(SECRET), services=(), get=("*",)),
        UserConfig(name="clerk", password=cheap_hash(SECRET), services=(), cancel=("orders",)),
        UserConfig(name="nobody", password=cheap_hash(SECRET), services=("euronext.104",)),
    )
    door = gate(*users, plain_without_tls=True, anonymous=False)

    def refused(client: QueueClient, *links: Any) -> None:
        for link in links:
            condition = client.refusal(link)
            assert condition.name == "amqp:unauthorized-access"
            assert "may not" in condition.description

    def trader(client: QueueClient) -> None:
        client.put_numbers(client.sender(), 1, 2)
        assert client.declare(client.coordinator())
        refused(client, client.taker())
        assert client.ask(operation="stat")[0]["status-code"] == 200
        assert client.ask(operation="cancel", id=1)[0]["status-code"] == 403

    def clerk(client: QueueClient) -> None:
        refused(client, client.sender(), client.taker(), client.coordinator())
        assert client.ask(operation="cancel", id=1)[0]["answer"] == "cancelled"

    def router(client: QueueClient) -> None:
        refused(client, client.sender())
        assert client.declare(client.coordinator())
        assert client.wait_for(client.taker(), 1) == [2]

    def nobody(client: QueueClient) -> None:
        refused(client, client.sender(), client.taker(), client.sender("queue.orders/$management"))

    async with running(orders(tmp_path), gate=door) as rig:
        for talk in (trader, clerk, router, nobody):
            who = {"user": talk.__name__, "password": SECRET}
            await in_thread(talk, await rig.client(**who))


async def test_what_is_left_of_a_day_expires_also_with_consumers(tmp_path: Path) -> None:
    noon = 1_795_176_000_000_000_000
    now = [noon]
    day = {"day_zone": "UTC", "day_end": "17:00"}
    async with running(orders(tmp_path, **day), disk={"clock": lambda: now[0]}) as rig:
        client = await rig.client()
        putting = await in_thread(client.sender)
        await in_thread(client.put_numbers, putting, 1, 2, 3, 4)
        link = await in_thread(client.taker, credit=1)
        await in_thread(client.wait_for, link, 1)
        now[0] += 6 * 3600 * 10**9
        await rig.until(lambda: rig.figure("expired") == 3, "the day's end")
        await in_thread(client.put_numbers, putting, 5)
        client.of(link)[0][1].update(proton.Delivery.RELEASED)
        client.of(link)[0][1].settle()
        link.flow(5)
        assert await in_thread(client.wait_for, link, 2) == [1, 5]
        await rig.until(lambda: rig.figure("expired") == 4, "the one that came back")
        answer = await in_thread(client.ask, operation="cancel", message_id="m2")
        assert (answer[0]["status-code"], answer[0]["answer"]) == (410, "expired")


async def test_a_queue_that_another_process_has_open_ends_the_start(tmp_path: Path) -> None:
    async with running(orders(tmp_path)):
        with pytest.raises(UsageError, match="is open already"):
            await DurableQueues((orders(tmp_path),), lambda: None).open()


async def test_a_queue_whose_files_cannot_be_believed_is_refused_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "control").write_bytes(b"nonsense" * 100)

    def talk(client: QueueClient) -> None:
        assert client.refusal(client.sender("queue.broken")).name == "amqp:internal-error"
        client.put_numbers(client.sender(), 1)

    configs = orders(tmp_path / "orders"), orders(broken, name="broken")
    async with running(*configs) as rig:
        await in_thread(talk, await rig.client())
        states = {each["name"]: each["state"] for each in rig.queues.snapshot()}
        assert states == {"orders": "open", "broken": "stopped"}
