"""Frames that no well-kept client sends, one by one on a socket: odd channels, names used twice,
other settle modes, resets in the middle of a frame, small windows."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import feedhandler
from feedhandler.amqp.serving import connection as serving_connection
from tests.support import amqp_wire as wire
from tests.support.amqp_wire import Frame
from tests.support.node import PATIENCE_S, NodeRig, Settings, running
from tests.support.raw_peer import ADDRESS, BREACHES, Raw

pytestmark = pytest.mark.gateways_loop


@contextlib.asynccontextmanager
async def raw(rig: NodeRig) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


def error_of(frame: Frame, index: int) -> tuple[str, str]:
    """(condition, description) of a detach (2), an end or a close (0)."""
    fields = frame.field(index)
    return fields[0].value.decode(), fields[1].value.decode()


@pytest.mark.parametrize("channel", [0, 1, 7, 2047])
async def test_a_session_may_have_any_channel_number(channel: int) -> None:
    async with running() as rig, raw(rig) as peer:
        peer.say(wire.opening(), wire.begin(channel))
        peer.say(wire.attach("a", 3, ADDRESS, channel), wire.flow(3, 5, channel))
        begun = await peer.hear(wire.BEGIN)
        assert begun.field(0) == channel
        answer = await peer.hear(wire.ATTACH)
        assert answer.channel == begun.channel
        await rig.stream(1, 2)
        for _ in range(2):
            assert (await peer.hear(wire.TRANSFER)).channel == begun.channel


async def test_sessions_and_links_are_told_apart_by_channel_and_handle() -> None:
    async with running() as rig, raw(rig) as peer:
        peer.say(wire.opening(), wire.begin(9), wire.begin(4))
        for channel, handle in ((9, 0), (9, 200), (4, 200)):
            name = f"{channel}/{handle}"
            peer.say(wire.attach(name, handle, ADDRESS, channel), wire.flow(handle, 9, channel))
        await rig.until(lambda: rig.node.links == 3, "attached")
        await rig.stream(1, 3)
        heard = [await peer.hear(wire.TRANSFER) for _ in range(9)]
        assert len({(each.channel, each.field(0)) for each in heard}) == 3
        peer.say(wire.frame(wire.DETACH, 200, True, channel=9))
        await peer.hear(wire.DETACH)
        peer.say(wire.frame(wire.END, channel=4))
        await peer.hear(wire.END)
        assert rig.node.links == 1


async def test_a_client_that_sends_on_the_link_it_receives_on_is_told_and_does_no_harm() -> None:
    async with running() as rig, raw(rig) as peer, raw(rig) as other:
        for each in (peer, other):
            each.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS))
            each.say(wire.flow(0, 5))
            await each.hear(wire.ATTACH)
        tag = wire.Value(0xA0, b"t")
        peer.say(wire.frame(wire.TRANSFER, 0, 0, tag, 0, False, payload=b"x"))
        close = await peer.frame()
        while close.code == wire.FLOW:
            close = await peer.frame()
        assert close.code == wire.CLOSE, "nothing of it comes back"
        assert error_of(close, 0)[0] == "amqp:not-allowed"
        await rig.until(lambda: rig.node.links == 1, "one link is left")
        assert rig.count("connections_failed") == 1
        await rig.stream(1, 1)
        await other.hear(wire.TRANSFER)


async def test_a_link_name_in_use_ends_the_connection_and_may_be_had_again_after_a_detach() -> None:
    """AMQP 1.0, 2.6.1: a name is one link's. The engine takes the second one for an error."""
    async with running() as rig, raw(rig) as peer, raw(rig) as other:
        peer.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS))
        await peer.hear(wire.ATTACH)
        peer.say(wire.frame(wire.DETACH, 0, True))
        await peer.hear(wire.DETACH)
        peer.say(wire.attach("a", 0, ADDRESS))
        await peer.hear(wire.ATTACH)
        # Another connection may have the same name: it is another link.
        other.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS), wire.flow(0, 5))
        await other.hear(wire.ATTACH)
        assert rig.node.links == 2
        peer.say(wire.attach("a", 1, ADDRESS))
        close = await peer.hear(wire.CLOSE)
        assert error_of(close, 0)[0] == "amqp:invalid-field"
        await rig.until(lambda: rig.node.links == 1, "the connection's link gone")
        await rig.stream(1, 1)
        await other.hear(wire.TRANSFER)


