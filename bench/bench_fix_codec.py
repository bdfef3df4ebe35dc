"""FIX messages framed, indexed and written, beside simplefix, QuickFIX, fix-codec-rs and a copy.

The load is book updates (MarketDataIncrementalRefresh) of 150 to 400 bytes with one to three
entries, in FIX 4.4. Framing finds every message in a buffer, checks BodyLength and CheckSum and
reads the header; the ceiling beside it copies the same bytes. The full index holds each field
against the dictionary. QuickFIX (C++, Debian's libquickfix-dev) parses and validates the same bytes
with the same dictionary; fix-codec-rs (crates) decodes without one; simplefix is Python. A peer
that is not to be had here is left out, with the reason. Medians of many passes, one core.
"""

import random
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy

from bench.processes import median_rate
from feedhandler.codecs import load_feed
from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.encode import MessageWriter, encode
from feedhandler.codecs.fix.entries import EntryColumns
from feedhandler.codecs.fix.framing import Frame, frame_all
from feedhandler.codecs.fix.index import FieldIndex, count_messages
from feedhandler.codecs.fix.reasons import REJECT_COUNT
from feedhandler.market.fix_normaliser import FixNormaliser
from tests.support.fix_xml import as_xml

#: The bars: bytes a second framed, and the index in times of each peer's messages a second.
FRAMING_BYTES_MIN = 1_000_000_000
PEER_BARS = {"quickfix": 4.0, "simplefix": 50.0, "fix_codec_rs": 0.5}

MESSAGES = 4_000
SECONDS = 5.0
QUICK_SECONDS = 1.0
BUILD_SECONDS_MAX = 240
SEED = 1
PEERS = Path(__file__).with_name("fix_peers")
SMOKE: dict[str, object] = {"MESSAGES": 200, "QUICK_SECONDS": 0.05, "BUILD_SECONDS_MAX": 0}


class Absent(Exception):
    """A peer that is not to be had here; the text says why."""


def make_messages(count: int) -> list[bytes]:
    """Return `count` book updates, with changing symbols, prices and numbers of entries."""
    source = random.Random(SEED)
    messages = []
    for number in range(1, count + 1):
        entries = []
        for _ in range(source.choice((1, 2, 2, 3))):
            entries.append(
                [
                    (279, source.choice("012")),
                    (269, source.choice("01")),
                    (278, source.randrange(10**8)),
                    (55, f"SYM{source.randrange(400):03}"),
                    (270, f"{source.randrange(1, 10**6) / 100:.2f}"),
                    (271, source.randrange(1, 10**5)),
                    (273, f"09:30:{source.randrange(60):02}.{source.randrange(1000):03}"),
                    (290, source.randrange(1, 11)),
                ]
            )
        head: list[Any] = [(35, "X"), (49, "EXCHANGE"), (56, "TOPIC.1"), (34, number)]
        head += [(52, "20260102-09:30:00.123456"), (262, "request-1"), (268, entries)]
        messages.append(encode(head, b"FIX.4.4"))
    return messages


def framing(messages: list[bytes], seconds: float) -> dict[str, Any]:
    """Return bytes a second that are framed, and that are copied."""
    data = b"".join(messages)
    begins = numpy.zeros(len(messages), numpy.uint32)
    numbers = numpy.zeros(len(messages), numpy.uint64)
    frame = Frame()

    def work() -> int:
        assert frame_all(data, 0, len(data), frame, begins, numbers) == len(messages)
        return len(data)

    source, copy = numpy.frombuffer(data, numpy.uint8), numpy.empty(len(data), numpy.uint8)

    def ceiling() -> int:
        numpy.copyto(copy, source)
        return len(data)

    rate, copied = median_rate(work, seconds), median_rate(ceiling, seconds / 4)
    return {
        "bytes_per_s": rate,
        "messages_per_s": rate * len(messages) / len(data),
        "bar_bytes_per_s": FRAMING_BYTES_MIN,
        "copy_bytes_per_s": copied,
        "share_of_copy": rate / copied,
    }


def indexing(messages: list[bytes], seconds: float) -> tuple[float, float]:
    """Return messages a second into the full index, and into columns of entries."""
    data = b"".join(messages)
    table = load_dictionary("fix44").table
    frame, index = Frame(), FieldIndex(table)
    columns = EntryColumns(table, 4 * len(messages))
    rejects = numpy.zeros(REJECT_COUNT, numpy.uint64)

    def work() -> int:
        assert count_messages(table, data, 0, len(data), frame, index, rejects) == len(data)
        return len(messages)

    def entries() -> int:
        columns.clear()
        assert columns.decode(data, 0, len(data), rejects) == len(data)
        return len(messages)

    found = median_rate(work, seconds), median_rate(entries, seconds / 2)
    assert int(rejects[0]) == int(rejects.sum()), "a message was refused"
    return found


def writing(count: int, seconds: float) -> float:
    """Return messages of two entries a second that are written, field by field."""
    writer = MessageWriter(b"FIX.4.4")

    def work() -> int:
        for number in range(count):
            writer.begin(b"X")
            writer.put_fields(b"49=EXCHANGE\x0156=TOPIC.1\x01")
            writer.put_number(34, number)
            writer.put_time(52, 1_767_323_045_678_901_234, 6)
            writer.put_number(268, 2)
            for side in (b"0", b"1"):
                writer.put_bytes(279, b"0")
                writer.put_bytes(269, side)
                writer.put_bytes(55, b"SYM001")
                writer.put_decimal(270, 123_450 + number, 2)
                writer.put_number(271, 100)
            writer.finish()
        return count

    return median_rate(work, seconds)


