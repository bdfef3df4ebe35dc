"""A destination's journal in a running gateway: a broker that is away, or stops; restarts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_peer_kit import broker
from node_kit import Run, both_loops
from proton import Delivery
from test_publish_peer import PublishRig, sequences

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.journal import BlockingQueue, QueueSettings


@contextlib.asynccontextmanager
async def publishing(url: str, folder: Path, **settings: Any) -> AsyncIterator[PublishRig]:
    """A rig whose destination has a journal in `folder`, while the block runs."""
    rig = PublishRig(url, when_full="journal", journal_folder=str(folder), **settings)
    rig.node.start()
    await rig.publishers.open()
    rig.publishers.start(rig.qualities)
    try:
        yield rig
    finally:
        await rig.publishers.stop(2.0)
        await rig.node.stop(0.1)


@both_loops
def test_what_a_broker_that_is_away_cannot_take_is_there_after_a_restart(
    run: Run, tmp_path: Path
) -> None:
    async def story() -> None:
        async with broker() as gone:
            away = gone.url
        async with publishing(away, tmp_path, queue_bytes=2 << 20) as rig:
            await rig.stream(1, 5000)
            await rig.until(lambda: rig.seen["journal"] == "SPILLING", "to disk")
            assert rig.seen["dropped"] == 0
            assert rig.seen["queued_bytes"] <= 2 << 20
        assert "5,001 messages stay in the journal" in rig.told[-1]
        assert rig.seen["oldest_seconds"] > 0
        async with broker() as peer:
            async with publishing(peer.url, tmp_path) as rig:
                assert "5,001 messages of the run before" in rig.told[0]
                await rig.stream(5001, 5100)
                await rig.confirmed()
                await rig.until(lambda: rig.seen["journal"] == "MEMORY", "level")
                assert rig.seen["recovered"] == 5001
                assert rig.seen["journal_backlog"] == 0
            assert sequences(peer) == [*range(1, 5101)]
            assert any("has caught up" in line for line in rig.told)

    run(story())


def test_a_broker_that_stops_confirming_lets_what_comes_go_to_disk_and_drains_it_later(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        taking = asyncio.Event()

        def answer(number: int, message: Any) -> Any:
            return Delivery.ACCEPTED if taking.is_set() else None

        async with broker(answer) as peer:
            settings = {"queue_bytes": 2 << 20, "window": 100, "confirm_timeout_us": 0}
            async with publishing(peer.url, tmp_path, **settings) as rig:
                await rig.stream(1, 4000)
                await rig.until(lambda: rig.seen["journal_backlog"] > 0, "to disk")
                assert len(peer.messages) <= 100
                taking.set()
                peer.break_off()
                await rig.confirmed()
                await rig.until(lambda: rig.seen["journal"] == "MEMORY", "level")
                assert rig.seen["drained"] > 0
                assert rig.seen["dropped"] == 0
        came = sequences(peer)
        assert [*dict.fromkeys(came)] == [*range(1, 4001)]
        assert len(came) <= 4000 + 100, "only the unconfirmed come twice"

    asyncio.run(story())


def test_one_journal_has_one_owner_and_holds_messages_of_a_gateway_only(tmp_path: Path) -> None:
    async def story(wanted: type[Exception], words: str) -> None:
        rig = PublishRig("amqp://127.0.0.1:1", when_full="journal", journal_folder=str(tmp_path))
        with pytest.raises(wanted, match=words):
            await rig.publishers.open()
        await rig.publishers.stop(0.1)

    small = QueueSettings(block_bytes=1 << 20)
    with BlockingQueue(tmp_path, small) as queue:
        queue.put(b"an order, and no message of a gateway")
        asyncio.run(story(UsageError, "is open already"))
    asyncio.run(story(ConfigError, "something else than a gateway's"))


def test_a_folder_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    async def story() -> None:
        folder = str(tmp_path / "file" / "journal")
        rig = PublishRig("amqp://127.0.0.1:1", when_full="journal", journal_folder=folder)
        with pytest.raises(ConfigError, match=r"publish 'firm': journal_folder .*not a directory"):
            await rig.publishers.open()

    asyncio.run(story())
