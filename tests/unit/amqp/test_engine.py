"""The engine end to end in one process, over a socket pair: transfers, bounds, memory."""

import gc
import socket

import pytest

from feedhandler.amqp import proton
from feedhandler.amqp.proton import (
    DESCRIPTION_CHARS_MAX,
    ENCODED_BYTES_MAX,
    SESSION_OUTGOING_BYTES_MAX,
    Connection,
)
from tests.support import amqp_wire as wire
from tests.support.amqp_pair import Pair
from tests.support.processes import resident_bytes

PAYLOAD = b"\x00\x53\x75\xb0\x00\x00\x01\x2c" + bytes(300)


@pytest.mark.parametrize("settled", [True, False])
def test_messages_cross_whole_and_in_order(settled: bool) -> None:
    pair = Pair(settled=settled, credit=1000)
    assert pair.sender.settled is settled
    assert pair.sender.source_address == "e.1"
    sent = [n.to_bytes(4, "big") * (n % 700 + 1) for n in range(600)]
    got: list[bytes] = []
    for data in sent:
        assert pair.sender.ready()
        pair.sender.send(data, 0, len(data))
        if len(data) % 3 == 0:
            pair.turn()
            got += pair.messages()
    for _ in range(20):
        pair.turn()
        got += pair.messages()
    assert got == sent
    assert pair.sender.credit() == 400
    assert pair.sender.accepted == (0 if settled else 600)
    assert pair.sender.unsettled == 0
    pair.close()


def test_a_part_of_a_buffer_is_sent_and_nothing_outside_it() -> None:
    pair = Pair(credit=10)
    pair.sender.send(b"0123456789", 3, 4)
    for start, size in ((-1, 2), (8, 3), (0, 0), (0, 11), (11, 1)):
        with pytest.raises(IndexError):
            pair.sender.send(b"0123456789", start, size)
    pair.turn()
    pair.turn()
    assert pair.messages() == [b"3456"]
    pair.close()


def test_without_credit_or_room_a_sender_is_not_ready() -> None:
    pair = Pair(credit=0)
    assert not pair.sender.ready()
    pair.receiver.flow(100_000)
    pair.turn()
    assert pair.sender.ready()
    held = 0
    while pair.sender.ready():
        pair.sender.send(PAYLOAD, 0, len(PAYLOAD))
        held += len(PAYLOAD)
    # The frames made ahead may have doubled once too often.
    assert held < SESSION_OUTGOING_BYTES_MAX + 2 * ENCODED_BYTES_MAX + len(PAYLOAD)
    got = 0
    for _ in range(200):
        pair.turn()
        got += len(pair.messages())
    assert got * len(PAYLOAD) == held
    assert pair.sender.ready()
    pair.close()


def test_a_closed_link_tells_why_and_does_nothing_more() -> None:
    pair = Pair(credit=10)
    pair.sender.close("amqp:resource-limit-exceeded", "x" * 1000)
    for _ in range(3):
        pair.turn()
    ends = [link for kind, link in pair.client_events if kind == proton.LINK_REMOTE_CLOSE]
    assert ends == [pair.receiver]
    name, text = pair.receiver.remote_condition
    assert (name, len(text)) == ("amqp:resource-limit-exceeded", DESCRIPTION_CHARS_MAX)
    # A wrapper whose link is gone answers, and harms nothing.
    sender = pair.sender
    assert (sender.credit(), sender.ready(), sender.source_address) == (0, False, "")
    assert sender.remote_condition == ("", "")
    sender.close()
    sender.release()
    sender.open()
    sender.refuse("a:b", "c")
    sender.drained()
    with pytest.raises(ValueError, match="closed"):
        sender.send(b"x", 0, 1)
    pair.receiver.close()
    pair.receiver.flow(1)
    assert pair.client.links == {}
    assert pair.server.links == {}
    pair.close()


def test_a_peer_that_is_gone_is_noticed_on_both_ways() -> None:
    pair = Pair(credit=10)
    pair.sockets[1].close()
    assert pair.server.receive() == -1
    assert pair.server.broken
    kinds = [kind for kind, _ in pair.server.events()]
    assert proton.TRANSPORT_ERROR in kinds
    assert pair.server.flush() == -1
    pair.sockets[0].close()


