"""Topology files: a tree and its members' keys in TOML, readable by their owner alone.

    version = 1             rises with every change; members take a higher one only
    tree = 0
    depth = 2               D, F, H of the tree; the number of receivers is that of its members
    fan_out = 2
    hedge = 1
    key = "..."             32 bytes in hex: seals data and heartbeats

    [[member]]
    name = "proxy-0-0"
    role = "proxy"
    layer = 0
    index = 0
    address = "10.0.0.7:7000"
    key = "..."             seals what it says to its neighbours

`excerpt` is the file for one member: others' keys are left out but its neighbours'. The tree's key
is symmetric, so each member could forge data with it; only its own children would take them.
"""

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from feedhandler.codecs.errors import ConfigError, UsageError, unwritable
from feedhandler.codecs.toml_text import KeyLines, WrongKey, convert, parse_toml, path_text
from feedhandler.overlay.topology import (
    MEMBERS_MAX,
    SENDER_PLACE,
    Address,
    Member,
    Place,
    Role,
    Shape,
    Topology,
)
from feedhandler.overlay.wire import KEY_BYTES
from feedhandler.private_files import FILE_MODE, openness

#: Bytes of a file that are read: 200 a member.
FILE_BYTES_MAX = 400 * MEMBERS_MAX
VERSION_MAX = (1 << 32) - 1

_Hex = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")]
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")]


class _MemberText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: _Name
    role: Role
    layer: Annotated[int, Meta(ge=-1, le=16)]
    index: Annotated[int, Meta(ge=0, lt=MEMBERS_MAX)]
    address: str
    key: _Hex = ""


class _TreeText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)]
    tree: Annotated[int, Meta(ge=0, lt=1 << 16)]
    depth: Annotated[int, Meta(ge=1, le=16)]
    fan_out: Annotated[int, Meta(ge=1, le=MEMBERS_MAX)]
    hedge: Annotated[int, Meta(ge=0, le=MEMBERS_MAX)]
    key: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    member: Annotated[list[_MemberText], Meta(max_length=MEMBERS_MAX + 1)]


def new_key() -> bytes:
    """A key of 32 random bytes."""
    return secrets.token_bytes(KEY_BYTES)


def parse_address(text: str) -> Address:
    """Host and port of "host:port". Raises `UsageError`."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 1 << 16:
        raise UsageError(f"{text!r} is no address", "write it as 10.0.0.7:7000")
    return host.strip("[]"), int(port)


def address_text(address: Address) -> str:
    """An address as files have it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def generate(
    shape: Shape, addresses: Sequence[Address], tree: int = 0, version: int = 1
) -> Topology:
    """A tree with new keys. `addresses` are the sender's, then the proxies' from layer 0 on, then
    the receivers'. Raises `UsageError` where there are too few or too many."""
    places = [SENDER_PLACE]
    for layer, width in enumerate(shape.check().widths):
        places += [Place(layer, index) for index in range(width)]
    if len(addresses) != len(places):
        raise UsageError(
            f"{len(addresses)} addresses for a tree of {len(places)} members",
            f"1 sender, {len(places) - 1 - shape.receivers} proxies, {shape.receivers} receivers",
        )
    members = (
        Member(default_name(shape, place), _role(shape, place), *place, address, new_key())
        for place, address in zip(places, addresses, strict=True)
    )
    return Topology(version, tree, shape, new_key(), members)


def _role(shape: Shape, place: Place) -> Role:
    if place.layer < 0:
        return Role.SENDER
    return Role.RECEIVER if place.layer == shape.depth - 1 else Role.PROXY


def default_name(shape: Shape, place: Place) -> str:
    """The name that `generate` gives: sender, proxy-LAYER-INDEX, receiver-INDEX."""
    names = {
        Role.SENDER: "sender",
        Role.PROXY: f"proxy-{place.layer}-{place.index}",
        Role.RECEIVER: f"receiver-{place.index}",
    }
    return names[_role(shape, place)]


def render(topology: Topology) -> str:
    """The text of a topology's file."""
    shape = topology.shape
    head = (
        f"version = {topology.version}\ntree = {topology.tree}\ndepth = {shape.depth}\n"
        f"fan_out = {shape.fan_out}\nhedge = {shape.hedge}\n"
        f'key = "{topology.key.hex()}"\n'
    )
    return head + "".join(_member_lines(topology.members))


def _member_lines(members: Iterable[Member]) -> Iterable[str]:
    for each in members:
        key = f'key = "{each.key.hex()}"\n' if each.key else ""
        yield (
            f'\n[[member]]\nname = "{each.name}"\nrole = "{each.role}"\nlayer = {each.layer}\n'
            f'index = {each.index}\naddress = "{address_text(each.address)}"\n{key}'
        )


def parse(text: str, source: str = "topology") -> Topology:
    """The topology in a file's text. Raises `ConfigError`, or `UsageError` for what is no tree."""
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{source}: longer than {FILE_BYTES_MAX} bytes", "no topology file is")
    values = parse_toml(text, source, "topology file")
    try:
        said = convert(values, _TreeText)
    except WrongKey as error:
        line = KeyLines(text)[error.path]
        raise ConfigError(
            f"{source}:{line}: {path_text(error.path)}: {error.reason}", error.hint
        ) from None
    receivers = sum(each.role is Role.RECEIVER for each in said.member)
    return Topology(
        said.version,
        said.tree,
        Shape(said.depth, said.fan_out, said.hedge, receivers),
        bytes.fromhex(said.key),
        [
            Member(
                each.name, each.role, each.layer, each.index, parse_address(each.address),
                bytes.fromhex(each.key),
            )
            for each in said.member
        ],
    )  # fmt: skip


def load(path: Path) -> Topology:
    """The topology in a file. Raises `ConfigError` where it cannot be read, is open to others, or
    is not right."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}", "`feedhandler overlay plan` writes one"
        ) from None
    if others := openness(path):
        raise ConfigError(f"{path}: has keys, and is open to {others}", f"chmod 600 {path}")
    return parse(text, str(path))


def save(path: Path, topology: Topology) -> None:
    """Write the file whole or not at all, for its owner alone. Raises `FeedhandlerError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, FILE_MODE), "w") as file:
            file.write(render(topology))
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def excerpt(topology: Topology, name: str) -> Topology:
    """The topology as one member needs it: with the keys of itself and its neighbours only."""
    own = topology.member(name)
    near = {own.name}
    for each in (*topology.sources(own), *topology.children(own)):
        near.add(each.name)
    members = (each if each.name in near else each._replace(key=b"") for each in topology.members)
    return Topology(topology.version, topology.tree, topology.shape, topology.key, members)
