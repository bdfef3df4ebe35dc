"""Topology of a tree: members with addresses and keys, and whom each sends to.

A topology is one tree's shape (`tree.Shape`) with a member in each role: the sender, the proxies
layer by layer, and the receivers. It is the same for all members; `version` rises with each change,
and a running member takes a new one as long as shape, tree and its own position are the same.
`topology_file` reads and writes files.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.overlay.tree import Shape

Role = Literal["sender", "proxy", "receiver"]
#: Host and port.
Address = tuple[str, int]
SENDER = "sender"


@dataclass(frozen=True, slots=True)
class Member:
    """One member. `layer` and `index` are its position: layer -1 is the sender's."""

    name: str
    role: Role
    layer: int
    index: int
    address: Address
    key: bytes


def roles_of(shape: Shape) -> list[tuple[str, Role, int, int]]:
    """Return name, role, layer and index of all members of a shape, in order."""
    last = shape.depth - 1
    found: list[tuple[str, Role, int, int]] = [(SENDER, "sender", -1, 0)]
    for layer, width in enumerate(shape.widths[:-1]):
        found += [(f"proxy-{layer}-{n}", "proxy", layer, n) for n in range(width)]
    found += [(f"receiver-{n}", "receiver", last, n) for n in range(shape.receivers)]
    return found


@dataclass(frozen=True, slots=True)
class Topology:
    """One version of a tree's topology; see the module.

    Raises `ConfigError` where members do not fill the shape's positions, or share a name or an
    address.
    """

    version: int
    tree: int
    shape: Shape
    key: bytes
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        wanted = [position[1:] for position in roles_of(self.shape)]
        there = [(member.role, member.layer, member.index) for member in self.members]
        if there != wanted:
            odd = next((i for i, each in enumerate(there) if each not in wanted[i : i + 1]), None)
            which = "a member is missing" if odd is None else f"{self.members[odd].name} is not it"
            raise ConfigError(
                f"members do not fill a tree of {self.shape.receivers} receivers, depth"
                f" {self.shape.depth}, fan-out {self.shape.fan_out}: {which}",
                "`feedhandler overlay plan` makes a topology",
            )
        for what, all_of in (
            ("name", [member.name for member in self.members]),
            ("address", [member.address for member in self.members]),
        ):
            (most, times), *_ = Counter(all_of).most_common(1)
            if times > 1:
                raise ConfigError(f"{times} members have the {what} {most}", "give each its own")

    def member(self, name: str) -> Member:
        """Return the member with that name. Raises `UsageError` where there is none."""
        for member in self.members:
            if member.name == name:
                return member
        raise UsageError(
            f"no member {name} in this topology",
            f"there are {self.members[0].name} to {self.members[-1].name}",
        )

    def at(self, layer: int, index: int) -> Member:
        """Return the member in a position."""
        widths = (1, *self.shape.widths)
        return self.members[sum(widths[: layer + 1]) + index]

    def sources(self, member: Member) -> list[Member]:
        """Return the members that send to a member, its parent first; none for the sender."""
        if member.layer < 0:
            return []
        numbers = self.shape.sources(member.layer, member.index)
        return [self.at(member.layer - 1, number) for number in numbers]

    def children(self, member: Member) -> list[Member]:
        """Return the members whose parent a member is."""
        if member.role == "receiver":
            return []
        numbers = self.shape.children(member.layer, member.index)
        return [self.at(member.layer + 1, number) for number in numbers]

    def targets(self, member: Member) -> list[Member]:
        """Return the members that a member sends to: its children, then those it hedges for."""
        if member.role == "receiver":
            return []
        numbers = self.shape.targets(member.layer, member.index)
        return [self.at(member.layer + 1, number) for number in numbers]

    def replaced(self, name: str, address: Address, key: bytes) -> "Topology":
        """Return the next version, with another machine for a member."""
        gone = self.member(name)
        members = tuple(
            replace(member, address=address, key=key) if member is gone else member
            for member in self.members
        )
        return replace(self, version=self.version + 1, members=members)

    def succeeds(self, before: "Topology", name: str) -> str:
        """Return why a running member cannot take this in place of `before`; "" where it can."""
        if self.tree != before.tree or self.shape != before.shape:
            return "it is another tree"
        if self.version <= before.version:
            return f"its version {self.version} is not above {before.version}"
        if self.member(name) != before.member(name):
            return f"{name} is another machine there"
        return ""


def make_topology(
    shape: Shape, tree: int, addresses: Sequence[Address], keys: Iterable[bytes]
) -> Topology:
    """Make a first version, with members at these addresses in the order of `roles_of`.

    `keys` gives the tree's key, then one for each member. Raises `UsageError` where addresses are
    too few.
    """
    roles = roles_of(shape)
    if len(addresses) < len(roles):
        raise UsageError(
            f"{len(roles)} members, and {len(addresses)} addresses", "give one for each"
        )
    drawn = iter(keys)
    key = next(drawn)
    members = tuple(
        Member(name, role, layer, index, address, next(drawn))
        for (name, role, layer, index), address in zip(roles, addresses, strict=False)
    )
    return Topology(1, tree, shape, key, members)
