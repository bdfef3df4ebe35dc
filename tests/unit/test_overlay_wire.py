"""Datagrams of the overlay: layout, seals, payloads."""

import hashlib
import struct

import pytest

from feedhandler.overlay import wire
from feedhandler.overlay.wire import Kind, Report, WireError

KEY = bytes(range(32))
REPORT = Report(6, (1, 2, 3, 4, 5, 6), 17, 9, 0b1_0000_0001, (3, 4))


def datagram(kind: Kind = Kind.DATA, id: int = 5, payload: bytes = b"abc") -> bytes:
    return wire.encode(kind, 7, 11, id, 13, -1, payload, KEY)


def test_the_layout_is_that_of_the_description() -> None:
    made = datagram()
    assert len(made) == wire.HEADER_BYTES + 3 == 59
    head = struct.pack("<2sBBHHQQqq", b"OV", 1, 1, 7, 3, 11, 5, 13, -1)
    seal = hashlib.blake2b(head + b"abc", digest_size=16, key=KEY).digest()
    assert made == head + seal + b"abc"
    positions = {
        wire.KIND_AT: 1, wire.TREE_AT: 7, wire.LENGTH_AT: 3, wire.EPOCH_AT: 11, wire.ID_AT: 5,
        wire.SENT_AT: 13,
    }  # fmt: skip
    assert all(made[at] == value for at, value in positions.items())
    assert wire.read_header(made) == (Kind.DATA, 7, 3, 11, 5, 13, -1, seal)
    assert bytes(wire.payload_of(made)) == b"abc"


def test_every_byte_but_the_seals_own_key_is_sealed() -> None:
    made = datagram()
    assert wire.is_sealed(KEY, made)
    assert not wire.is_sealed(bytes(32), made)
    for at in range(len(made)):
        assert not wire.is_sealed(KEY, made[:at] + bytes([made[at] ^ 1]) + made[at + 1 :])


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        datagram()[:55],
        b"XX" + datagram()[2:],
        datagram()[:2] + b"\x02" + datagram()[3:],
        datagram()[:3] + b"\x00" + datagram()[4:],
        datagram()[:3] + b"\x09" + datagram()[4:],
        datagram()[:-1],
        datagram() + b"x",
        datagram(id=0),
        datagram(Kind.HEARTBEAT),
        datagram()[:6] + struct.pack("<H", 1401) + datagram()[8:56] + bytes(1401),
    ],
)
def test_what_is_no_datagram_is_refused(wrong: bytes) -> None:
    with pytest.raises(WireError):
        wire.read_header(wrong)


def test_a_heartbeat_may_say_that_nothing_was_sent_yet() -> None:
    assert wire.read_header(datagram(Kind.HEARTBEAT, 0, b"")).id == 0


@pytest.mark.parametrize(("id", "payload"), [(1, bytes(1401)), (-1, b""), (1 << 64, b"")])
def test_what_does_not_fit_is_not_encoded(id: int, payload: bytes) -> None:
    with pytest.raises(WireError):
        datagram(id=id, payload=payload)


@pytest.mark.parametrize(
    "report", [REPORT, Report(0, (0,) * 6), Report(1, (7,) * 6, 1, 1024, (1 << 1024) - 1)]
)
def test_a_report_reads_back(report: Report) -> None:
    payload = wire.encode_report(report)
    assert len(payload) <= wire.PAYLOAD_BYTES_MAX
    assert wire.read_report(payload) == report


def test_a_reports_delays_and_outliers_are_cut_to_what_fits() -> None:
    long = Report(1, (-1, 0, 0, 0, 0, 1 << 40), outliers=tuple(range(20)))
    read = wire.read_report(wire.encode_report(long))
    assert read.quantiles_ns == (0, 0, 0, 0, 0, wire.DELAY_NS_MAX)
    assert read.outliers == tuple(range(wire.OUTLIERS_MAX))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        wire.encode_report(REPORT)[:-1],
        wire.encode_report(REPORT) + b"x",
        wire.encode_report(REPORT._replace(quantiles_ns=(1, 2, 3, 4, 6, 5))),
        wire.encode_report(REPORT._replace(late=1 << 15)),
        wire.encode_report(REPORT._replace(count=1025)),
    ],
)
def test_a_wrong_report_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        wire.read_report(payload)


def test_small_payloads_read_back_and_have_one_size() -> None:
    assert wire.read_version(wire.encode_version(3)) == 3
    assert wire.read_probe_answer(wire.encode_probe_answer(-4, 5)) == (-4, 5)
    assert wire.read_last_hop(wire.encode_last_hop(1 << 40, 6)) == (wire.DELAY_NS_MAX, 6)
    assert len(wire.PROBE_PAYLOAD) == len(wire.encode_probe_answer(1, 2)), "an amplifier"
    for read in (wire.read_version, wire.read_probe_answer, wire.read_last_hop):
        with pytest.raises(WireError):
            read(b"12345")  # type: ignore[operator]