def test_the_reason_of_a_close_crosses() -> None:
    pair = Pair(credit=10)
    pair.server.close("amqp:connection:forced", "the gateway stops")
    for _ in range(3):
        pair.turn()
    assert proton.CONNECTION_REMOTE_CLOSE in [kind for kind, _ in pair.client_events]
    assert pair.client.remote_condition == ("amqp:connection:forced", "the gateway stops")
    pair.client.close()
    pair.turn()
    pair.turn()
    assert pair.server.closed
    pair.close()


@pytest.mark.parametrize("settled", [True, False])
def test_many_messages_leave_no_memory_behind(settled: bool) -> None:
    pair = Pair(settled=settled, credit=4000)
    assert pair.sender is not None
    sender, receiver = pair.sender, pair.receiver

    def send(total: int) -> None:
        done = 0
        while done < total:
            burst = 0
            while burst < 2000 and done + burst < total and sender.ready():
                sender.send(PAYLOAD, 0, len(PAYLOAD))
                burst += 1
            done += burst
            pair.turn()
            receiver.flow(receiver.count)
            receiver.clear()
            pair.client_events.clear()
            pair.server_events.clear()

    send(50_000)
    before = resident_bytes()
    send(200_000 if settled else 100_000)
    assert resident_bytes() - before < 3 << 20
    assert sender.unsettled <= 4000
    pair.close()


def test_a_link_beside_another_is_in_its_session_and_ends_with_it() -> None:
    pair = Pair(credit=10)
    beside = pair.client.receiver("second", "e.2", settled=True, credit=5, beside=pair.receiver)
    for _ in range(3):
        pair.turn()
    first, second = pair.server.links.values()
    assert (first.source_address, second.source_address) == ("e.1", "e.2")
    # What waits in the engine counts for the session: both links have it in common.
    while first.ready():
        first.send(bytes(1 << 18), 0, 1 << 18)
    assert not second.ready()
    beside.close()
    with pytest.raises(ValueError, match="closed"):
        pair.client.receiver("third", "e.3", settled=True, credit=5, beside=beside)
    pair.close()


def test_after_ordinary_sending_the_engine_is_quiet_and_after_any_other_event_not() -> None:
    pair = Pair(credit=10)
    pair.sender.send(PAYLOAD, 0, len(PAYLOAD))
    assert pair.server.flush() == 0
    assert pair.server.quiet()
    pair.turn()
    pair.receiver.close()
    pair.client.flush()
    pair.server.receive()
    assert not pair.server.quiet()
    assert proton.LINK_REMOTE_CLOSE in [kind for kind, _ in pair.server.events()]
    pair.close()


