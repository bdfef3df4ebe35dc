"""The overlay's datagrams: a header of 56 bytes, a payload, and the seal over both.

All integers are little-endian. `seal` is a keyed BLAKE2b of 16 bytes over the first 40 bytes of the
header and the payload: with the tree's key for data and heartbeats, which proxies forward byte for
byte, and with the sending member's key for the kinds that two neighbours exchange. In those `id` is
the member's own counter, which rises with each datagram (see `admission`).

Everything here raises `WireError` for what is no datagram of the overlay, and nothing else.
"""

import enum
import hashlib
import hmac
import struct
from typing import NamedTuple

MAGIC = b"OV"
VERSION = 1
#: What fits, with IP and UDP, in an Ethernet frame of 1,500 bytes, and leaves room for a tunnel.
PAYLOAD_BYTES_MAX = 1_400
HEADER = struct.Struct("<2sBBHHQQqq16s")
HEADER_BYTES = HEADER.size
#: Bytes of the header that the seal covers: all before the seal itself.
SEALED_BYTES = 40
SEAL_BYTES = 16
KEY_BYTES = 32
DATAGRAM_BYTES_MAX = HEADER_BYTES + PAYLOAD_BYTES_MAX
#: Positions that forwarding in the kernel and in C reads.
KIND_AT, TREE_AT, LENGTH_AT, EPOCH_AT, ID_AT, SENT_AT, DEADLINE_AT = 3, 4, 6, 8, 16, 24, 32

_FIELDS = struct.Struct("<2sBBHHQQqq")
_VERSION_NUMBER = struct.Struct("<I")
_ANSWER = struct.Struct("<qq")
_REPORT = struct.Struct("<IQHBB")
_LAST_HOP = struct.Struct("<II")


class WireError(ValueError):
    """Bytes that are no datagram of the overlay, or a payload that is not what its kind wants."""


class Kind(enum.IntEnum):
    """Kinds of datagram."""

    DATA = 1
    HEARTBEAT = 2  #: a data header without payload: id is the last one that was sent
    REPORT = 3  #: child to parent: delays and lateness
    PROBE = 4  #: child to parent: asks for the time
    PROBE_ANSWER = 5
    HELLO = 6  #: child to parent: it is there
    WELCOME = 7  #: parent to child: its answer
    LAST_HOP = 8  #: latencies of last hops: up their maximum so far, down that of all


KINDS = {int(kind): kind for kind in Kind}
#: Kinds that are sealed with the tree's key; the others with their sender's.
TREE_KINDS = frozenset({Kind.DATA, Kind.HEARTBEAT})


class Header(NamedTuple):
    """A datagram's header; times in ns."""

    kind: Kind
    tree: int
    length: int
    epoch: int
    id: int
    sent_ns: int
    deadline_ns: int
    seal: bytes


def compute_seal(key: bytes, datagram: bytes | memoryview) -> bytes:
    """The seal that a datagram must have under `key`; what stands in its place is not read."""
    digest = hashlib.blake2b(datagram[:SEALED_BYTES], digest_size=SEAL_BYTES, key=key)
    digest.update(datagram[HEADER_BYTES:])
    return digest.digest()


def is_sealed(key: bytes, datagram: bytes | memoryview) -> bool:
    """Whether the datagram's seal is the one of `key`, compared in constant time."""
    found = datagram[SEALED_BYTES:HEADER_BYTES]
    return hmac.compare_digest(compute_seal(key, datagram), found)


