"""Shared by tests of feed descriptions: layout tables as text, packets put together again, decodes.

A layout table is text such as `4+4 source_time  8+2 reserved_1`: offset, size and name of each
field. A text decode is what a dissector printed of a real packet: `Name: value` lines, indented.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dpkt

from feedhandler.codecs import Feed, Field, Layout, PacketKind, Record
from feedhandler.codecs.layouts import Block, record_values

# -- layout tables ------------------------------------------------------------------------------


def plain(name: str) -> str:
    """A field name without what sources differ in: case, underscores, kinds of reserved fields."""
    name = name.replace("_", "").replace(" ", "").lower()
    return "reserved" if re.match("reserved|filler|$", name) else name


def table(text: str) -> list[tuple[int, int, str]]:
    """(offset, size, name) of each field in a layout table."""
    rows = re.findall(r"(\d+)\+(\d+) (\w+)", text)
    return [(int(at), int(size), plain(name)) for at, size, name in rows]


def described(block: Block) -> list[tuple[int, int, str]]:
    """The same of a described layout."""
    return [(each.at, each.size, plain(each.wire)) for each in block.fields]


def covers(block: Block, begin: int) -> bool:
    """Return whether the fields leave no byte out between `begin` and the block's end."""
    at = begin
    for each in block.fields:
        if each.at != at:
            return False
        at += each.size
    return at == block.size


def every_layout(feed: Feed) -> list[Layout]:
    return [layout for ways in feed.layouts.values() for layout in ways]


def reencode(feed: Feed, data: bytes) -> bytes:
    """The packet put together again from what decoding it gave; the length is reckoned anew."""
    packet = feed.decode_packet(data)
    kinds = feed.description.packet.kind
    length = feed.description.packet.length.field
    names = {each.name for each in feed.header.named if each.wire != length}
    body = b""
    if packet.control is not None:
        layout = packet.control.layout
        assert isinstance(layout, Layout)
        body = feed.encode_control(layout.code, **record_values(packet.control))
    return feed.encode_packet(
        kind=packet.kind if kinds else PacketKind.DATA,
        messages=[feed.encode_message(message) for message in packet.messages],
        body=body,
        header={name: value for name, value in packet.header.items() if name in names},
    )


# -- real packets and their text decodes --------------------------------------------------------


@dataclass
class Node:
    """One line of a text decode, with the lines below it."""

    key: str
    value: str
    nodes: list["Node"] = field(default_factory=list)

    def find(self, ending: str) -> list["Node"]:
        """The nodes right below whose key ends so."""
        return [node for node in self.nodes if node.key.endswith(ending)]

    def values(self) -> dict[str, str]:
        """The values right below, by plain name; of several reserved fields the first."""
        values: dict[str, str] = {}
        for node in self.nodes:
            if not node.nodes:
                values.setdefault(plain(node.key), node.value)
        return values


def read_decode(path: Path) -> Node:
    """The tree of a text decode."""
    root = Node("", "")
    open_nodes = [(-1, root)]
    for line in path.read_text(encoding="latin-1").splitlines():
        depth = len(line) - len(line.lstrip(" "))
        key, _, value = line[depth:].partition(":")
        if not line.strip() or key.startswith("["):
            continue
        node = Node(key, value[1:])  # only the first blank is the dissector's own
        while open_nodes[-1][0] >= depth:
            open_nodes.pop()
        open_nodes[-1][1].nodes.append(node)
        open_nodes.append((depth, node))
    return root.nodes[0]


def read_packets(path: Path) -> Iterator[tuple[int, bytes]]:
    """(capture time in ns since 1970, UDP payload) of each packet in a pcap file."""
    with path.open("rb") as file:
        for seconds, frame in dpkt.pcap.Reader(file):
            ethernet = dpkt.ethernet.Ethernet(frame)
            yield round(seconds * 1_000_000) * 1_000, bytes(ethernet.data.data.data)


def read_packet(path: Path) -> tuple[int, bytes]:
    """The only packet of a pcap file."""
    (packet,) = read_packets(path)
    return packet


def decoded_as(given: Field, text: str) -> Any:
    """Return a field's value in the text decode, in the form that the record has it."""
    if text.startswith("Unknown("):  # the dissector found no name; here that is a NUL
        return ""
    inner = re.search(r"\((.*)\)$", text)
    value = inner[1] if inner else text
    value = " " if value == "<whitespace>" else value
    if given.kind == "c":
        return value if given.size == 1 else value.strip(" ")
    if re.fullmatch("-?[0-9]+", value) and plain(given.wire) != "reserved":
        return int(value)
    if re.fullmatch("[0-9a-f]{2}", value):
        return int(value, 16)
    return {name.lower(): int(code) for code, name in given.values.items()}[value.lower()]


def check_header(header: Mapping[str, Any], node: Node, names: Mapping[str, str]) -> None:
    """Hold a packet's header against its text decode; `names`: its fields by their titles there."""
    values = node.values()
    for title, attribute in names.items():
        number = values[plain(title)].rsplit("(")[-1].strip(")")
        assert header[attribute] == int(number), title


def check_against_decode(record: Record, node: Node, passed: Iterable[str] = ()) -> None:
    """Every field of the record has the value that the text decode tells, and the decode tells no
    other field but those in `passed`."""
    values = node.values()
    wire = {plain(name): value for name, value in record.wire().items()}
    described = {plain(each.wire): each for each in record.layout.named}
    for name, each in described.items():
        assert wire[name] == decoded_as(each, values[name]), f"{record.layout.name}.{name}"
    assert values.keys() - described.keys() <= {"reserved", *passed}