def test_a_connection_whose_links_are_released_is_freed_at_once() -> None:
    pair = Pair(credit=10)
    pair.client.turn()
    pair.server.close()
    pair.server.flush()
    pair.client.turn()
    assert pair.client.news
    for engine in (pair.client, pair.server):
        for link in list(engine.links.values()):
            link.release()
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        pair.close()
        del pair, engine, link
        gc.collect()
        found = [each for each in gc.garbage if isinstance(each, Connection)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == []


def hearing(said: bytes, *, server: bool) -> Connection:
    """A connection that has read this."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    made = Connection(ours.fileno(), server=server, container="ours")
    theirs.sendall(said)
    while made.receive() > 0:
        pass
    ours.close()
    theirs.close()
    return made


def test_properties_that_python_cannot_have_are_none() -> None:
    deep, key = b"\x45", b"\xc0\x01\x00"
    for _ in range(3000):
        deep = b"\xd0" + (len(deep) + 4).to_bytes(4, "big") + b"\0\0\0\x01" + deep
    for value in (deep, key, b"\xa1\x01\xff"):
        pair = (key if value is key else b"\xa3\x01x") + value
        properties = wire.wire([])
        properties.code, properties.value = wire.MAP32, [wire.Raw(pair), wire.Raw(b"")]
        said = wire.frame(wire.OPEN, "x", *[None] * 8, properties)
        made = hearing(wire.AMQP_HEADER + said, server=True)
        assert [kind for kind, _ in made.events()] == [proton.CONNECTION_REMOTE_OPEN]
        assert made.remote_properties == {}


@pytest.mark.parametrize("server", [True, False])
def test_the_engine_writes_no_complaint_of_a_peer_to_stderr(
    server: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    made = hearing(wire.opening(max_frame=5), server=server)
    assert made.remote_max_frame_bytes == 512 or not server
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("refused", [True, False])
def test_a_message_on_a_link_that_we_send_on_ends_the_connection(
    refused: bool, settled: bool
) -> None:
    """Else the engine would send it back, under the tag and number that its sender gave it."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    engine = Connection(ours.fileno(), server=True, container="ours")
    theirs.sendall(wire.opening() + wire.begin())
    theirs.sendall(wire.attach("a", 0, "e.1", settle=int(settled)) + wire.flow(0, 10))
    engine.receive()
    ((_, _), (_, link)) = engine.events()
    engine.open()
    if refused:
        link.refuse("amqp:not-found", "no")
    else:
        link.open()
        link.send(PAYLOAD, 0, len(PAYLOAD))
    assert engine.flush() == 0
    theirs.recv(1 << 16)
    tag = wire.Value(0xA0, b"theirs")
    for number in range(2):
        theirs.sendall(wire.frame(wire.TRANSFER, 0, number, tag, 0, False, payload=PAYLOAD))
    engine.receive()
    assert (proton.TRANSPORT_ERROR, None) in engine.events()
    assert not link.ready()
    assert engine.transport_condition[0] == "amqp:not-allowed"
    assert engine.flush() == -1
    (said,) = wire.split(theirs.recv(1 << 16))
    assert isinstance(said, wire.Frame)
    assert said.code == wire.CLOSE
    assert said.field(0)[0].value == b"amqp:not-allowed"
    link.release()
    assert engine.flush() == -1
    ours.close()
    theirs.close()


def acquiring(*fields: object) -> bytes:
    """A flow with these fields, and a transaction for what is sent from now on."""
    properties = wire.wire([b"txn-id", wire.Value(0xA0, b"\0" * 8)])
    properties.code = wire.MAP8
    return wire.frame(wire.FLOW, *fields, *[None] * (10 - len(fields)), properties)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        # The engine would free this session twice.
        ([wire.begin(), wire.frame(wire.BEGIN, wire.ushort(0), 0, 9, 9, channel=1),
          wire.frame(wire.END), wire.attach("a", 0, "e.1")], "answers a session"),
        ([wire.begin(3), wire.begin(3)], "on channel 3, which has a session"),
        ([wire.begin(), wire.attach("a", 0, "e.1"), acquiring(0, 2048, 0, 2048, 0, 0, 9)],
         "messages are not acquired in a transaction"),
        # Its properties begin in what the gate keeps of each frame.
        ([wire.begin(), acquiring()], "messages are not acquired in a transaction"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_frames_that_undo_the_engines_sessions_end_the_connection(
    frames: list[bytes], why: str, cut: int
) -> None:
    """However they are cut: `cut` bytes at a time, 0 for all at once."""
    said = wire.opening() + b"".join(frames)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    made = Connection(ours.fileno(), server=True, container="ours")
    for at in range(0, len(said), cut or len(said)):
        theirs.sendall(said[at : at + (cut or len(said))])
        made.receive()
        made.events()
    assert made.transport_condition[0] == "amqp:not-allowed"
    assert why in made.transport_condition[1]


def test_a_session_may_begin_again_on_a_channel_where_one_has_ended() -> None:
    end = wire.frame(wire.END, channel=5)
    said = wire.opening() + wire.begin(5) + end + wire.begin(5)
    made = hearing(said + wire.attach("a", 0, "e.1", channel=5), server=True)
    assert [kind for kind, _ in made.events()][-1] == proton.LINK_REMOTE_OPEN
    assert made.transport_condition == ("", "")


def test_one_turn_reads_no_more_than_it_may() -> None:
    left, right = socket.socketpair()
    server = Connection(left.fileno(), server=True, container="server", receive_bytes_max=1000)
    right.sendall(wire.opening() + b"".join(wire.begin(n) for n in range(100)))
    got = [server.receive()]
    while got[-1] == 1000:
        got.append(server.receive())
    assert len(got) > 3
    left.close()
    right.close()
