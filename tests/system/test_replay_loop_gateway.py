"""A looped recording through the real gateway: to its subscribers it is one uninterrupted session.

A session of the generator is recorded on lines A and B, resets and heartbeats included, then played
three times over with new send times; line A loses some of it. The subscriber's ledger is held
against one of what the loop says it sends: nothing lost, doubled, changed or out of order.
"""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from test_gateway_loopback import QUICK, configured, running

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.config import Config
from feedhandler.demo.ledger_client import LedgerClient
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.exchange.ledger import LedgerWriter, read_ledger
from feedhandler.replay.exchange.ledger_check import check
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.replay.playing.line_map import LineMap, mapped_lines
from feedhandler.replay.playing.pace import parse_pace
from feedhandler.replay.playing.pipeline import Pipeline, endpoints
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.stamps import Stamper, Stamps
from tests.support.node import PATIENCE_S

FEED = load_feed("euronext-utp-md")
SERVICES = (101, 102, 103, 104)
PASSES = 3
LINES = {
    (service, name): (f"239.195.{'AB'.index(name)}.{service}", 20_000 + service)
    for service in SERVICES
    for name in "AB"
}


def record(path: Path) -> int:
    """A short session on both lines, B a little behind; its market messages."""
    session = SessionGenerator(FEED, seed=4, messages_per_s=3_000.0, instruments=20)
    pending: list[tuple[int, str, int, bytes]] = []
    messages = 0
    for one in session.packets(1_500_000_000):
        if one.service in SERVICES:
            messages += one.messages
            pending.append((one.due_ns, "A", one.service, one.packet))
            pending.append((one.due_ns + 300_000, "B", one.service, one.packet))
    with CaptureWriter(path) as writer:
        for due_ns, name, service, packet in sorted(pending, key=lambda each: each[0]):
            writer.write(1_700_000_000 * 10**9 + due_ns, *LINES[service, name], packet)
    return messages


def player(pipeline: Pipeline, config: Config) -> Player:
    """From the recorded groups to the gateway's, A and B apart."""
    new = {
        (c.service, line.name): (line.group, line.port) for c in config.channels for line in c.lines
    }
    lines = mapped_lines(
        [LineMap(old, new[key], key[1]) for key, old in LINES.items()],
        endpoints(pipeline.once()),
        keep_others=False,
        interfaces={"A": "127.0.0.1", "B": "127.0.0.1"},
        faults={"A": LineFaults(loss=0.1), "B": LineFaults()},
    )
    return Player(
        pipeline,
        lines,
        pace=parse_pace("2x", packets_max=20_000),
        seed=3,
        stamper=Stamper(FEED, Stamps.NOW),
    )


@pytest.mark.timeout(90)
def test_a_looped_recording_is_one_session_to_the_gateways_subscribers(tmp_path: Path) -> None:
    messages = record(tmp_path / "session.pcap")
    source = Capture(tmp_path / "session.pcap")
    with LedgerWriter(tmp_path / "sent", FEED) as sent:
        for one in Pipeline([source], feed=FEED, passes=PASSES):
            if (one.group, one.port) in [LINES[service, "A"] for service in SERVICES]:
                sent.sent(one.payload)
    assert sent.messages == PASSES * messages

    async def scenario() -> list[str]:
        reasons = []
        # A sender that stands still between two lines makes no gap.
        patient = replace(QUICK, gap_wait_us=5_000_000)
        config = configured(SERVICES, arbitration=patient)
        with LedgerWriter(tmp_path / "got", FEED) as ledger:
            books = LedgerClient(FEED, ledger)
            async with (
                running(config) as (_, _, url),
                feedhandler.subscribe(url, "euronext.#", as_="packet", stamp=True) as stream,
                asyncio.timeout(PATIENCE_S),
            ):
                playing = asyncio.create_task(
                    player(Pipeline([source], feed=FEED, passes=PASSES), config).play()
                )
                async for message in stream:
                    books.record(message)
                    if message.content == "quality":
                        reasons.append(message.quality["reason"])
                    if books.received >= PASSES * messages:
                        break
                result = await playing
                assert result.complete
                assert result.lines[0].dropped > 0
        return reasons

    reasons = asyncio.run(scenario())
    report = check(FEED, read_ledger(tmp_path / "sent"), read_ledger(tmp_path / "got"))
    assert report.clean, list(report.faults())
    assert (report.ok, report.lost_announced) == (PASSES * messages, 0)
    # The session's own resets, once; nothing was lost, and nothing else began anew.
    assert sorted(reasons) == ["attached"] * len(SERVICES) + ["reset"] * len(SERVICES)
