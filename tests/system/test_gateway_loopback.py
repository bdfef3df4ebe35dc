"""The whole gateway: real multicast on loopback in, AMQP subscribers out, on both event loops."""

import asyncio
import contextlib
import itertools
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

import feedhandler
from feedhandler.codecs import ConfigError, PeerError, key_word
from feedhandler.config import (
    AmqpConfig,
    ChannelConfig,
    Config,
    GatewaySettings,
    LineConfig,
    RefreshLineConfig,
    StatsConfig,
    parse_config,
)
from feedhandler.config.show import to_toml
from feedhandler.gateway import Gateway
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support import free_addresses
from tests.support.amqp import FEED, order
from tests.support.amqp import packet as packet_of
from tests.support.checkout import CHECKOUT
from tests.support.gateway import ending
from tests.support.gateway_here import gateway_here, multicast_sender
from tests.support.node import PATIENCE_S
from tests.support.unsequenced import description_setting_aside

#: Lines are never silent and gaps are announced soon, unless a test is about that.
QUICK = ArbitrationSettings(gap_wait_us=20_000, start_wait_us=1_000, silent_us=60_000_000)


def configured(services: tuple[int, ...] = (104,), **sections: Any) -> Config:
    """A gateway of these services on groups and ports that no other test uses."""
    channels = tuple(
        ChannelConfig(
            service=service,
            lines=tuple(
                LineConfig(name=name, group=free_addresses.group(), port=free_addresses.port())
                for name in "AB"
            ),
        )
        for service in services
    )
    sections.setdefault("amqp", AmqpConfig(listen="127.0.0.1:0"))
    sections.setdefault("arbitration", QUICK)
    sections.setdefault("stats", StatsConfig(bind=""))
    sections.setdefault("gateway", GatewaySettings())
    return Config(channels=channels, **sections)


class Exchange:
    """Sends datagrams to the lines of a configuration."""

    def __init__(self, config: Config) -> None:
        self.lines = {
            (channel.service, line.name): (line.group, line.port)
            for channel in config.channels
            for line in channel.lines
        }
        self.sock = multicast_sender()

    def send(self, data: bytes, lines: str = "AB", service: int = 104) -> None:
        for name in lines:
            self.sock.sendto(data, self.lines[service, name])

    async def packets(self, first: int, last: int, service: int = 104) -> None:
        """Send `first`..`last` on both lines, giving the gateway time to keep up."""
        for sequence in range(first, last + 1):
            self.send(packet_of(sequence, service=service), service=service)
            if sequence % 50 == 0:
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def running(config: Config) -> AsyncIterator[tuple[Gateway, Exchange, str]]:
    """A gateway in the test's own loop, from ready to stopped."""
    exchange = Exchange(config)
    async with gateway_here(config) as (gateway, url):
        with exchange.sock:
            yield gateway, exchange, url


