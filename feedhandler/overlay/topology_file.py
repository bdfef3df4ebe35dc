"""Topologies as TOML files.

    version = 1
    tree = 1
    depth = 2
    fan_out = 10
    hedging = 1
    key = "9f0c..."            # what data are sealed with, 64 hexadecimal digits

    [[member]]
    name = "sender"
    address = "10.0.0.5:7000"
    key = "51d2..."            # what the member seals its reports with

then the proxies, layer by layer, and the receivers, in the order of their indexes. The file has all
keys, so only its owner may read it (mode 0600). Faults are reported with their line.
"""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from feedhandler.addresses import split_address
from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError, unwritable
from feedhandler.codecs.toml_text import WrongKey, convert, parse_as, read_text
from feedhandler.overlay.merging import check_trees
from feedhandler.overlay.topology import Address, Member, Topology, roles_of
from feedhandler.overlay.tree import Shape
from feedhandler.private_files import FILE_MODE
from feedhandler.replacing import replacing

Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class _Member(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]
    address: str
    key: Key


class _File(Struct, frozen=True, kw_only=True):
    version: Annotated[int, Meta(ge=1)]
    tree: Annotated[int, Meta(ge=0, le=65535)]
    depth: int
    fan_out: int
    hedging: int = 0
    key: Key
    member: Annotated[tuple[_Member, ...], Meta(min_length=2)]


def address_of(text: str) -> Address:
    """Split `host:port`. Raises `ConfigError` where it is not of that form."""
    try:
        return split_address(text, port_min=1)
    except ValueError:
        hint = "give host:port, such as 10.0.0.5:7000"
        raise ConfigError(f"{text!r} is no address", hint) from None


def check_host(host: str, hint: str = "members have addresses, not names") -> None:
    """Check that `host` is an IPv4 address. Raises `UsageError`."""
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise UsageError(f"{host!r} is no IPv4 address", hint) from None


def ipv4_address_of(text: str) -> Address:
    """Split as `address_of`, where the host is an IPv4 address: datagrams are matched by it.

    Raises `ConfigError`.
    """
    host, port = address_of(text)
    try:
        return str(ipaddress.IPv4Address(host)), port
    except ValueError:
        raise ConfigError(f"{host!r} is no IPv4 address", "give an address, not a name") from None


def read_topology(path: Path) -> Topology:
    """Read the topology in a file. Raises `ConfigError` with the line that is wrong."""
    return parse_topology(read_text(path, "`feedhandler overlay plan` makes one"), str(path))


def read_trees(paths: Sequence[Path]) -> list[Topology]:
    """Read topologies of trees that one sender numbers over (`merging`). Raises `ConfigError`."""
    topologies = [read_topology(path) for path in paths]
    try:
        check_trees(topologies)
    except ConfigError as error:
        raise ConfigError(f"{paths[0]} and others: {error.message}", error.hint) from None
    return topologies


def receiving_member(paths: Sequence[str], name: str) -> tuple[list[Topology], Member]:
    """Read topologies and return them with their receiver of that name. Raises `ConfigError`."""
    topologies = read_trees([Path(path) for path in paths])
    try:
        me = topologies[0].member(name)
    except FeedhandlerError as error:
        raise ConfigError(f"{paths[0]}: {error.message}", error.hint) from None
    if me.role != "receiver":
        raise ConfigError(
            f"{paths[0]}: {name} is a {me.role}", "a line comes to a receiver, such as receiver-0"
        )
    return topologies, me


def parse_topology(text: str, source: str) -> Topology:
    """Parse a topology as `read_topology`, from a text that `source` names."""

    def make(values: dict[str, Any]) -> Topology:
        try:
            return _topology(convert(values, _File))
        except FeedhandlerError as error:
            raise ConfigError(f"{source}: {error.message}", error.hint) from None

    return parse_as(text, source, "topology", make)


def _topology(file: _File) -> Topology:
    proxies = sum(file.fan_out**n for n in range(1, min(file.depth, 9)))
    shape = Shape(max(len(file.member) - 1 - proxies, 0), file.depth, file.fan_out, file.hedging)
    members = []
    for at, ((_, role, layer, index), each) in enumerate(
        zip(roles_of(shape), file.member, strict=True)
    ):
        try:
            address = ipv4_address_of(each.address)
        except ConfigError as error:
            raise WrongKey(("member", at, "address"), error.message, error.hint) from None
        key = bytes.fromhex(each.key)
        members.append(Member(each.name, role, layer, index, address, key))
    return Topology(file.version, file.tree, shape, bytes.fromhex(file.key), tuple(members))


def topology_text(topology: Topology) -> str:
    """Return a topology as the text of its file."""
    shape = topology.shape
    lines = [
        f"# {shape.receivers} receivers, {shape.proxies} proxies; goodput {shape.goodput:.0%}",
        f"version = {topology.version}",
        f"tree = {topology.tree}",
        f"depth = {shape.depth}",
        f"fan_out = {shape.fan_out}",
        f"hedging = {shape.hedging}",
        f'key = "{topology.key.hex()}"',
    ]
    for member in topology.members:
        host, port = member.address
        lines += ["", "[[member]]", f'name = "{member.name}"', f'address = "{host}:{port}"',
                  f'key = "{member.key.hex()}"']  # fmt: skip
    return "\n".join(lines) + "\n"


def write_topology(topology: Topology, path: Path) -> None:
    """Write the file, readable by its owner only; an existing one is replaced atomically.

    Raises `UsageError`, `HostFault`.
    """
    try:
        with replacing(path, FILE_MODE) as beside:
            beside.write_text(topology_text(topology), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None
