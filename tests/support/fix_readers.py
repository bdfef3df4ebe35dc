"""FIX datagrams as other programs read them: tshark, QuickFIX/J, simplefix; and as we do.

A flat reading is a list of (tag, value) in their order; a tree is a dictionary by tag, whose values
are bytes, or lists of such dictionaries where the field counts the entries of a group.
"""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import xml.etree.ElementTree
from pathlib import Path
from typing import Any, NamedTuple

import simplefix

from feedhandler.codecs.fix.dictionary import Dictionary
from feedhandler.codecs.fix.framing import Frame, frame_message
from feedhandler.codecs.fix.index import FieldIndex, read_message
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.foreign_clients import java_command
from tests.support.needs import absent

Flat = list[tuple[int, bytes]]
Tree = dict[int, Any]
#: Longer than a busy machine takes.
PATIENCE_S = 120
PORT = 9880
#: Ethernet, IPv4 and TCP before a segment's bytes.
HEADERS_BYTES = 14 + 20 + 20
#: BodyLength and CheckSum of a message without MsgSeqNum are ours to find, too.
_READ = (FixReject.FINE, FixReject.SEQUENCE_MISSING)


def our_messages(datagram: bytes) -> list[bytes]:
    """The datagram's messages, by our framing."""
    frame, found, at = Frame(), [], 0
    while at < len(datagram):
        verdict = FixReject(frame_message(datagram, at, len(datagram) - at, frame))
        assert verdict in _READ, verdict
        found.append(datagram[at : frame.end])
        at = frame.end
    return found


def our_reading(dictionary: Dictionary, message: bytes) -> tuple[Flat, Tree]:
    """A message's fields, and the same with groups within groups."""
    frame, index = Frame(), FieldIndex(dictionary.table)
    reason = FixReject(read_message(dictionary.table, message, 0, len(message), frame, index))
    assert reason in (FixReject.FINE, FixReject.UNKNOWN_TYPE), (reason, message)
    return index.fields(message), _tree(index.tree(message))


def _tree(fields: list[tuple[int, Any]]) -> Tree:
    return {
        tag: [_tree(each) for each in value] if isinstance(value, list) else value
        for tag, value in fields
    }


def simplefix_reading(datagram: bytes) -> list[Flat]:
    """The datagram's messages by simplefix."""
    parser, found = simplefix.FixParser(), []
    parser.append_buffer(datagram)
    while message := parser.get_message():
        found.append([(int(tag), value) for tag, value in message.pairs])
    assert not parser.buf
    return found


def quickfixj_reading(datagrams: list[bytes]) -> list[list[Tree]]:
    """The messages of each datagram by QuickFIX/J; skips where it is not installed."""
    command = java_command("quickfixj")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(struct.pack(">I", len(each)) + each for each in datagrams))
        file.flush()
        done = subprocess.run(
            [*command.words, file.name],
            env={**os.environ, **command.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    return [[_from_hex(each) for each in json.loads(line)] for line in done.stdout.splitlines()]


def _from_hex(fields: dict[str, Any]) -> Tree:
    return {
        int(tag): [_from_hex(each) for each in value]
        if isinstance(value, list)
        else bytes.fromhex(value)
        for tag, value in fields.items()
    }


class Dissected(NamedTuple):
    """A message by tshark: which bytes of its datagram it is, its fields, is its CheckSum right."""

    at: int
    size: int
    fields: Flat
    checksum_good: bool


def tshark_reading(datagrams: list[bytes]) -> list[list[Dissected]]:
    """The messages of each datagram by tshark; skips where it is not installed.

    Wireshark reads FIX in TCP alone, so each datagram is a segment there.
    """
    program = shutil.which("tshark")
    if program is None:
        absent("clients", "tshark is not installed (apt-get install tshark)")
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "datagrams.pcap"
        _write_segments(capture, datagrams)
        done = subprocess.run(
            [program, "-n", "-r", str(capture), "-d", f"tcp.port=={PORT},fix", "-T", "pdml"],
            env={**os.environ, "HOME": folder},
            capture_output=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr.decode()
    return [_dissected(packet) for packet in xml.etree.ElementTree.fromstring(done.stdout)]


def _write_segments(path: Path, datagrams: list[bytes]) -> None:
    """A capture of one TCP connection that has a segment for each datagram."""
    sequence = 1
    with CaptureWriter(path) as writer:
        for number, datagram in enumerate(datagrams):
            tcp = struct.pack(">HHIIBBHHH", 40_000, PORT, sequence, 1, 5 << 4, 0x18, 1 << 15, 0, 0)
            ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(datagram), 0, 0, 64, 6, 0)
            ip += bytes([10, 0, 0, 1, 10, 0, 0, 2])
            frame = bytes(12) + b"\x08\x00" + ip + tcp + datagram
            writer.write_frame((number + 1) * 1_000_000, frame)
            sequence += len(datagram)


def _dissected(packet: xml.etree.ElementTree.Element) -> list[Dissected]:
    found = []
    for proto in packet.iterfind("proto[@name='fix']"):
        fields, good = [], False
        for field in proto.iterfind("field"):
            tag, _, value = bytes.fromhex(field.get("value", "")).partition(b"=")
            if tag.isdigit():
                fields.append((int(tag), value.removesuffix(b"\x01")))
            good |= field.find("field[@name='fix.checksum_good'][@show='1']") is not None
        at, size = int(proto.get("pos", "0")), int(proto.get("size", "0"))
        found.append(Dissected(at - HEADERS_BYTES, size, fields, good))
    return found