@pytest.mark.parametrize(
    ("asked", "answered"), [(0, 0), (1, 1), (2, 1)], ids=["unsettled", "settled", "mixed"]
)
async def test_the_senders_settle_mode_is_as_asked_and_settled_where_it_is_left_open(
    asked: int, answered: int
) -> None:
    async with running() as rig, raw(rig) as peer:
        peer.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS, settle=asked))
        peer.say(wire.flow(0, 5))
        assert (await peer.hear(wire.ATTACH)).field(3) == answered
        await rig.stream(1, 1)
        transfer = await peer.hear(wire.TRANSFER)
        assert bool(transfer.field(4)) == (answered == 1)


async def test_a_receiver_that_settles_second_is_told_that_the_node_has_settled() -> None:
    async with running() as rig, raw(rig) as peer:
        peer.say(wire.opening(), wire.begin())
        peer.say(wire.attach("a", 0, ADDRESS, settle=0, rcv=1), wire.flow(0, 5))
        assert (await peer.hear(wire.ATTACH)).field(4) == 1
        await rig.stream(1, 1)
        await peer.hear(wire.TRANSFER)
        accepted = wire.described(wire.ACCEPTED)
        peer.say(wire.frame(wire.DISPOSITION, True, 0, 0, False, accepted))
        settled = await peer.hear(wire.DISPOSITION)
        assert settled.field(0) is False, "the sender says so"
        assert (settled.field(1), settled.field(3)) == (0, True)
        assert rig.count("accepted") == 1


async def test_a_full_session_window_holds_messages_back_until_it_opens() -> None:
    async with running() as rig, raw(rig) as peer:
        peer.say(wire.opening(512), wire.begin(window=2), wire.attach("a", 0, ADDRESS))
        peer.say(wire.frame(wire.FLOW, 0, 2, 0, 2, 0, 0, 100, None, False))
        await peer.hear(wire.ATTACH)
        put = rig.packets(1, 6)
        await rig.deliver()
        heard = [await peer.hear(wire.TRANSFER) for _ in range(2)]
        while len(heard) < 6:  # the window moves on by two
            done = len(heard)
            peer.say(wire.frame(wire.FLOW, done, 2, 0, 2))
            heard += [await peer.hear(wire.TRANSFER) for _ in range(2)]
        assert [each.payload[-len(data) :] for each, data in zip(heard, put, strict=True)] == put
        assert len(rig.fanout.sender_queues) == 1


@pytest.mark.parametrize("size", [1, 4, 7, 9, 30])
async def test_a_reset_in_the_middle_of_a_frame_is_forgotten(size: int) -> None:
    async with running() as rig, raw(rig) as steady, raw(rig) as peer:
        for each in (steady, peer):
            each.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS))
            each.say(wire.flow(0, 100))
            await each.hear(wire.ATTACH)
        peer.say(wire.attach("b", 1, ADDRESS)[:size])
        await rig.stream(1, 2)
        await peer.hear(wire.TRANSFER)
        peer.reset()
        await rig.until(lambda: rig.node.links == 1, "forgotten")
        await rig.stream(3, 4)
        for _ in range(4):
            await steady.hear(wire.TRANSFER)
        assert rig.count("connections_failed") == 1


async def test_a_reset_right_behind_what_was_said_is_noticed_though_nothing_is_to_be_sent() -> None:
    async with running() as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as peer:
            peer.sendall(wire.opening() + wire.begin() + wire.attach("a", 0, ADDRESS))
            await rig.until(lambda: rig.node.links == 1, "attached")
            # The node, which has the same loop, sees both at once; a flow has no answer.
            peer.sendall(wire.flow(0, 5))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await rig.until(lambda: not rig.node.connections, "forgotten")


@pytest.mark.parametrize("what", ["sessions", "links half closed"])
async def test_past_the_nodes_bound_who_leaves_most_open_is_closed(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_connection, "KEPT_TOTAL", 100)
    async with running() as rig, raw(rig) as steady, raw(rig) as peer:
        steady.say(wire.opening(), *(wire.begin(n) for n in range(9)))
        steady.say(wire.attach("a", 0, ADDRESS), wire.flow(0, 100))
        await steady.hear(wire.ATTACH)
        peer.say(wire.opening(), wire.begin())
        if what == "sessions":
            peer.say(*(wire.begin(n) for n in range(1, 95)))
        else:
            peer.say(*(wire.attach(f"{n}", n, "no..such") for n in range(95)))
        await peer.end()
        await rig.until(lambda: len(rig.node.connections) == 1, "the other one lives")
        assert rig.count("connections_unread") == 1
        assert rig.node.kept == 9
        await rig.stream(1, 1)
        await steady.hear(wire.TRANSFER)


