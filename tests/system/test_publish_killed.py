"""A gateway that publishes by way of its journal is killed while its broker does not answer.

Packets flow all the while. The journal that it leaves behind is read, and the next gateway must
bring the broker everything in it first, in order, then what comes now; and the journal must lack
nothing up to the newest message in it. What came twice was unanswered.
"""

import asyncio
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from proton import Delivery

from feedhandler.amqp.publishing.spill_disk import settings_of
from feedhandler.amqp.publishing.spill_items import parse_item
from feedhandler.config import Config, ControlConfig
from feedhandler.config.publishing import PublishConfig
from feedhandler.journal.files import Files
from feedhandler.journal.opening import open_store
from feedhandler.rpc import ask
from tests.support.broker_peer import FakeBroker, broker
from tests.support.checkout import CHECKOUT
from tests.support.gateway import PATIENCE_S, SERVICES, Market, kill, start
from tests.support.publish import tag

#: So many packets a second; three eighths of this are full in half a second, and a disk that is
#: busy with something else may take as long.
RATE = 3000
QUEUE_BYTES = 3 << 19


def configured(market: Market, url: str, folder: Path) -> Config:
    """Both services to one broker, by way of a journal in `folder`."""
    destination = PublishConfig(
        name="firm", to=url, exchange="x", require_route=False, when_full="journal", window=500,
        journal_folder=str(folder / "journal"), queue_bytes=QUEUE_BYTES, confirm_timeout_us=0,
        reconnect_us=10_000, reconnect_max_us=100_000,
    )  # fmt: skip
    config = market.config()
    return msgspec.structs.replace(
        config, publish=(destination,), control=ControlConfig(bind=f"ipc://{folder}/control")
    )


async def seen(config: Config) -> dict[str, Any]:
    """The destination's part of the gateway's status, and how far each service has come."""
    status = await asyncio.to_thread(ask, config.control.bind, timeout_s=PATIENCE_S)
    reached = {channel["service"]: channel["next"] - 1 for channel in status["channels"]}
    return {**status["destinations"][0], "reached": reached}


async def until(config: Config, condition: Any, what: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while not condition(snapshot := await seen(config)):
            await asyncio.sleep(0.02)
    assert snapshot, what
    return snapshot


def done(snapshot: dict[str, Any], market: Market) -> bool:
    """Return whether the broker has everything that was sent."""
    waits = snapshot["unconfirmed"] + snapshot["queued"]
    return snapshot["reached"] == market.sent and snapshot["journal"] == "MEMORY" and not waits


def packets_of(messages: list[Any]) -> list[tuple[int, int]]:
    """(service, sequence) of the packets, in the order in which they came."""
    return [(each[2], each[3]) for each in map(tag, messages) if each[4] == 0xFFFF]


def journalled(folder: Path) -> list[tuple[int, int]]:
    """(service, sequence) of the packets that the journal holds, oldest first."""
    opened = open_store(Files(), str(folder / "journal"), settings_of(1 << 30), bytes(16), 0)
    messages = [parse_item(item.content) for item in opened.delivery.peek(0, 1 << 30)]
    assert None not in messages
    return [(p.service, p.sequence) for p in messages if p is not None and not p.reason]


def assert_whole(packets: list[tuple[int, int]]) -> None:
    """Each service's numbers are consecutive."""
    for service in SERVICES:
        numbers = [number for each, number in packets if each == service]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]