def encode(
    kind: Kind,
    tree: int,
    epoch: int,
    id: int,
    sent_ns: int,
    deadline_ns: int,
    payload: bytes,
    key: bytes,
) -> bytes:
    """A sealed datagram. Raises `WireError` where the payload or a field does not fit."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise WireError(f"a payload of {len(payload)} bytes; {PAYLOAD_BYTES_MAX} are the most")
    try:
        head = _FIELDS.pack(
            MAGIC, VERSION, kind, tree, len(payload), epoch, id, sent_ns, deadline_ns
        )
    except struct.error as error:
        raise WireError(f"a field that does not fit: {error}") from None
    digest = hashlib.blake2b(head, digest_size=SEAL_BYTES, key=key)
    digest.update(payload)
    return b"".join((head, digest.digest(), payload))


def read_header(datagram: bytes | memoryview) -> Header:
    """The header of a datagram, whose seal is yet to be verified.

    Raises `WireError` for another magic, version or kind, a length that is not the datagram's, an
    id of 0 but in a heartbeat (nothing was sent yet), and a heartbeat with a payload.
    """
    size = len(datagram)
    if size < HEADER_BYTES:
        raise WireError("shorter than a header")
    magic, version, number, tree, length, epoch, id, sent_ns, deadline_ns, seal = (
        HEADER.unpack_from(datagram)
    )
    kind = KINDS.get(number)
    if magic != MAGIC or version != VERSION or kind is None:
        raise WireError("another magic, version or kind")
    header = Header(kind, tree, length, epoch, id, sent_ns, deadline_ns, seal)
    if header.length != size - HEADER_BYTES or header.length > PAYLOAD_BYTES_MAX:
        raise WireError("a length that is not the datagram's")
    if kind is Kind.HEARTBEAT:
        if header.length:
            raise WireError("a heartbeat with a payload")
    elif not header.id:
        raise WireError("an id of 0")
    return header


def payload_of(datagram: bytes) -> memoryview:
    """The payload, not copied."""
    return memoryview(datagram)[HEADER_BYTES:]


# -- payloads of control kinds ---------------------------------------------------------------------

#: Levels of the quantiles that a report has, in hundredths of a percent; the last is the maximum.
#: Several, so that the sender can choose among them without another round up the tree.
QUANTILE_LEVELS = (5_000, 9_000, 9_500, 9_900, 9_990, 10_000)
#: Ids that a report judges: one bit each. 1,024 are 0.2 s of the source's 5,000 messages a second.
REPORT_IDS_MAX = 1_024
#: Outliers that a report names.
OUTLIERS_MAX = 8
#: The longest delay that a report can say: 4.29 s.
DELAY_NS_MAX = (1 << 32) - 1


class Report(NamedTuple):
    """Delays and lateness of a subtree, merged (section 6).

    receivers     how many receivers it speaks for
    quantiles_ns  maximum over the receivers of each quantile of `QUANTILE_LEVELS`
    first         the first id that it judges; 0: it judges none
    count         how many ids it judges
    late          bit i set: at some receiver, message first + i came after its deadline. One that
                  is lost is recovery's matter, as no hold would have helped. A bitmap instead of
                  a count, as its union up the tree is exact: it says of each message whether all
                  had it in time.
    outliers      receivers whose report was set apart, by index in the last layer
    """

    receivers: int
    quantiles_ns: tuple[int, ...]
    first: int = 0
    count: int = 0  # type: ignore[assignment]
    late: int = 0
    outliers: tuple[int, ...] = ()


_QUANTILES = struct.Struct(f"<{len(QUANTILE_LEVELS)}I")


def encode_report(report: Report) -> bytes:
    """A report's payload; the delays are cut to what 32 bits say."""
    delays = (min(max(each, 0), DELAY_NS_MAX) for each in report.quantiles_ns)
    outliers = report.outliers[:OUTLIERS_MAX]
    return b"".join(
        (
            _REPORT.pack(report.receivers, report.first, report.count, len(outliers), 0),
            _QUANTILES.pack(*delays),
            report.late.to_bytes((report.count + 7) // 8, "little"),
            struct.pack(f"<{len(outliers)}I", *outliers),
        )
    )


def read_report(payload: bytes | memoryview) -> Report:
    """A report. Raises `WireError` for another size, quantiles that fall, or late bits beyond."""
    fixed = _REPORT.size + _QUANTILES.size
    if len(payload) < fixed:
        raise WireError("a report cut short")
    receivers, first, count, named, _ = _REPORT.unpack_from(payload)
    bits = (count + 7) // 8
    if count > REPORT_IDS_MAX or named > OUTLIERS_MAX or len(payload) != fixed + bits + 4 * named:
        raise WireError("a report of another size")
    quantiles = _QUANTILES.unpack_from(payload, _REPORT.size)
    late = int.from_bytes(payload[fixed : fixed + bits], "little")
    if list(quantiles) != sorted(quantiles) or late >> count:
        raise WireError("a report that contradicts itself")
    outliers = struct.unpack_from(f"<{named}I", payload, fixed + bits)
    return Report(receivers, quantiles, first, count, late, outliers)


def encode_version(version: int) -> bytes:
    """The payload of HELLO and WELCOME: the version of the member's topology."""
    return _VERSION_NUMBER.pack(version)


def read_version(payload: bytes | memoryview) -> int:
    """The topology's version in a HELLO or WELCOME. Raises `WireError`."""
    return int(_exact(_VERSION_NUMBER, payload)[0])


#: The payload of PROBE: as long as its answer's, so that a forged one gets no more than it is.
PROBE_PAYLOAD = bytes(_ANSWER.size)


def encode_probe_answer(asked_ns: int, received_ns: int) -> bytes:
    """The payload of PROBE_ANSWER: the probe's own `sent_ns`, and the overlay's time when it
    came; the answer's `sent_ns` is the overlay's time when it left."""
    return _ANSWER.pack(asked_ns, received_ns)


def read_probe_answer(payload: bytes | memoryview) -> tuple[int, int]:
    """The two times of a PROBE_ANSWER. Raises `WireError`."""
    asked_ns, received_ns = _exact(_ANSWER, payload)
    return asked_ns, received_ns


def encode_last_hop(latency_ns: int, receivers: int) -> bytes:
    """The payload of LAST_HOP: the longest latency, and how many receivers it speaks for."""
    return _LAST_HOP.pack(min(max(latency_ns, 0), DELAY_NS_MAX), receivers)


def read_last_hop(payload: bytes | memoryview) -> tuple[int, int]:
    """Latency in ns and receivers of a LAST_HOP. Raises `WireError`."""
    latency_ns, receivers = _exact(_LAST_HOP, payload)
    return latency_ns, receivers


def _exact(layout: struct.Struct, payload: bytes | memoryview) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise WireError("a payload of another size")
    return layout.unpack(payload)