@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_of_the_protocol_ends_its_own_connection_with_a_reason(
    breach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The peer says no farewell of its own, which the node would wait for.
    monkeypatch.setattr(serving_connection, "LINGER_SECONDS", 0.2)
    async with running() as rig, raw(rig) as steady, raw(rig) as peer:
        for each in (steady, peer):
            each.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS))
            each.say(wire.flow(0, 100))
            await each.hear(wire.ATTACH)
        peer.say(BREACHES[breach])
        close = await peer.hear(wire.CLOSE)
        assert error_of(close, 0)[0].startswith("amqp:")
        assert await peer.end() == b""
        await rig.until(lambda: len(rig.node.connections) == 1, "the other one lives")
        await rig.stream(1, 1)
        await steady.hear(wire.TRANSFER)


async def test_a_second_open_does_no_harm() -> None:
    async with running() as rig, raw(rig) as peer:
        peer.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS))
        peer.say(wire.frame(wire.OPEN, "again"), wire.flow(0, 100))
        await peer.hear(wire.ATTACH)
        await rig.stream(1, 1)
        await peer.hear(wire.TRANSFER)


@pytest.mark.parametrize(
    "said",
    [
        wire.frame(wire.CLOSE) * 2,
        wire.frame(wire.CLOSE) + wire.begin(1) + wire.attach("b", 0, ADDRESS, 1),
        wire.frame(wire.CLOSE) + wire.frame(wire.END) + wire.flow(0, 1),
    ],
    ids=["a second close", "a link", "an end"],
)
async def test_what_comes_after_a_close_does_nothing(said: bytes) -> None:
    async with running() as rig, raw(rig) as steady, raw(rig) as peer:
        for each in (steady, peer):
            each.say(wire.opening(), wire.begin(), wire.attach("a", 0, ADDRESS))
            each.say(wire.flow(0, 100))
            await each.hear(wire.ATTACH)
        peer.say(said)
        await peer.hear(wire.CLOSE)
        assert await peer.end() == b""
        peer.writer.close()
        await rig.until(lambda: len(rig.node.connections) == 1, "the other one lives")
        assert rig.count("links_opened") == 2
        await rig.stream(1, 1)
        await steady.hear(wire.TRANSFER)


async def test_the_open_has_every_field_for_those_who_read_no_shorter_one() -> None:
    async with running() as rig, raw(rig) as peer:
        mine = wire.frame(wire.OPEN, "raw", "127.0.0.1", 65536, wire.ushort(255))
        peer.say(wire.AMQP_HEADER, mine)
        answer = await peer.hear(wire.OPEN)
        assert answer.performative is not None
        assert len(answer.performative.value) == 10
        said = [each.value.decode() for each in answer.field(9)]
        assert said == ["product", "feedhandler", "version", feedhandler.__version__]
        # Without it JMS clients do not even ask to share a subscription.
        assert answer.field(7).endswith(b"SHARED-SUBS")


class Clock:
    """The time that connections see, which only passes when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def monotonic_ns(self) -> int:
        return self.now_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


async def test_an_idle_timeout_is_announced_and_empty_frames_are_sent_and_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("feedhandler.amqp.serving.node.time", clock)
    async with running(Settings(idle_timeout_ms=1200)) as rig, raw(rig) as peer:

        def passes(seconds: float) -> None:
            clock.now_ns += int(seconds * 1e9)
            rig.node._ticker.cancel()
            rig.node._tick()

        rig.node.open_seconds = PATIENCE_S  # that one is on the loop's clock
        peer.say(wire.opening(idle_ms=600), wire.begin(), wire.attach("a", 0, ADDRESS))
        opened = await peer.hear(wire.OPEN)
        assert opened.field(4) == 600, "half of it, as AMQP 1.0, 2.4.5 advises"
        await peer.hear(wire.ATTACH)
        (connection,) = rig.node.connections
        for _ in range(6):  # empty frames of both sides keep the connection
            heard = connection.engine.frames_received
            passes(0.31)
            passes(0.31)
            await peer.hear(0)
            peer.say(wire.frame_bytes(b""))
            await rig.until(lambda: connection.engine.frames_received > heard, "heard")  # noqa: B023
        assert rig.node.links == 1
        for _ in range(5):
            passes(0.31)
        close = await peer.hear(wire.CLOSE)  # and then not a word
        assert error_of(close, 0)[0] == "amqp:resource-limit-exceeded"
        await rig.until(lambda: not rig.node.connections, "dropped")
