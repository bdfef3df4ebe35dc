"""SoupBinTCP: packets against bytes written out by hand, in pieces, damaged; logins."""

import pytest

from feedhandler.codecs import soupbin
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.soupbin import FROM_CLIENT, FROM_SERVER, Login, LoginAccepted, SoupStream

#: By the specification's tables: length, type, fields of fixed width.
LOGIN = b"\x00\x2fLuser  secret           12A" + b"17".rjust(20)
ACCEPTED = b"\x00\x1fA       12A" + b"17".rjust(20)
STREAM = b"\x00\x01H" + ACCEPTED + b"\x00\x04Sabc" + b"\x00\x01S" + b"\x00\x01Z"
PACKETS = [(b"H", b""), (b"A", ACCEPTED[3:]), (b"S", b"abc"), (b"S", b""), (b"Z", b"")]


def test_logins_are_written_and_read_as_the_specification_lays_them_out() -> None:
    login, accepted = Login("user", "secret", "12A", 17), LoginAccepted("12A", 17)
    assert (login.encode(), accepted.encode()) == (LOGIN, ACCEPTED)
    assert Login.decode(LOGIN[3:]) == login
    assert LoginAccepted.decode(ACCEPTED[3:]) == accepted


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_a_stream_is_cut_into_the_same_packets_however_it_comes_in_pieces(size: int) -> None:
    stream, packets = SoupStream(FROM_SERVER), []
    for at in range(0, len(STREAM), size):
        found, fault = stream.feed(STREAM[at : at + size])
        assert not fault
        packets += found
    assert packets == PACKETS
    assert stream.held == 0
    assert b"".join(soupbin.packet(*each) for each in packets) == STREAM


@pytest.mark.parametrize(
    ("data", "types", "fault"),
    [
        (b"\x00\x00", FROM_SERVER, "a packet without a type"),
        (b"\x00\x00H", FROM_SERVER, "a packet without a type"),
        (b"\x00\x01R", FROM_SERVER, "a packet of type b'R'"),
        (b"\x00\x01A", FROM_CLIENT, "a packet of type b'A'"),
        (b"\x00\x0aSabc", FROM_SERVER, "a packet of 9 bytes, more than 8"),
    ],
)
def test_a_stream_that_cannot_be_read_on_is_reported_behind_the_packets_before(
    data: bytes, types: frozenset[bytes], fault: str
) -> None:
    stream = SoupStream(types, payload_bytes_max=8)
    assert stream.feed(b"\x00\x03+ok" + data) == ([(b"+", b"ok")], fault)
    assert stream.held == 0


@pytest.mark.parametrize(
    "wrong",
    [Login("seventy"), Login(password="x" * 11), Login(session="x" * 11), Login("\n"),
     Login(number=-1), Login(number=10**20), LoginAccepted("x" * 11, 1)],
)  # fmt: skip
def test_what_does_not_fit_its_field_is_refused(wrong: Login | LoginAccepted) -> None:
    with pytest.raises(UsageError):
        wrong.encode()


def test_a_packet_is_as_long_as_its_length_field_can_say() -> None:
    assert len(soupbin.packet(b"S", bytes(soupbin.PAYLOAD_BYTES_MAX))) == 65_537
    with pytest.raises(UsageError):
        soupbin.packet(b"S", bytes(soupbin.PAYLOAD_BYTES_MAX + 1))


@pytest.mark.parametrize("payload", [LOGIN[3:-1], LOGIN[3:-20] + b"x".rjust(20)])
def test_a_login_that_is_cut_short_or_has_no_number_is_the_peers_fault(payload: bytes) -> None:
    with pytest.raises(PeerError):
        Login.decode(payload)


@pytest.mark.parametrize("payload", [ACCEPTED[3:-1], ACCEPTED[3:-20] + b" " * 20])
def test_so_is_an_accepted_login(payload: bytes) -> None:
    with pytest.raises(PeerError):
        LoginAccepted.decode(payload)
