"""Volumes measured from captures, and plans made of them (`feedhandler/fixcast/volumes.py`)."""

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed_table import NO_SYMBOL, MessageIndex, PacketHeader
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.reference_data import ReferenceData
from feedhandler.codecs.scanner import parse_header, scan_messages
from feedhandler.fixcast import volumes
from feedhandler.fixcast.channels import parse_channels
from feedhandler.fixcast.planner import SHARE_MAX, Volume, channels_at_most, definition, plan
from feedhandler.fixcast.volumes import MINUTE_NS, VolumeMeter
from feedhandler.ops.fixcast.plan import Options, make_plan
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import write_capture
from tests.support.fix_messages import sealed

UTP = load_feed("euronext-utp-md")
FIX = load_feed("fix-marketdata")
SEED = 18


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole day at a 600th of its rate, of some thousand instruments, as a capture; line A
    loses 2 %, line B nothing."""
    profile = msgspec.structs.replace(load_profile("euronext-2011-03"), instruments=2_660_000)
    path = tmp_path_factory.mktemp("measured") / "day.pcap"
    write_capture(Traffic(profile, SEED, scale=0.0015, loss=(0.02, 0.0)), path, lambda *_: None)
    return path


def measured(path: Path, **said) -> VolumeMeter:
    meter = VolumeMeter(UTP, **said)
    for batch in Capture(path).batches():
        meter.add(batch)
    assert not meter.rejected
    return meter


def test_a_generated_day_is_spread_evenly_over_ten_channels(generated: Path) -> None:
    meter = measured(generated)
    found = meter.volumes()
    assert len(found) > 3000
    planned = plan(found)
    assert planned.heaviest <= SHARE_MAX
    channels = parse_channels(definition(planned, "239.10", 31001, ("", "")), "plan")
    assert sum(len(each.lines) for each in channels.channels.values()) == 20
    # The minute that has most, and so each minute that is as busy, has a plan of its own.
    busiest = meter.busiest_volumes()
    assert sum(each.volume for each in busiest) <= sum(each.volume for each in found)
    assert plan(busiest).heaviest <= SHARE_MAX
    print("plan of all, in the busiest minute:", float(planned.heaviest_of(busiest)))


def test_what_is_measured_is_what_the_better_line_brought(tmp_path: Path) -> None:
    """Against every packet decoded by itself: line B lost nothing."""
    path = tmp_path / "short.pcap"
    traffic = Traffic(load_profile("market"), SEED, rate_mbps=2.0, duration_s=1.0, loss=(0.1, 0.0))
    write_capture(traffic, path, lambda *_: None)
    wanted: Counter[tuple[str, str]] = Counter()
    known = ReferenceData(UTP)
    brought: dict[tuple[str, int], Counter[tuple[str, int]]] = {}
    header, index = PacketHeader(), MessageIndex()
    for each in Capture(path):
        parse_header(UTP.table, each.payload, 0, len(each.payload), header)
        if header.kind != PacketKind.DATA or UTP.table.is_compressed(header.flags):
            continue
        UTP.decode_packet(each.payload, known=known)
        assert scan_messages(UTP.table, each.payload, 0, header, index) == Reject.FINE
        line = brought.setdefault((each.group, each.port), Counter())
        for i in range(index.count):
            if index.symbols[i] != NO_SYMBOL:
                line[str(header.service), index.symbols[i]] += index.sizes[i]
    for line in brought.values():
        for (service, symbol), total in line.items():
            key = service, known.names.get(symbol, str(symbol))
            wanted[key] = max(wanted[key], total)
    assert len(wanted) > 100
    assert {each[:2]: each.volume for each in measured(path, by_service=True).volumes()} == wanted
    together: Counter[str] = Counter()
    for (_, name), total in wanted.items():
        together[name] += total
    assert {each.symbol: each.volume for each in measured(path).volumes()} == together


A, B, OTHER = ("239.1.1.1", 1), ("239.1.1.2", 1), ("239.1.2.1", 1)
LONG, LONGER = "EUR/USD-SPOT-2026", "EUR/USD-SPOT-2027"


def update(number: int, *names: str) -> bytes:
    entries = "".join(f"279=0|55={name}|" for name in names)
    return sealed(f"35=X|34={number}|268={len(names)}|{entries}".encode())


def capture_of(path: Path, rows: list[tuple[float, tuple[str, int], bytes]]) -> Path:
    with CaptureWriter(path) as writer:
        for minute, (group, port), payload in rows:
            writer.write(int(minute * MINUTE_NS), group, port, payload)
    return path


ONE, TWO, THREE = update(1, "X"), update(2, "X"), update(3, LONG)
BEAT = sealed(b"35=0|34=3|")
#: Messages with a field that has no value, behind the instruments that they name.
FAULTY = sealed(f"35=X|34=1|55={LONG}|58=|".encode())
SEVERAL_FAULTY = sealed(b"35=X|34=2|268=2|279=0|55=X|279=0|55=Y|58=|")
#: What a capture has, and what each instrument weighs by that.
FIX_CAPTURES = {
    "both lines, one message lost on A": (
        [(1, A, ONE), (1, B, ONE), (1, B, TWO)],
        {"X": len(ONE) + len(TWO)},
    ),
    "each line lost one": (
        [(1, A, ONE), (1, B, TWO), (1, B, update(3, "Y"))],
        {"X": len(TWO), "Y": len(ONE)},
    ),
    "several messages and a heartbeat in a datagram": (
        [(1, A, BEAT + ONE + THREE), (1, A, update(4, LONGER) + BEAT)],
        {"X": len(ONE), LONG: len(THREE), LONGER: len(update(4, LONGER))},
    ),
    "a message of several instruments, one of them twice": (
        [(1, A, update(1, "X", LONG, "X"))],
        {"X": len(update(1, "X", LONG, "X")) // 2, LONG: -(-len(update(1, "X", LONG, "X")) // 2)},
    ),
    "what is no FIX, and what names nothing": (
        [(1, A, b"hello"), (1, A, sealed(b"35=B|34=1|148=x|")), (1, A, ONE)],
        {"X": len(ONE)},
    ),
    "messages that have a fault behind their instruments": (
        [(1, A, FAULTY + SEVERAL_FAULTY)],
        {
            LONG: len(FAULTY),
            "X": len(SEVERAL_FAULTY) // 2,
            "Y": -(-len(SEVERAL_FAULTY) // 2),
        },
    ),
    "the same instrument on another group": (
        [(1, A, ONE), (1, OTHER, ONE + TWO)],
        {"X": len(ONE) + len(TWO)},
    ),
}


@pytest.mark.parametrize("case", FIX_CAPTURES)
def test_a_fix_capture_is_measured_message_by_message(case: str, tmp_path: Path) -> None:
    rows, wanted = FIX_CAPTURES[case]
    meter = VolumeMeter(FIX)
    for batch in Capture(capture_of(tmp_path / "a.pcap", rows)).batches():
        meter.add(batch)
    assert {each.symbol: each.volume for each in meter.volumes()} == wanted
    assert bool(meter.rejected) == bool(meter.unnamed_bytes) == case.startswith("what is no FIX")


def test_the_busiest_minute_is_printed_with_what_had_nothing_in_it(tmp_path: Path) -> None:
    y = update(3, "Y")
    rows = [(1.0, A, ONE), (2.1, A, TWO), (2.9, A, y), (2.5, B, TWO), (3.5, A, THREE)]
    meter = VolumeMeter(FIX)
    for batch in Capture(capture_of(tmp_path / "a.pcap", rows)).batches():
        meter.add(batch)
    found = {each.symbol: each.volume for each in meter.busiest_volumes()}
    assert found == {"X": len(TWO), "Y": len(y), LONG: 0}
    assert meter.busiest_ns == 2 * MINUTE_NS


def test_instruments_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "INSTRUMENTS_MAX", 2)
    meter = VolumeMeter(FIX)
    rows = [(1, A, update(1, name)) for name in "XYZ"]
    (batch,) = Capture(capture_of(tmp_path / "a.pcap", rows)).batches()
    with pytest.raises(UsageError, match="more than 2 instruments"):
        meter.add(batch)


def test_what_the_heaviest_instrument_allows_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"S{n}" for n in range(30)]
    rows = [(1, A, update(n, name)) for n, name in enumerate(names, 1)]
    rows += [(2, A, update(n, "HEAVY")) for n in range(31, 61)]
    path = capture_of(tmp_path / "a.pcap", rows)
    assert make_plan(Options(path, "fix-marketdata", channels=2)) == 0
    said = capsys.readouterr()
    assert "60 messages on all lines" in said.err
    assert "in the busiest minute, 00:02 UTC: 2.00 of the mean" in said.err
    assert make_plan(Options(path, "fix-marketdata")) == 1
    said = capsys.readouterr()
    assert "HEAVY alone weighs" in said.err
    assert "--channels 2 at most" in said.err
    assert make_plan(Options(path, "fix-marketdata", channels=2, busiest=True)) == 1
    assert "over the whole capture: " in capsys.readouterr().err


def test_what_is_before_a_damage_is_planned_and_the_damage_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture_of(tmp_path / "a.pcap", [(1, A, update(n, f"S{n}")) for n in range(1, 31)])
    path.write_bytes(path.read_bytes() + b"\xff" * 64)
    assert make_plan(Options(path, "fix-marketdata", channels=2)) == 1
    said = capsys.readouterr()
    assert "30 messages on all lines" in said.err
    assert "damaged at byte" in said.err
    assert len(parse_channels(said.out, "plan").channels) == 2


@pytest.mark.parametrize(
    ("weights", "most"),
    [((10, 10), 2), ((10, 1), 1), ((2, 2, 2, 2, 4), 3), ((0, 0), 1024), ((), 1024)],
)
def test_no_more_channels_than_the_heaviest_allows(weights: tuple[int, ...], most: int) -> None:
    assert channels_at_most(Volume("", str(n), each) for n, each in enumerate(weights)) == most


def test_another_feeds_capture_is_refused_with_the_feed_that_fits(tmp_path: Path) -> None:
    path = capture_of(tmp_path / "a.pcap", [(1, A, ONE)])
    with pytest.raises(UsageError, match="no messages of euronext-utp-md") as error:
        make_plan(Options(path, "euronext-utp-md"))
    assert "--feed fix-marketdata" in error.value.hint


def test_a_share_of_other_volumes_is_that_of_their_channels(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"{rng.randrange(10**6):06}" for _ in range(200)]
    day = [Volume("", name, rng.randint(0, 100)) for name in dict.fromkeys(names)]
    planned = plan(day, 7)
    assert planned.heaviest_of(day) == planned.heaviest
    minute = [each._replace(volume=rng.randint(0, 9)) for each in day]
    loads: Counter[int] = Counter()
    listed = {name for share in planned.shares for name in share.symbols.get("", ())}
    for each in minute:
        [at] = [
            at for at, share in enumerate(planned.shares)
            if (
                each.symbol in share.symbols.get("", ())
                if each.symbol in listed else share.carries("", each.symbol)
            )
        ]  # fmt: skip
        loads[at] += each.volume
    assert planned.heaviest_of(minute) == Fraction(max(loads.values()) * 7, sum(loads.values()))
