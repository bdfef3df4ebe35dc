"""A tree for tests of the overlay, and datagrams as its members send them."""

from feedhandler.overlay.topology import Member, Role, Shape, Topology
from feedhandler.overlay.topology_file import generate
from feedhandler.overlay.wire import Kind, encode

#: D = 2, F = 3, H = 1 over 6 receivers: ports 1 (sender), 2 to 4 (proxies), 5 to 10.
SHAPE = Shape(2, 3, 1, 6)
EPOCH = 1_000


def tree(shape: Shape = SHAPE, number: int = 7) -> Topology:
    """A topology whose members have addresses of one host, by port."""
    members = sum(shape.widths) + 1
    return generate(shape, [("10.0.0.1", port) for port in range(1, members + 1)], number)


def member(topology: Topology, role: Role, at: int = 0) -> Member:
    """A member by its role."""
    return [each for each in topology.members if each.role is role][at]


def data(
    topology: Topology,
    id: int,
    payload: bytes = b"payload",
    epoch: int = EPOCH,
    sent_ns: int = 0,
    deadline_ns: int = 0,
    kind: Kind = Kind.DATA,
) -> bytes:
    """A datagram of the sender's."""
    body = payload if kind is Kind.DATA else b""
    return encode(kind, topology.tree, epoch, id, sent_ns, deadline_ns, body, topology.key)


def control(
    topology: Topology,
    member: Member,
    kind: Kind,
    payload: bytes,
    id: int = 1,
    epoch: int = EPOCH,
    sent_ns: int = 0,
) -> bytes:
    """A control datagram of a member's."""
    return encode(kind, topology.tree, epoch, id, sent_ns, 0, payload, member.key)