async def until(messages: Any, done: Any) -> list[Any]:
    """Read messages until one satisfies `done`; all of them."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in messages:
            found.append(message)
            if done(message):
                return found
    raise AssertionError("the stream ended")


def story(messages: list[Any]) -> list[Any]:
    """Sequences and quality reasons in the order they came."""
    return [m.quality["reason"] if m.content == "quality" else m.sequence for m in messages]


@pytest.mark.gateways_loop
async def test_two_lossy_lines_become_one_whole_stream_at_every_grain() -> None:
    seed = 11
    print(f"seed {seed}")
    chance = random.Random(seed)
    total = 2000
    async with (
        running(configured()) as (gateway, exchange, url),
        contextlib.AsyncExitStack() as stack,
    ):
        subscribers = {
            grain: await stack.enter_async_context(
                feedhandler.subscribe(url, "euronext.104", as_=grain, stamp=True)
            )
            for grain in ("packet", "batch", "message")
        }

        def is_last(m: Any) -> bool:
            if m.content in ("packet", "batch"):
                return bool(m.packets()[-1].sequence == total)
            return (m.sequence, m.number) == (total, 4)

        readers = {
            grain: asyncio.create_task(until(each, is_last)) for grain, each in subscribers.items()
        }
        put = []
        for sequence in range(1, total + 1):
            put.append(packet_of(sequence))
            lost = chance.random()  # never on both, never the first
            lines = "B" if lost < 0.2 and sequence > 1 else "A" if lost > 0.8 else "AB"
            exchange.send(put[-1], lines)
            if sequence % 20 == 0:
                await asyncio.sleep(0)
        got = {grain: await reader for grain, reader in readers.items()}
        for grain in ("packet", "batch"):
            data = [m for m in got[grain] if m.content == grain]
            assert b"".join(m.body for m in data) == b"".join(put)
            assert all(m.received_ns for m in data)
        singles = [m for m in got["message"] if m.content == "message"]
        assert [(m.sequence, m.number) for m in singles] == [
            (sequence, number) for sequence in range(1, total + 1) for number in range(5)
        ]
        snapshot = gateway.snapshot()
        (channel,) = snapshot["channels"]
        assert (channel["packets"], channel["messages"], channel["lost"]) == (
            total,
            5 * total,
            0,
        )
        assert channel["quality"] == "OK"
        assert channel["latency_ns"]["p50"] > 0
        lines = channel["lines"]
        assert lines["A"]["first"] + lines["B"]["first"] == total
        assert lines["A"]["first"] > 0
        assert lines["B"]["first"] > 0
        assert snapshot["node"]["links"] == 3


@pytest.mark.gateways_loop
async def test_a_gap_on_both_lines_is_announced_with_its_exact_range_and_the_stream_goes_on() -> (
    None
):
    async with (
        running(configured()) as (_, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as messages,
    ):
        for sequence in [1, 2, 3, 7, 8, 9, 11, 12]:
            exchange.send(packet_of(sequence))
        found = await until(messages, lambda m: m.content == "packet" and m.sequence == 12)
        assert story(found) == [
            "attached", "start", 1, 2, 3, "gap", 7, 8, 9, "gap", 11, 12
        ]  # fmt: skip
        gaps = [m.quality for m in found if m.quality and m.quality["reason"] == "gap"]
        assert [gap["lost"] for gap in gaps] == [[[4, 6]], [[10, 10]]]
        assert {gap["state"] for gap in gaps} == {"STALE"}
        async with feedhandler.subscribe(url, "euronext.104.1001") as late:
            (note,) = await until(late, lambda m: True)
            assert note.quality["reason"] == "attached"
            assert note.quality["lost"] == [[4, 6], [10, 10]]
            assert note.quality["next"] == 13


@pytest.mark.gateways_loop
async def test_what_comes_after_all_takes_the_announcement_back_unless_the_stream_has_gone_on() -> (
    None
):
    async with (
        running(configured()) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as messages,
    ):
        for sequence in (1, 3):
            exchange.send(packet_of(sequence))
        first = await until(messages, lambda m: m.sequence == 3 and m.content == "packet")
        exchange.send(packet_of(2))
        exchange.send(packet_of(4))
        rest = await until(messages, lambda m: m.sequence == 4 and m.content == "packet")
        assert story(first + rest) == ["attached", "start", 1, "gap", 3, "withdrawn", 2, 4]
        for sequence in (6, 7, 8):
            exchange.send(packet_of(sequence), "A")
        await until(messages, lambda m: m.sequence == 8 and m.content == "packet")
        exchange.send(packet_of(5), "B")
        exchange.send(packet_of(9), "B")
        rest = await until(messages, lambda m: m.sequence == 9 and m.content == "packet")
        assert story(rest) == [9]
        (channel,) = gateway.snapshot()["channels"]
        assert channel["arbitration"]["withdrawn"] == channel["lines"]["B"]["late"] == 1


@pytest.mark.gateways_loop
async def test_a_sequence_reset_is_announced_and_a_new_epoch_begins() -> None:
    async with (
        running(configured()) as (_, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as messages,
    ):
        await exchange.packets(1, 5)
        await until(messages, lambda m: m.sequence == 5 and m.content == "packet")
        reset = FEED.encode_packet(sequence=1, service=104, kind="reset", next_sequence=2)
        exchange.send(reset)
        exchange.send(packet_of(2, [order(1)]))
        exchange.send(packet_of(3, [order(2)]))
        found = await until(messages, lambda m: m.sequence == 3 and m.content == "packet")
        assert story(found) == ["reset", 1, 2, 3]  # 1 is the exchange's own reset packet
        assert found[1].body == reset
        assert found[0].quality["since"] == found[0].quality["next"] == 2
        assert found[0].quality["lost_total"] == 0


@pytest.mark.gateways_loop
async def test_a_line_that_falls_silent_and_comes_back_is_announced_by_name() -> None:
    arbitration = ArbitrationSettings(silent_us=1_000_000, start_wait_us=1_000)
    # Service 101 never speaks: its lines come first, and must not lend theirs a name.
    config = configured((101, 104), arbitration=arbitration)
    async with (
        running(config) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as messages,
    ):
        sequence = itertools.count(1)

        async def quality_of(reason: str, speaking: str) -> dict[str, Any]:
            """The next note with the reason; till then each packet that came brings another."""

            def fits(message: Any) -> bool:
                if message.content == "packet" and speaking:
                    exchange.send(packet_of(next(sequence)), speaking)
                return message.content == "quality" and message.quality["reason"] == reason

            return (await until(messages, fits))[-1].quality

        exchange.send(packet_of(next(sequence)))
        await quality_of("start", "AB")
        note = await quality_of("silent", "A")
        assert (note["line"], note["silent"], note["state"]) == ("B", ["B"], "OK")
        note = await quality_of("back", "AB")
        assert (note["line"], note["silent"], note["state"]) == ("B", [], "OK")
        while len(note["silent"]) < 2:
            note = await quality_of("silent", "")
        assert note["state"] == "SILENT"
        assert gateway.snapshot()["channels"][1]["quality"] == "SILENT"
        exchange.send(packet_of(next(sequence)), "B")
        note = await quality_of("back", "B")
        assert (note["line"], note["silent"], note["state"]) == ("B", ["A"], "OK")


@pytest.mark.gateways_loop
async def test_services_do_not_disturb_each_other_and_strangers_are_counted() -> None:
    config = configured((104, 105))
    async with (
        running(config) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.#", quality=False) as messages,
    ):
        garbage = [b"", b"x", bytes(40), packet_of(9)[:-3], packet_of(9) + b"x"]
        for sequence in range(1, 101):
            exchange.send(packet_of(sequence), service=104)
            exchange.send(packet_of(sequence, service=105), service=105)
            exchange.send(packet_of(sequence, service=107), service=104)  # a service of no channel
            for data in garbage:
                exchange.send(data, service=105)
            await asyncio.sleep(0)
        seen: dict[str, list[int]] = {"euronext.104": [], "euronext.105": []}

        def both(message: Any) -> bool:
            seen[message.key].append(message.sequence)
            return all(each and each[-1] == 100 for each in seen.values())

        await until(messages, both)
        assert seen == {key: list(range(1, 101)) for key in seen}

        def refused(service: int, name: str) -> int:
            (channel,) = [c for c in gateway.snapshot()["channels"] if c["service"] == service]
            return sum(line[name] for line in channel["lines"].values())

        # One line has brought everything; the other may still be reading.
        wanted = (104, "unconfigured_service", 200), (105, "truncated", 400)
        for service, name, count in (*wanted, (105, "length_mismatch", 200)):
            async with asyncio.timeout(PATIENCE_S):
                while refused(service, name) < count:
                    await asyncio.sleep(0.01)
        assert refused(104, "unconfigured_service") == 200


@pytest.mark.gateways_loop
async def test_two_services_may_come_on_the_same_lines() -> None:
    port = free_addresses.port()
    lines = "".join(
        f'[[channel.line]]\nname = "{name}"\ngroup = "{free_addresses.group()}"\nport = {port}\n'
        for name in "AB"
    )
    text = "".join(f"[[channel]]\nservice = {service}\n{lines}" for service in (104, 105))
    config = parse_config(text + '[amqp]\nlisten = "127.0.0.1:0"\n')
    async with (
        running(config) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.*", quality=False) as messages,
    ):
        assert len(gateway.receiver.lines) == 2
        for sequence in range(1, 51):
            for service in (104, 105):
                exchange.send(packet_of(sequence, service=service), service=service)
        seen: dict[str, list[int]] = {"euronext.104": [], "euronext.105": []}

        def both(message: Any) -> bool:
            seen[message.key].append(message.sequence)
            return all(each and each[-1] == 50 for each in seen.values())

        await until(messages, both)
        assert seen == {key: list(range(1, 51)) for key in seen}
        for channel in gateway.snapshot()["channels"]:
            assert list(channel["lines"]) == ["A", "B"]
            assert channel["lines"]["A"]["unconfigured_service"] == 0


@pytest.mark.gateways_loop
async def test_lines_that_differ_are_announced_once_and_the_first_copy_goes_on() -> None:
    async with (
        running(configured()) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as messages,
    ):
        for sequence in range(1, 6):
            exchange.send(packet_of(sequence), lines="A")
        found = await until(messages, lambda m: m.sequence == 5)
        for sequence in range(1, 6):
            exchange.send(packet_of(sequence, [order(99)] * 5), lines="B")
        found += await until(messages, lambda m: m.content == "quality")
        exchange.send(packet_of(6), lines="B")
        found += await until(messages, lambda m: m.sequence == 6)
        qualities = [m.quality for m in found if m.content == "quality"]
        (mismatch,) = [quality for quality in qualities if quality["reason"] == "mismatch"]
        assert (mismatch["line"], mismatch["sequence"]) == ("B", 1)
        bodies = [m.body for m in found if m.content == "packet"]
        assert bodies == [packet_of(sequence) for sequence in range(1, 7)]
        (channel,) = gateway.snapshot()["channels"]
        assert channel["arbitration"]["mismatches"] == 5
        assert channel["lines"]["B"]["mismatches"] == 5


@pytest.mark.gateways_loop
async def test_symbols_are_named_from_reference_data_where_configured() -> None:
    (reference,) = FEED.references.values()
    layout = FEED.layouts[reference.code][0]
    fields = {
        next(f.name for f in layout.named if f.at == reference.index.at): 77,
        next(f.name for f in layout.named if f.at == reference.name[0].at): "A.R#F",
    }
    definition = FEED.encode_message(reference.code, **fields)
    expected = reference.read(definition)
    assert expected is not None
    word = key_word(expected[1])
    assert word.startswith("A_R_F")
    config = configured((101, 104), gateway=GatewaySettings(symbols="name"))
    async with (
        running(config) as (_, exchange, url),
        feedhandler.subscribe(url, "euronext.104.#", as_="message", quality=False) as every,
        feedhandler.subscribe(url, f"euronext.*.{word}", as_="message", quality=False) as named,
    ):
        exchange.send(packet_of(1, [order(77)]))
        await until(every, lambda m: m.key == "euronext.104.77")
        exchange.send(packet_of(1, [definition], service=101), service=101)
        await until(named, lambda m: m.service == 101)
        exchange.send(packet_of(2, [order(77)]))
        await until(every, lambda m: m.key == f"euronext.104.{word}")
        (found,) = await until(named, lambda m: True)
        assert found.symbol == word


@pytest.mark.gateways_loop
async def test_statistics_come_on_the_bus() -> None:
    bind = f"tcp://127.0.0.1:{free_addresses.port()}"
    config = configured(stats=StatsConfig(bind=bind, interval_ms=100))
    context = zmq.asyncio.Context()
    listener = context.socket(zmq.SUB)
    listener.subscribe(b"stats")
    listener.connect(bind)
    try:
        async with running(config) as (_, exchange, _url):
            await exchange.packets(1, 10)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    topic, body = await listener.recv_multipart()
                    assert topic == b"stats"
                    statistics = msgspec.json.decode(body)
                    if statistics["channels"][0]["packets"] == 10:
                        break
            assert statistics["feed"] == "euronext-utp-md"
            assert statistics["channels"][0]["key"] == "euronext.104"
            assert statistics["node"]["connections"] == 0
    finally:
        listener.close(0)
        context.term()


@pytest.mark.gateways_loop
async def test_what_was_received_is_delivered_before_the_end() -> None:
    async with contextlib.AsyncExitStack() as stack:
        gateway, exchange, url = await stack.enter_async_context(running(configured()))
        messages = await stack.enter_async_context(
            feedhandler.subscribe(url, "euronext.104", quality=False, reconnect=False)
        )
        await exchange.packets(1, 500)
        await until(messages, lambda m: m.sequence == 500)
        await exchange.packets(501, 1000)
        async with asyncio.timeout(PATIENCE_S):
            while gateway.receiver.line_counters[:, 0].sum() < 2000:
                await asyncio.sleep(0.005)
        gateway.stop()
        found: list[int] = []

        async def drain() -> None:
            async for message in messages:
                found.append(message.sequence)

        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerError, match="gateway stops"):
                await drain()
        assert found == list(range(501, 1001))


@pytest.mark.gateways_loop
async def test_what_waits_for_a_snapshot_at_the_end_is_delivered_as_stale() -> None:
    config = configured()
    refresh = RefreshLineConfig(name="A", group=free_addresses.group(), port=free_addresses.port())
    channel = msgspec.structs.replace(config.channels[0], refresh_lines=(refresh,))
    config = msgspec.structs.replace(config, channels=(channel,))
    async with contextlib.AsyncExitStack() as stack:
        gateway, exchange, url = await stack.enter_async_context(running(config))
        messages = await stack.enter_async_context(
            feedhandler.subscribe(url, "euronext.104", reconnect=False)
        )
        await exchange.packets(501, 700)
        stream = gateway.streams[0]
        async with asyncio.timeout(PATIENCE_S):
            while not stream.closed or stream.store is None or stream.store.end != 701:
                await asyncio.sleep(0.005)
        gateway.stop()
        found: list[Any] = []

        async def drain() -> None:
            async for message in messages:
                found.append(message)

        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerError, match="gateway stops"):
                await drain()
    assert [m.sequence for m in found if m.content != "quality"] == list(range(501, 701))
    quality = next(m.quality for m in found if m.content == "quality" and m.sequence == 501
                and m.quality["reason"] == "stopping")  # fmt: skip
    assert quality["state"] == "STALE"


@pytest.mark.parametrize(
    ("loop", "number"), [("uvloop", signal.SIGTERM), ("asyncio", signal.SIGINT)]
)
async def test_a_signal_drains_a_gateway_process_and_it_exits_with_0(
    loop: str, number: signal.Signals, tmp_path: Path
) -> None:
    config = configured(gateway=GatewaySettings(loop=loop))
    path = tmp_path / "gateway.toml"
    path.write_text(to_toml(config))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", "run", str(path),
        cwd=CHECKOUT, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    async with ending(process), asyncio.timeout(2 * PATIENCE_S):
        line = (await process.stderr.readline()).decode()
        assert "ready: 1 channels, 2 lines" in line
        url = "amqp://" + line.split()[-1]
        exchange = Exchange(config)
        async with feedhandler.subscribe(
            url, "euronext.104", quality=False, reconnect=False
        ) as messages:
            await exchange.packets(1, 300)
            await until(messages, lambda m: m.sequence == 300)
            process.send_signal(number)
            with pytest.raises(PeerError, match="gateway stops"):
                await anext(messages)
        _, errors = await process.communicate()
        assert process.returncode == 0, errors
        assert b"Traceback" not in errors


@pytest.mark.gateways_loop
async def test_a_gateway_that_cannot_start_says_why_and_leaves_nothing_running() -> None:
    config = configured()
    async with running(config) as (_, _exchange, url):
        listen = url.removeprefix("amqp://")
        taken = configured(amqp=AmqpConfig(listen=listen))
        with pytest.raises(ConfigError, match="cannot listen"):
            async with running(taken):
                pass
    nowhere = configured(gateway=GatewaySettings(interface="192.0.2.1"))
    with pytest.raises(ConfigError):
        async with running(nowhere):
            pass


@pytest.mark.gateways_loop
async def test_a_gateway_that_coalesces_rests_between_hand_overs_and_delivers_the_same() -> None:
    config = configured(gateway=GatewaySettings(coalesce_us=1000))
    async with (
        running(config) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as first,
        feedhandler.subscribe(url, "euronext.104", as_="message") as second,
    ):
        began_ns, before = time.monotonic_ns(), gateway.node.stages["write"].count
        sending = asyncio.create_task(exchange.packets(1, 400))
        whole = await until(first, lambda m: m.sequence == 400)
        single = await until(second, lambda m: (m.sequence, m.number) == (400, 4))
        await sending
        handed = gateway.node.stages["write"].count - before
        rests = (time.monotonic_ns() - began_ns) / 1_000_000
    assert [m.sequence for m in whole if m.content == "packet"] == list(range(1, 401))
    assert len([m for m in single if m.content == "message"]) == 2000
    assert handed <= rests + 2, "each wrote to a connection at least, and rested a millisecond"


@pytest.mark.gateways_loop
async def test_packets_outside_the_sequence_reach_every_subscriber_once_and_cost_no_loss() -> None:
    """Five before the stream's first number, one in mid-stream, one while a packet is missing."""
    aside = [packet_of(0, [order(1001, price)]) for price in range(7)]
    first = 21_396
    feed = str(description_setting_aside("euronext-utp-md"))
    patient = ArbitrationSettings(
        gap_wait_us=60_000_000, start_wait_us=1_000, silent_us=60_000_000,
        unsequenced_window_us=60_000_000,
    )  # fmt: skip
    config = configured(gateway=GatewaySettings(feed=feed), arbitration=patient)
    async with (
        running(config) as (gateway, exchange, url),
        contextlib.AsyncExitStack() as stack,
    ):
        sources = {
            grain: await stack.enter_async_context(
                feedhandler.subscribe(url, "euronext.104", as_=grain)
            )
            for grain in ("packet", "batch", "message")
        }
        for data in aside[:5]:
            exchange.send(data)
        exchange.send(packet_of(first))
        exchange.send(packet_of(first + 1))
        exchange.send(aside[5])
        exchange.send(packet_of(first + 2), lines="A")
        exchange.send(packet_of(first + 4))
        exchange.send(aside[6], lines="B")
        exchange.send(packet_of(first + 3), lines="B")
        exchange.send(packet_of(first + 5))
        for grain, source in sources.items():
            messages = await until(source, lambda m: _reaches(m, first + 5))
            data = [m for m in messages if m.content != "quality"]
            outside = [m for m in data if m.unsequenced]
            assert len({m.tag for m in outside}) == len(outside) == 7
            sent = aside if grain != "message" else [order(1001, price) for price in range(7)]
            assert sorted(m.body for m in outside) == sorted(sent)
            assert [m.group_sequence for m in messages] == list(range(len(messages)))
            packets = [
                packet.sequence
                for m in data
                if not m.unsequenced
                for packet in (m.packets() if grain != "message" else [m])
            ]
            assert list(dict.fromkeys(packets)) == list(range(first, first + 6))
            qualities = [m.quality for m in messages if m.content == "quality"]
            assert all(each["lost_total"] == 0 and not each["stale"] for each in qualities)
        (channel,) = gateway.snapshot()["channels"]
        assert (channel["gaps"], channel["quality"]) == (0, "OK")
        assert channel["arbitration"]["unsequenced"] == 7
        assert {line["stale"] for line in channel["lines"].values()} == {0}


def _reaches(message: Any, sequence: int) -> bool:
    """Return whether a message has the last market message of packet `sequence`."""
    if message.content == "message":
        return bool((message.sequence, message.number) == (sequence, 4))
    return message.content != "quality" and message.packets()[-1].sequence == sequence
