"""A destination's journal in a running gateway: a broker that is away, or stops; restarts."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery
from test_publish_peer import PublishRig

from feedhandler.amqp.publishing import spill_runner
from feedhandler.amqp.publishing.spill_queue import SpillQueue
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.journal import BlockingQueue, QueueSettings
from feedhandler.ops import queue
from tests.support.broker_peer import broker
from tests.support.publish import sequences, started


@contextlib.asynccontextmanager
async def publishing(url: str, folder: Path, **settings: Any) -> AsyncIterator[PublishRig]:
    """A rig whose destination has a journal in `folder`, while the block runs."""
    rig = PublishRig(url, when_full="journal", journal_folder=str(folder), **settings)
    await rig.publishers.open()
    async with started(rig, 2.0):
        yield rig


async def stream(rig: PublishRig, first: int, last: int) -> None:
    """Packets no faster than the disk takes them: beyond a share of the bound they are refused."""
    for begin in range(first, last + 1, 200):
        await rig.stream(begin, min(last, begin + 199))
        await rig.until(lambda: not spill_of(rig).unwritten, "in the journal")


def spill_of(rig: PublishRig) -> SpillQueue:
    return rig.publisher.spill_runner.spill


async def level(rig: PublishRig) -> None:
    """The broker has everything, and nothing is on the disk only."""

    def reached() -> bool:
        waits = rig.seen["queued"] + rig.seen["unconfirmed"] + spill_of(rig).on_disk
        return rig.seen["state"] == "UP" and rig.seen["journal"] == "MEMORY" and not waits

    await rig.until(reached, "level")


@pytest.mark.gateways_loop
async def test_what_a_broker_that_is_away_cannot_take_is_there_after_a_restart(
    tmp_path: Path,
) -> None:
    async with broker() as gone:
        away = gone.url
    async with publishing(away, tmp_path, queue_bytes=2 << 20) as rig:
        await stream(rig, 1, 5000)
        await rig.until(lambda: rig.seen["journal"] == "SPILLING", "to disk")
        assert rig.seen["dropped"] == 0
        assert rig.seen["queued_bytes"] <= 2 << 20
    assert "5,001 messages stay in the journal" in rig.reported[-1]
    assert rig.seen["oldest_seconds"] > 0
    async with broker() as peer:
        async with publishing(peer.url, tmp_path) as rig:
            assert "5,001 messages of the run before" in rig.reported[0]
            await rig.stream(5001, 5100)
            await level(rig)
            assert rig.seen["recovered"] == 5001
            assert rig.seen["journal_backlog"] == 0
        assert sequences(peer.messages) == [*range(1, 5101)]
        assert any("messages came back" in line for line in rig.reported)


async def test_a_broker_that_stops_confirming_lets_what_comes_go_to_disk_and_drains_it_later(
    tmp_path: Path,
) -> None:
    taking = asyncio.Event()

    def answer(number: int, message: Any) -> Any:
        return Delivery.ACCEPTED if taking.is_set() else None

    async with broker(answer) as peer:
        settings = {"queue_bytes": 2 << 20, "window": 100, "confirm_timeout_us": 0}
        async with publishing(peer.url, tmp_path, **settings) as rig:
            await stream(rig, 1, 4000)
            await rig.until(lambda: rig.seen["journal_backlog"] > 0, "to disk")
            assert len(peer.messages) <= 100
            taking.set()
            peer.break_off()
            await level(rig)
            assert rig.seen["drained"] > 0
            assert rig.seen["dropped"] == 0
    came = sequences(peer.messages)
    assert [*dict.fromkeys(came)] == [*range(1, 4001)]
    assert len(came) <= 4000 + 100, "only the unconfirmed come twice"


def test_one_journal_has_one_owner_and_holds_messages_of_a_gateway_only(tmp_path: Path) -> None:
    async def story(wanted: type[Exception], words: str) -> None:
        rig = PublishRig("amqp://127.0.0.1:1", when_full="journal", journal_folder=str(tmp_path))
        with pytest.raises(wanted, match=words):
            await rig.publishers.open()
        await rig.publishers.stop(0.1)

    small = QueueSettings(block_bytes=1 << 20)
    with BlockingQueue(tmp_path, small) as orders:
        orders.put(b"an order, and no message of a gateway")
        asyncio.run(story(UsageError, "is open already"))
    asyncio.run(story(ConfigError, "something else than a gateway's"))


async def test_a_folder_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    folder = str(tmp_path / "file" / "journal")
    rig = PublishRig("amqp://127.0.0.1:1", when_full="journal", journal_folder=folder)
    with pytest.raises(ConfigError, match=r"publish 'firm': journal_folder .*not a directory"):
        await rig.publishers.open()


async def test_a_disk_that_fails_is_reported_once_and_the_broker_is_served_on(
    tmp_path: Path,
) -> None:
    def fails(path: str, data: memoryview, offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    taking = asyncio.Event()

    def answer(number: int, message: Any) -> Any:
        return Delivery.ACCEPTED if taking.is_set() else None

    async with broker(answer) as peer:
        async with publishing(peer.url, tmp_path) as rig:
            rig.publisher.spill_runner._disk.engine._files.pwrite = fails
            await rig.stream(1, 200)
            await rig.until(lambda: rig.seen["journal"] == "FAILED", "reported")
            taking.set()
            peer.break_off()
            await rig.stream(201, 500)
            await rig.confirmed()
            assert rig.seen["journal_faults"] == 1
            assert rig.seen["dropped"] == 0
        assert [*dict.fromkeys(sequences(peer.messages))] == [*range(1, 501)]
        (failure,) = [line for line in rig.reported if "failed" in line]
        assert "Input/output error" in failure
        assert not [line for line in rig.reported if "messages are not in the journal" in line]


async def test_a_journal_that_is_full_says_so_and_what_has_no_room_is_lost_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = QueueSettings(
        block_bytes=1 << 20, blocks=2, blocks_max=2, journal_bytes=64 << 10, durability="fast"
    )
    monkeypatch.setattr(spill_runner, "settings_of", lambda *given: small)
    async with broker() as gone:
        away = gone.url
    async with publishing(away, tmp_path, queue_bytes=2 << 20) as rig:
        await rig.stream(1, 8000)
        await rig.until(lambda: rig.seen["dropped"] > 0, "full")
        await rig.until(lambda: any("journal is full" in line for line in rig.reported), "reported")
        assert rig.seen["overflows"] > 0
        assert rig.seen["journal_bytes"] == 2 << 20
    assert "are not in the journal, and lost" in rig.reported[-1]
    assert "stay in the journal" in rig.reported[-2]


async def test_the_commands_for_queues_read_a_journal_that_is_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with broker() as gone:
        away = gone.url
    async with publishing(away, tmp_path) as rig:
        await rig.stream(1, 20)
        await rig.until(lambda: rig.seen["journalled"] == 21, "written")
        assert queue.verify(tmp_path, False) == 0
        assert queue.stat(tmp_path, True) == 0
        assert queue.list_items(tmp_path, 100, False) == 0
    out = capsys.readouterr().out
    assert '"pending": 21' in out.replace("\n", " ")