@pytest.mark.timeout(120)
async def test_a_killed_gateways_journal_is_published_first_and_lacks_nothing(
    tmp_path: Path,
) -> None:
    answering = asyncio.Event()
    answered: list[bytes] = []

    def answer(number: int, message: Any) -> Any:
        if not answering.is_set():
            return None
        answered.append(bytes(message.id))
        return Delivery.ACCEPTED

    with Market(RATE) as market:
        async with broker(answer, credit=100_000) as peer:
            config = configured(market, peer.url, tmp_path)
            first = await start(config, tmp_path / "one.toml")
            try:
                answering.set()
                market.start()
                await until(config, lambda snapshot: snapshot["confirmed"] > 300, "confirmed")
                answering.clear()
                snapshot = await until(config, lambda t: t["journal_backlog"] > 500, "to disk")
                assert snapshot["queued_bytes"] + snapshot["unconfirmed_bytes"] <= QUEUE_BYTES
                whole = not snapshot["dropped"]  # by a disk that is busy with something else
            finally:
                await kill(first)
            before = list(peer.messages)
            confirmed = set(answered)
            left = journalled(tmp_path)
            second = await start(config, tmp_path / "two.toml")
            try:
                answering.set()
                await until(config, lambda t: t["drained"] > 0, "read back while packets flow")
                market.stop()
                last = await until(config, lambda t: done(t, market), "level and confirmed")
                assert last["recovered"] >= len(left)
            finally:
                second.send_signal(signal.SIGTERM)
                await second.wait()
            assert journalled(tmp_path) == [], "what is confirmed is recorded as delivered"
            judge(peer, before, confirmed, left, market.sent, whole, last["dropped"])


def judge(
    peer: FakeBroker,
    before: list[Any],
    confirmed: set[bytes],
    left: list[tuple[int, int]],
    sent: dict[int, int],
    whole: bool,
    dropped: int,
) -> None:
    """The verdict over what the broker was sent before and after the kill. `whole`: the first
    gateway dropped nothing; `dropped`: how much the second did, its disk being busy."""
    after = packets_of(peer.messages[len(before) :])
    taken = packets_of([m for m in before if bytes(m.id) in confirmed])
    if whole:
        assert_whole([*dict.fromkeys([*taken, *left])])
    assert after[: len(left)] == left, "the journal first, in order"
    now = after[len(left) :]
    assert now == [*dict.fromkeys(now)]
    if not dropped:
        assert dict(now) == sent
    assert all(number <= sent[service] for service, number in now)
    twice = set(packets_of(before)) & set(after)
    unsure = set(packets_of([m for m in before if bytes(m.id) not in confirmed]))
    recorded_late = set(taken) & set(left)
    assert twice <= unsure | recorded_late, "only what was unconfirmed comes twice"


@pytest.mark.timeout(180)
async def test_a_receiver_that_is_stopped_by_a_signal_costs_the_gateway_no_memory(
    tmp_path: Path,
) -> None:
    """A broker process that stands still (SIGSTOP) with its connection open, then goes on."""
    code = (
        "import asyncio, sys\n"
        "from tests.support.broker_peer import broker\n"
        "async def main():\n"
        "    async with broker(credit=100_000) as peer:\n"
        "        print(peer.port, flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.readline)\n"
        "        tags = [bytes(m.id).hex() for m in peer.messages]\n"
        "        print(' '.join(tags), flush=True)\n"
        "asyncio.run(main())\n"
    )

    with Market(RATE) as market:
        peer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, limit=1 << 26,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )  # fmt: skip
        port = int(await peer.stdout.readline())
        config = configured(market, f"amqp://127.0.0.1:{port}", tmp_path)
        gateway = await start(config, tmp_path / "one.toml")
        try:
            market.start()
            await until(config, lambda snapshot: snapshot["confirmed"] > 300, "confirmed")
            peer.send_signal(signal.SIGSTOP)
            snapshot = await until(config, lambda t: t["journal_backlog"] > 500, "to disk")
            assert snapshot["queued_bytes"] + snapshot["unconfirmed_bytes"] <= QUEUE_BYTES
            peer.send_signal(signal.SIGCONT)
            await until(config, lambda t: t["drained"] > 0, "read back while packets flow")
            market.stop()
            last = await until(config, lambda t: done(t, market), "level and confirmed")
            assert last["resent"] == 0
            tags = (await peer.communicate(b"\n"))[0].decode().split()
        finally:
            await kill(gateway)
            await kill(peer)
        found = [struct.unpack(">IHHQH", bytes.fromhex(tag)) for tag in tags]
        packets = [(tag[2], tag[3]) for tag in found if tag[4] == 0xFFFF]
        assert packets == [*dict.fromkeys(packets)]
        assert len(packets) + last["dropped"] == sum(market.sent.values())
        if not last["dropped"]:  # by a disk that is busy with something else
            assert_whole(packets)
            assert dict(packets) == market.sent
