"""`feedhandler feeds`: the list and one feed beside the commands, `check` and `new`."""

import gc
import json
import struct
import tomllib
from pathlib import Path

import pytest

from feedhandler.codecs import list_feeds, load_feed
from feedhandler.ops.feeds.beginning import FRAMINGS
from tests.support.checkout import CHECKOUT
from tests.support.commands import Done, run_here

FEEDS = CHECKOUT / "codecs" / "feeds"


def refused(*words: str, code: int = 2) -> str:
    """The one line with which the command refuses, with that exit code."""
    done = run_here("feeds", *words)
    assert done.returncode == code, done
    assert done.stderr.startswith("feedhandler: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def pcap(path: Path, *payloads: bytes) -> Path:
    """Write a capture of UDP datagrams over Ethernet."""
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
    for payload in payloads:
        udp = struct.pack(">HHHH", 1, 2, 8 + len(payload), 0) + payload
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 4, 17, 0,
                         b"\x7f\0\0\1", b"\xef\1\1\1")  # fmt: skip
        frame = b"\1\0\x5e\1\1\1" + bytes(6) + b"\x08\0" + ip + udp
        data += struct.pack("<IIII", 1, 0, len(frame), len(frame)) + frame
    path.write_bytes(data)
    return path


# -- the group ----------------------------------------------------------------------------------


def test_the_help_shows_every_command() -> None:
    text = run_here("feeds", "--help").stdout
    assert all(f"\n  {word} " in text for word in ("show", "check", "new", "import"))
    for word in ("show", "check", "new", "import"):
        assert "Example" in run_here("feeds", word, "--help").stdout


@pytest.mark.parametrize("words", [["iex-deep"], ["show", "iex-deep"], ["--json", "iex-deep"]])
def test_a_word_that_is_no_command_names_a_feed(words: list[str]) -> None:
    done = run_here("feeds", *words)
    assert done.returncode == 0
    assert "price_level_update_buy" in done.stdout
    assert run_here("feeds", str(FEEDS / "iex-deep.toml")).returncode == 0


def test_without_a_word_the_feeds_are_listed() -> None:
    listed = [json.loads(line) for line in run_here("feeds", "--json").stdout.splitlines()]
    assert [each["name"] for each in listed] == list_feeds()
    assert run_here("feeds", "show", "--json").stdout == run_here("feeds", "--json").stdout


