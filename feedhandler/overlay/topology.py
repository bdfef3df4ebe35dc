"""The tree of an overlay: its shape, who sends to whom, and the cost model that chooses a shape.

Layer 0 are the sender's children, the last layer the receivers: depth D is the number of hops from
the sender to a receiver, fan-out F the children of the sender and of every proxy above the last
layer of proxies, over which the receivers are spread evenly (section 4). With hedging H a node has
as sources its parent and the H siblings before it, wrapping in the layer (section 5.1). Nodes of
layer 0 have the sender alone.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from feedhandler.codecs.errors import UsageError

Address = tuple[str, int]

#: The source's fan-out (section 4).
FAN_OUT = 10
#: Hops that the planner considers; a tenth one has 10^10 receivers at F = 10.
DEPTH_MAX = 9
#: Members of a tree: what a topology file and its reader are to bear. The source emulates 5,000.
MEMBERS_MAX = 20_000
#: Tree numbers are 16 bits on the wire.
TREE_MAX = (1 << 16) - 1


class Role(enum.StrEnum):
    """Roles of members."""

    SENDER = "sender"
    PROXY = "proxy"
    RECEIVER = "receiver"


class Place(NamedTuple):
    """Layer and index of a node; the sender is at layer -1."""

    layer: int
    index: int  # type: ignore[assignment]


SENDER_PLACE = Place(-1, 0)


class Shape(NamedTuple):
    """Depth D, fan-out F, hedging H and the number of receivers of a tree."""

    depth: int
    fan_out: int
    hedge: int
    receivers: int

    def check(self) -> "Shape":
        """The shape, where it is one of a tree. Raises `UsageError` with the remedy."""
        depth, fan_out, hedge, receivers = self
        if receivers < 1 or not 1 <= depth <= DEPTH_MAX or fan_out < 1 or hedge < 0:
            raise UsageError(
                f"depth {depth}, fan-out {fan_out}, hedge {hedge}, {receivers} receivers: no tree",
                f"depth is 1 to {DEPTH_MAX}, fan-out and receivers 1 or more, hedge 0 or more",
            )
        if self.last_proxies > receivers:
            raise UsageError(
                f"{self.last_proxies} proxies above {receivers} receivers: some have no children",
                "take a smaller depth or fan-out",
            )
        if depth > 1 and hedge >= fan_out:
            raise UsageError(
                f"hedge {hedge} with a fan-out of {fan_out}: a layer has too few siblings",
                f"take at most {fan_out - 1}",
            )
        if sum(self.widths) > MEMBERS_MAX:
            raise UsageError(
                f"a tree of {sum(self.widths)} members; {MEMBERS_MAX} are the most",
                "make several trees, sharded by channel",
            )
        return self

    @property
    def last_proxies(self) -> int:
        """Nodes of the layer above the receivers; 1, the sender, where depth is 1."""
        return int(self.fan_out ** (self.depth - 1))

    @property
    def widths(self) -> list[int]:
        """Nodes of each layer, from 0."""
        return [self.fan_out ** (layer + 1) for layer in range(self.depth - 1)] + [self.receivers]

    @property
    def goodput(self) -> float:
        """The share of what a proxy sends that goes to its own children (section 5.3)."""
        return goodput(self.hedge)

    def parent(self, place: Place) -> Place:
        """A node's parent."""
        layer, index = place
        if layer <= 0:
            return SENDER_PLACE
        if layer == self.depth - 1:
            return Place(layer - 1, index * self.last_proxies // self.receivers)
        return Place(layer - 1, index // self.fan_out)

    def sources(self, place: Place) -> list[Place]:
        """The nodes that send to this one, its parent first."""
        layer, index = self.parent(place)
        if layer < 0:
            return [SENDER_PLACE]
        width = self.widths[layer]
        return [Place(layer, (index - behind) % width) for behind in range(self.hedge + 1)]

    def own_children(self, place: Place) -> list[Place]:
        """The nodes whose parent this one is."""
        layer, index = place
        below = layer + 1
        if below >= self.depth:
            return []
        if layer < 0:
            return [Place(0, each) for each in range(self.widths[0])]
        if below == self.depth - 1:
            first, end = (-(-at * self.receivers // self.last_proxies) for at in (index, index + 1))
        else:
            first, end = index * self.fan_out, (index + 1) * self.fan_out
        return [Place(below, each) for each in range(first, end)]

    def children(self, place: Place) -> list[Place]:
        """The nodes that this one sends to: its own, then those of its H next siblings."""
        layer, index = place
        found = self.own_children(place)
        if layer >= 0 and found:
            for ahead in range(1, self.hedge + 1):
                found += self.own_children(Place(layer, (index + ahead) % self.widths[layer]))
        return found


class Member(NamedTuple):
    """A process of the tree. `key` seals what it says to its neighbours; b"": not ours to know."""

    name: str
    role: Role
    layer: int
    index: int  # type: ignore[assignment]
    address: Address
    key: bytes

    @property
    def place(self) -> Place:
        """Its place in the tree."""
        return Place(self.layer, self.index)


class Topology:
    """A tree with its members, read-only. A change is another topology with a higher version.

    Raises `UsageError` where members are missing, twice at a place, a name or an address, or at
    places that the shape does not have.
    """

    def __init__(
        self, version: int, tree: int, shape: Shape, key: bytes, members: Iterable[Member]
    ) -> None:
        self.version, self.tree, self.shape, self.key = version, tree, shape.check(), key
        self.members = tuple(members)
        if not 0 <= tree <= TREE_MAX:
            raise UsageError(f"tree {tree}: not a tree's number", f"it is 0 to {TREE_MAX}")
        self._check()

    def _check(self) -> None:
        widths = self.shape.widths
        last = self.shape.depth - 1
        for member in self.members:
            layer, index = member.place
            role = Role.SENDER if layer < 0 else Role.RECEIVER if layer == last else Role.PROXY
            width = widths[layer] if 0 <= layer <= last else 1 if layer == -1 else 0
            if not 0 <= index < width or member.role is not role:
                raise UsageError(
                    f"member {member.name}: a {member.role} at layer {layer}, index {index}",
                    "the tree's shape has no such place for it",
                )
        total = sum(widths) + 1
        for what, found in (("place", self.by_place), ("name", self.by_name)):
            if len(found) != total or len(self.members) != total:
                raise UsageError(
                    f"{len(found)} members by {what}, of {len(self.members)}, in a tree of {total}",
                    "every place has one member, with a name of its own",
                )
        if len(self.by_address) != total:
            raise UsageError("two members have one address", "give each its own port")

    @cached_property
    def by_place(self) -> dict[Place, Member]:
        """The members by their place."""
        return {each.place: each for each in self.members}

    @cached_property
    def by_name(self) -> dict[str, Member]:
        """The members by name."""
        return {each.name: each for each in self.members}

    @cached_property
    def by_address(self) -> dict[Address, Member]:
        """The members by address."""
        return {each.address: each for each in self.members}

    def member(self, name: str) -> Member:
        """The member with that name. Raises `UsageError` where there is none."""
        if name not in self.by_name:
            raise UsageError(f"no member {name!r} in tree {self.tree}", "see the topology file")
        return self.by_name[name]

    def sources(self, member: Member) -> list[Member]:
        """The members that send to this one, its parent first; of the sender none."""
        if member.layer < 0:
            return []
        return [self.by_place[each] for each in self.shape.sources(member.place)]

    def children(self, member: Member) -> list[Member]:
        """The members that this one sends data to: its own children, then those it hedges."""
        return [self.by_place[each] for each in self.shape.children(member.place)]

    def own_children(self, member: Member) -> list[Member]:
        """The members whose parent this one is: they report to it."""
        return [self.by_place[each] for each in self.shape.own_children(member.place)]

    def replaced(self, name: str, address: Address, key: bytes) -> "Topology":
        """The next version, in which a member is another process at another address."""
        old = self.member(name)
        if key == old.key:
            raise UsageError(
                f"member {name}: the key of the one that it replaces", "make a new key for it"
            )
        new = old._replace(address=address, key=key)
        members = (new if each is old else each for each in self.members)
        return Topology(self.version + 1, self.tree, self.shape, self.key, members)


# -- which shape -----------------------------------------------------------------------------------


class LinearCost(NamedTuple):
    """Latency of a tree as a linear model, in us: the source's (section 4) where not fitted."""

    level_us: float = 30.0
    child_us: float = 2.7

    def cost_us(self, depth: int, fan_out: int, receivers: int) -> float:
        """The latency of the tree's last receiver."""
        last = -(-receivers // int(fan_out ** (depth - 1)))
        return depth * self.level_us + ((depth - 1) * fan_out + last) * self.child_us

    def best(self, receivers: int) -> tuple[int, int]:
        """Depth and fan-out of the lowest cost; of equal ones, the shallowest."""
        costs = [(self.cost_us(1, receivers, receivers), 1, receivers)]
        for depth in range(2, DEPTH_MAX + 1):
            for fan_out in range(2, receivers + 1):
                if fan_out ** (depth - 1) > receivers:
                    break
                costs.append((self.cost_us(depth, fan_out, receivers), depth, fan_out))
        _, depth, fan_out = min(costs)
        return depth, fan_out


def fit(rows: Sequence[tuple[int, int, float]]) -> LinearCost:
    """The linear model of measured (depth, fan-out, latency in us), by least squares.

    Raises `UsageError` where the rows do not determine both costs.
    """
    dd = sum(d * d for d, _, _ in rows)
    dc = sum(d * d * f for d, f, _ in rows)
    cc = sum(d * d * f * f for d, f, _ in rows)
    dy = sum(d * y for d, _, y in rows)
    cy = sum(d * f * y for d, f, y in rows)
    determinant = dd * cc - dc * dc
    if not determinant:
        raise UsageError(
            f"{len(rows)} measurements do not tell a level's cost from a child's",
            "measure trees of at least two fan-outs",
        )
    return LinearCost((dy * cc - cy * dc) / determinant, (dd * cy - dc * dy) / determinant)


def plan_shape(
    receivers: int,
    hedge: int = 1,
    depth: int = 0,
    fan_out: int = 0,
    cost: LinearCost | None = None,
) -> Shape:
    """The shape for so many receivers: as given, else the cost model's, else F = 10 and
    D = round(log10 N). Raises `UsageError` for what is no tree."""
    if receivers < 1:
        raise UsageError(f"{receivers} receivers", "a tree has at least one")
    if cost is not None and not depth and not fan_out:
        depth, fan_out = cost.best(receivers)
    depth = depth or max(1, round(math.log10(receivers)))
    fan_out = fan_out or (FAN_OUT if depth > 1 else receivers)
    if depth == 1:
        fan_out, hedge = receivers, 0
    return Shape(depth, fan_out, hedge, receivers).check()


# -- several trees ---------------------------------------------------------------------------------


def goodput(hedge: int, trees: int = 1) -> float:
    """What is left of a proxy's throughput for its own children, over so many trees with the same
    root and leaves: 1 / (H + 1) of each tree's (section 5.3)."""
    return trees / (hedge + 1)


def trees_for_whole_goodput(hedge: int) -> int:
    """Trees that make up for what hedging takes: H more than one."""
    return hedge + 1


def shard(channels: Sequence[str], trees: int, by: str = "channel") -> dict[str, tuple[int, ...]]:
    """The trees that carry each channel.

    By `channel` each one has a single tree, in turn. By `number` every channel has all of them:
    the overlay numbers messages across the trees, and tree `number % trees` carries one. By
    `symbol` is refused with `UsageError`: a service numbers the messages of all its symbols in one
    row, and trees have no common order.
    """
    if trees < 1:
        raise UsageError(f"{trees} trees", "one or more")
    if by == "number":
        return {each: tuple(range(trees)) for each in channels}
    if by != "channel":
        raise UsageError(
            f"trees sharded by {by} would break a service's numbering, which spans its symbols",
            "shard by channel, or have the overlay number what it carries (by number)",
        )
    return {each: (at % trees,) for at, each in enumerate(channels)}