def normalising(messages: list[bytes], seconds: float) -> float:
    """Return messages a second that become normalised records, of two entries each."""
    feed = load_feed("fix-marketdata")
    normaliser = FixNormaliser(feed)
    code = feed.type_code("X")

    def work() -> int:
        made = 0
        for number, message in enumerate(messages):
            made += normaliser.message(message, 0, len(message), code, 1, 2, number, 1)
            normaliser.clear()
        assert made >= len(messages), "entries made no records"
        return len(messages)

    return median_rate(work, seconds)


def simplefix_rate(messages: list[bytes], seconds: float) -> float:
    """Return messages a second that simplefix parses. Raises `Absent` where it is not installed."""
    try:
        import simplefix
    except ImportError:
        raise Absent("simplefix is not installed (pip install simplefix)") from None
    some = messages[:200]

    def work() -> int:
        parser = simplefix.FixParser()
        for message in some:
            parser.append_buffer(message)
            assert parser.get_message() is not None
        return len(some)

    return median_rate(work, seconds)


def build(command: list[str], folder: Path) -> None:
    """Run a compiler. Raises `Absent` where it fails, or may take no time at all."""
    if not BUILD_SECONDS_MAX:
        raise Absent("not compiled in this run")
    if shutil.which(command[0]) is None:
        raise Absent(f"no {command[0]}")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise Absent(f"{command[0]} took more than {BUILD_SECONDS_MAX} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["it failed"]
        raise Absent(f"{command[0]}: {lines[0][:200]}")


def quickfix_command(folder: Path) -> list[str]:
    """Compile QuickFIX's side; how it is started."""
    (folder / "dictionary.xml").write_text(as_xml(load_dictionary("fix44")))
    source = str(PEERS / "quickfix.cpp")
    options = ["-O2", "-std=c++11", "-w", "-o", "quickfix", source, "-lquickfix", "-lpthread"]
    build(["g++", *options], folder)
    return [str(folder / "quickfix"), str(folder / "dictionary.xml")]


def fix_codec_rs_command(folder: Path) -> list[str]:
    """Compile fix-codec-rs' side; how it is started."""
    (folder / "src").mkdir(exist_ok=True)
    shutil.copy(PEERS / "fix_codec.rs", folder / "src" / "main.rs")
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "fix_codec"\nversion = "0.0.0"\nedition = "2024"\n'
        '[dependencies]\nfix-codec-rs = "=0.3.0"\n'
    )
    build(["cargo", "build", "--release", "--quiet"], folder)
    return [str(folder / "target" / "release" / "fix_codec")]


def program_rate(command: list[str], messages: list[bytes], folder: Path, seconds: float) -> float:
    """Return messages a second of a compiled peer."""
    file = folder / "messages"
    file.write_bytes(b"".join(struct.pack("<I", len(each)) + each for each in messages))
    done = subprocess.run(
        [*command, str(file), str(seconds)], capture_output=True, text=True, check=True
    )
    count, refused, took = done.stdout.split()
    if int(refused):
        raise Absent(f"it refused {refused} of {count} messages: {done.stderr.strip()[:200]}")
    return int(count) / float(took)


def peers(messages: list[bytes], seconds: float) -> dict[str, Any]:
    """Return each peer's messages a second, or why it is left out."""
    found: dict[str, Any] = {}
    for name, command_of in (
        ("simplefix", None),
        ("quickfix", quickfix_command),
        ("fix_codec_rs", fix_codec_rs_command),
    ):
        try:
            if command_of is None:
                found[name] = {"messages_per_s": simplefix_rate(messages, seconds)}
                continue
            with tempfile.TemporaryDirectory() as made:
                command = command_of(Path(made))
                rate = program_rate(command, messages, Path(made), seconds)
                found[name] = {"messages_per_s": rate}
        except Absent as reason:
            found[name] = {"skipped": str(reason)}
    return found


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all figures of this file, JSON-ready; print them as it goes."""
    seconds = QUICK_SECONDS if quick else SECONDS
    messages = make_messages(MESSAGES)
    sizes = [len(message) for message in messages]
    framed = framing(messages, seconds)
    print(
        f"  framing        {framed['bytes_per_s'] / 1e9:8.2f} GB/s (bar 1, goal 3),"
        f" {framed['share_of_copy']:.0%} of copying; messages of {min(sizes)} to {max(sizes)} bytes"
    )
    indexed, columns = indexing(messages, seconds)
    written = writing(MESSAGES, seconds / 2)
    print(f"  full index     {indexed / 1e6:8.2f} million messages/s, all checks")
    print(f"  into columns   {columns / 1e6:8.2f} million messages/s")
    print(f"  written        {written / 1e6:8.2f} million messages/s, from Python")
    normalised = normalising(messages, seconds / 2)
    print(f"  into records   {normalised / 1e6:8.3f} million messages/s, normalised")
    others = peers(messages, seconds)
    for name, figures in others.items():
        if "skipped" in figures:
            print(f"  {name:14} left out: {figures['skipped']}")
            continue
        figures["index_times"] = indexed / figures["messages_per_s"]
        figures["bar_times"] = PEER_BARS[name]
        print(
            f"  {name:14} {figures['messages_per_s'] / 1e6:8.3f} million messages/s;"
            f" the index is {figures['index_times']:.1f} times that (bar {PEER_BARS[name]:g})"
        )
    return {
        "framing": framed,
        "index": {"messages_per_s": indexed},
        "columns": {"messages_per_s": columns},
        "written": {"messages_per_s": written},
        "records": {"messages_per_s": normalised},
        "peers": others,
    }