# -- new ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_new_description_loads_as_it_is_and_has_its_packets_read(
    framing: str, tmp_path: Path
) -> None:
    gc.collect()  # feeds of tests before, which have the same number
    path = tmp_path / "venue.toml"
    done = run_here("feeds", "new", "venue", "--framing", framing, "--out", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert f"feeds check {path} CAPTURE" in path.read_text()
    feed = load_feed(path)
    assert (feed.name, feed.number) == ("venue", 1000)
    layout = next(iter(feed.layouts.values()))[0]
    record = layout.record(**{f.name: None for f in layout.named if f.null is not None})
    message = feed.encode_message(record)
    assert feed.decode_message(message).layout is layout
    before = path.read_text()
    again = run_here("feeds", "new", "venue", "--framing", framing, "--out", str(path))
    assert again.returncode == 2
    assert "is there already (name another file with --out)" in again.stderr
    assert path.read_text() == before


def test_a_new_description_goes_to_stdout_when_asked() -> None:
    done = run_here("feeds", "new", "venue", "--framing", "sbe", "--out", "-")
    assert tomllib.loads(done.stdout)["name"] == "venue"
    assert done.stderr == ""


# -- check --------------------------------------------------------------------------------------

VENUES = {
    "asx-ntp-itch-1.05": "asx-ntp-itch",
    "cboe-byx-pitch-2.41": "cboe-byx-pitch",
    "iex-tops-1.6": "iex-tops",
    "nasdaq-totalview-itch-5.0": "nasdaq-totalview-itch",
    "nyse-integrated-pillar-2.5": "nyse-integrated-pillar",
}


@pytest.mark.parametrize(("folder", "name"), VENUES.items())
def test_real_packets_fit_their_feed(venues: Path, folder: str, name: str) -> None:
    done = run_here("feeds", "check", name, str(venues / folder / "packets.pcap"), "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["misfits"]) == (0, [])
    assert report["packets"] == report["fitting"] > 0
    assert report["types"]


def test_a_limit_ends_a_real_capture(captures: Path) -> None:
    path = str(next((captures / "iex").glob("*.pcap.gz")))
    done = run_here("feeds", "check", "iex-deep", path, "--limit", "50")
    assert done.returncode == 0
    assert done.stdout.endswith("50 of 50 packets fit iex-deep\n")
    assert "messages that no packet had: " in done.stdout


def test_the_first_packet_that_does_not_fit_is_shown_with_its_bytes(venues: Path) -> None:
    path = str(venues / "memx-memoir-1.3" / "packets.pcap")
    done = run_here("feeds", "check", "memx-memoir", path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "unknown packet type: 1, the first:",
        "  packet 9, MessageType at byte 0: 48, expected one of 0, 1, 2",
    ]
    assert lines[2].startswith("       0>30 30 30 30 31")
    assert lines[-2:] == [
        "9 of 10 packets fit memx-memoir",
        "packets whose number does not follow the one before: 8, the first in packet 2: "
        "number 5,421,722, expected 1,435,792",
    ]


def test_packets_of_another_feed_are_reported_by_its_name(venues: Path) -> None:
    path = str(venues / "memx-memoir-1.3" / "packets.pcap")
    assert "most packets do not fit iex-tops (they fit memx-memoir)" in refused(
        "check", "iex-tops", path, code=1
    )


def checked(tmp_path: Path, changes: dict[str, str], *messages: bytes) -> Done:
    """Check a description of MoldUDP64 with those changes against packets of one message each."""
    gc.collect()
    text = run_here("feeds", "new", "venue", "--framing", "moldudp64", "--out", "-").stdout
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "venue.toml"
    path.write_text(text)
    packets = [
        struct.pack(">10sQHH", b"S", n, 1, len(message)) + message
        for n, message in enumerate(messages, 1)
    ]
    return run_here("feeds", "check", str(path), str(pcap(tmp_path / "day.pcap", *packets)))


ORDER = b"A" + struct.pack(">QQc8sIq3x", 1, 2, b"B", b"MILL", 3, 4)


@pytest.mark.parametrize(
    ("changes", "message", "code", "reason"),
    [
        ({}, ORDER, 0, "1 of 1 packets fit venue"),
        ({}, ORDER + b"xy", 0, f"add_order        1    {len(ORDER) + 4}                     1"),
        ({}, b"Z" + ORDER[1:], 1, f"'Z', of {len(ORDER) + 2} bytes, expected one of A"),
        ({}, ORDER[:20], 1, "length at byte 20: 22 bytes"),
        ({}, ORDER.replace(b"B", b"?"), 0, "values of add_order.side without a meaning: ? (1)"),
        ({}, ORDER.replace(b"B", b"\x1b"), 0, "values of add_order.side without a meaning: . (1)"),
        ({'"x3"': '"x4"'}, ORDER, 1, f"length at byte 20: {len(ORDER) + 2} bytes"),
        ({"header_size = 20\n": "header_size = 21\n"}, ORDER, 1, "0 of 1 packets fit venue"),
        ({'"A"\nname = "add': '"Q"\nname = "add'}, ORDER, 1, "messages that no packet had: Q add"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_reported_by_field_value_and_expectation(
    tmp_path: Path, changes: dict[str, str], message: bytes, code: int, reason: str
) -> None:
    done = checked(tmp_path, changes, message)
    assert done.returncode == code, done
    assert reason in done.stdout, done.stdout


def test_parts_that_no_message_had_are_reported(tmp_path: Path) -> None:
    part = '[[messages.parts]]\ngroup = "legs"\ncount = { type = "u8" }\n'
    part += 'fields = [{ type = "u32", name = "Qty" }]\n'
    part += '[[messages.parts.parts]]\ngroup = "fills"\ncount = { type = "u8" }\n'
    part += 'fields = [{ type = "u8", name = "Fill" }]\n'
    part += '[[messages.parts]]\ntext = "note"\nlength = "u8"\n'
    changes = {"# The full time": part + "# The full time"}
    asked = "groups and parts that no message had: "
    nothing, leg, fill = b"\0", b"\1" + bytes(4) + b"\0", b"\1" + bytes(4) + b"\1\7"
    done = checked(tmp_path, changes, ORDER + nothing + b"\0")
    assert f"{asked}add_order.legs, add_order.note\n" in done.stdout
    done = checked(tmp_path, changes, ORDER + leg + b"\0", ORDER + nothing + b"\2hi")
    assert f"{asked}add_order.legs.fills\n" in done.stdout
    done = checked(tmp_path, changes, ORDER + fill + b"\2hi")
    assert asked not in done.stdout
    done = checked(tmp_path, changes, b"Z" + ORDER[1:])
    assert asked not in done.stdout


def test_control_packets_that_never_came_are_reported(tmp_path: Path) -> None:
    feed = load_feed("euronext-utp-md")
    response = feed.encode_packet(kind="control", packet_type=10, body=bytes(28))
    path = pcap(tmp_path / "day.pcap", response)
    done = run_here("feeds", "check", "euronext-utp-md", str(path))
    line = next(x for x in done.stdout.splitlines() if x.startswith("control packets that never "))
    assert "20 retransmission_request" in line
    assert "10 " not in line
    report = json.loads(run_here("feeds", "check", feed.name, str(path), "--json").stdout)
    never = {layout.name for layout in feed.controls.values() if layout.label != 10}
    assert set(report["unused_controls"]) == never


def test_misfits_that_differ_by_a_number_are_one_kind(tmp_path: Path) -> None:
    part = '[[messages.parts]]\ngroup = "legs"\ncount = { type = "u8" }\n'
    part += 'fields = [{ type = "u32", name = "Qty" }]\n'
    changes = {"# The full time": part + "# The full time"}
    cut = [ORDER + bytes([3]) + bytes(4 * whole) for whole in range(3)]
    done = checked(tmp_path, changes, *cut)
    assert done.returncode == 1
    assert done.stdout.count(", the first:") == 1
    assert "ends inside element N of N of legs: 3, the first:" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"u64", name = "OrderId"', '"u65", name = "OrderId"', "unknown type 'u65'"),
        ("conflate =", "conflat =", "did you mean conflate?"),
        ("[message]", "[message", "venue.toml:"),
    ],
)
def test_a_description_that_does_not_load_is_one_line(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    done = checked(tmp_path, {old: new}, ORDER)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def doubts_of(tmp_path: Path, changes: dict[str, str], *messages: bytes) -> list[str]:
    """The lines behind the result of a check in which all packets fit."""
    done = checked(tmp_path, changes, *messages)
    assert done.returncode == 0, done
    result = f"{len(messages)} of {len(messages)} packets fit venue\n"
    assert result in done.stdout, done.stdout
    return done.stdout.partition(result)[2].splitlines()


def test_numbers_that_do_not_follow_one_another_are_reported_behind_the_result(
    tmp_path: Path,
) -> None:
    changes = {'"SequenceNumber", counts': '"MessageCount", counts'}
    assert doubts_of(tmp_path, {}, ORDER, ORDER) == []
    assert doubts_of(tmp_path, changes, ORDER, ORDER, ORDER) == [
        "packets whose number does not follow the one before: 2, the first in packet 2: number 1, "
        "expected 2"
    ]


def test_times_far_from_the_captures_own_are_reported(tmp_path: Path) -> None:
    later = ORDER.replace(struct.pack(">Q", 1), struct.pack(">Q", 10**18))
    assert doubts_of(tmp_path, {}, ORDER, later, later) == [
        "messages whose time is more than a day from the capture's: 2, the first in packet 2, "
        "message 1: event_time_ns 2001-09-09 01:46:40 UTC, expected about 1970-01-01 00:00:01 UTC"
    ]


@pytest.mark.parametrize(
    "part",
    [
        'dimensions = "sizes"\nfields = [{ type = "u32", name = "Quantity" }]\n',
        'count = { type = "u16" }\nelement_length = { field = "Bytes" }\n'
        'fields = [{ type = "u8", name = "Bytes" }, { type = "u24", name = "Quantity" }]\n',
    ],
)
def test_elements_that_are_shorter_than_described_are_reported(tmp_path: Path, part: str) -> None:
    sizes = '[dimensions.sizes]\nsize = 2\nblock_length = { at = 0, type = "u8" }\n'
    sizes += 'count = { at = 1, type = "u8" }\n\n[message]\n'
    text = '[[messages.parts]]\ntext = "note"\nlength = "u8"\n'
    changes = {
        "\n[message]\n": f"\n{sizes}",
        "# The full time": f'{text}[[messages.parts]]\ngroup = "legs"\n{part}# The full time',
    }
    cut = (
        bytes([1, 65]) + (bytes([2, 2]) if "sizes" in part else bytes([0, 2])) + bytes([2, 0, 2, 0])
    )
    assert doubts_of(tmp_path, changes, ORDER + cut) == [
        "elements that are shorter than described: 2, the first in packet 1, message 1: legs at "
        f"byte {20 + 2 + len(ORDER) + 4}: 2 bytes, expected 4"
    ]


def test_a_capture_without_packets_is_one_line(tmp_path: Path) -> None:
    path = pcap(tmp_path / "empty.pcap")
    assert "no packets" in refused("check", "iex-deep", str(path), code=1)


def test_a_capture_that_is_cut_short_is_reported(tmp_path: Path) -> None:
    path = pcap(tmp_path / "day.pcap", bytes(100), bytes(100))
    path.write_bytes(path.read_bytes()[:-10])
    done = run_here("feeds", "check", "iex-deep", str(path), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["packets"] == 1
    assert "all before it was read" in done.stderr


@pytest.mark.parametrize("whole", [0, 1])
def test_what_is_before_a_damage_is_checked_and_the_damage_is_found(
    tmp_path: Path, whole: int
) -> None:
    path = pcap(tmp_path / "day.pcap", *[bytes(100)] * whole)
    path.write_bytes(path.read_bytes() + b"\xff" * 64)
    done = run_here("feeds", "check", "iex-deep", str(path))
    assert done.returncode == 1
    assert "damaged at byte" in done.stderr
    assert "all before it was read" in done.stderr
    assert ("0 of 1 packets fit iex-deep" in done.stdout) == bool(whole)
