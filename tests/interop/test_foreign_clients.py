"""Stock clients of three libraries against the node: proton, rhea and go-amqp, one scenario each.

Every scenario runs with every client, in a process of its own over a real socket.
"""

import json
import signal
from typing import Any

import pytest

from tests.support.foreign_clients import Client, client, every_client
from tests.support.node import NodeRig, Settings, running

pytestmark = pytest.mark.gateways_loop

#: The smallest frame that AMQP lets a peer insist on.
SMALLEST_FRAME_BYTES = 512


def sent_as(grain: str, published: list[bytes]) -> bytes:
    """Return all that one link gets of the published packets, as the exchange's bytes."""
    if grain != "message":
        return b"".join(published)
    found = b""
    for data in published:
        at = 16
        while at < len(data):
            size = int.from_bytes(data[at : at + 2], "big") + 2
            found += data[at : at + size]
            at += size
    return found


async def published(rig: NodeRig, first: int, last: int) -> list[bytes]:
    """Publish packets and deliver them."""
    put = rig.packets(first, last)
    await rig.deliver()
    return put


@every_client
@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
async def test_every_byte_and_tag_comes_in_order_behind_the_quality(kind: str, grain: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        answer = await stock.attach("a", f"euronext.104?as={grain}")
        assert answer["address"] == f"euronext.104?as={grain}"
        stock.order("credit", link="a", count=1000)
        (quality,) = await stock.receive("a", 1)
        put = await published(rig, 1, 40)
        whole = sent_as(grain, put)
        got: list[Any] = []
        while len(b"".join(each.body for each in got)) < len(whole):
            got = (await stock.receive("a", len(got) + 2))[1:]
        assert quality.content == "quality+json"
        assert json.loads(quality.body)["state"] == "WAITING"
        assert b"".join(each.body for each in got) == whole
        assert {each.content for each in got} == {grain}
        numbers = [quality.number, *(each.number for each in got)]
        assert numbers == list(range(len(numbers)))
        tags = [each.tag for each in got]
        assert len(set(tags)) == len(tags)
        assert tags == sorted(tags)
        assert all(len(each) == 18 for each in tags)
        if grain == "packet":
            assert [each.sequence for each in got] == list(range(1, 41))
        stock.order("close")
        await stock.hear("closed")


@every_client
async def test_patterns_and_types_choose_what_a_link_gets(kind: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        await stock.attach("symbol", "euronext.*.1003?as=message&quality=0")
        await stock.attach("orders", "euronext.104?as=message&types=230&quality=0")
        await stock.attach("all", "euronext.#,euronext.104?quality=0")
        for link in ("symbol", "orders", "all"):
            stock.order("credit", link=link, count=1000)
        await stock.settle_down()
        put = await published(rig, 1, 35)
        everything = await stock.receive("all", 35)
        orders = await stock.receive("orders", 35 * 3)
        symbol = await stock.receive("symbol", 25)
        assert [each.body for each in everything] == put
        assert {each.body[2:4] for each in orders} == {(230).to_bytes(2, "big")}
        assert {each.subject for each in symbol} == {"euronext.104.1003"}


@every_client
async def test_credit_is_kept_to_the_letter_and_topped_up(kind: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        await stock.attach("a", "euronext.104?quality=0")
        await published(rig, 1, 30)
        await stock.settle_down()
        assert stock.messages == {}, "zero credit, no message"
        granted = 0
        for more in (1, 5, 7):
            stock.order("credit", link="a", count=more)
            granted += more
            await stock.receive("a", granted)
            await stock.settle_down()
            assert len(stock.messages["a"]) == granted
        got = stock.messages["a"]
        assert [each.sequence for each in got] == list(range(1, granted + 1))


@every_client
async def test_a_drain_brings_what_waits_and_takes_the_rest_of_the_credit(kind: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        await stock.attach("a", "euronext.104?quality=0")
        await published(rig, 1, 3)
        stock.order("credit", link="a", count=10)
        await stock.receive("a", 3)
        stock.order("drain", link="a")
        await stock.hear("drained", link="a")
        await published(rig, 4, 9)
        await stock.settle_down()
        assert len(stock.messages["a"]) == 3, "drained credit is gone"
        stock.order("credit", link="a", count=2)
        await stock.receive("a", 5)
        assert [each.sequence for each in stock.messages["a"]] == [1, 2, 3, 4, 5]


@every_client
async def test_a_large_batch_crosses_in_the_smallest_frames(kind: str) -> None:
    settings = Settings(max_frame_bytes=SMALLEST_FRAME_BYTES, batch_max_bytes=400_000)
    async with (
        running(settings) as rig,
        client(kind, rig.port, max_frame=SMALLEST_FRAME_BYTES) as stock,
    ):
        await stock.attach("a", "euronext.104?as=batch&quality=0")
        put = await published(rig, 1, 1200)
        assert len(b"".join(put)) > 350_000
        stock.order("credit", link="a", count=20)
        got = await stock.receive("a", 1)
        while len(b"".join(each.body for each in got)) < len(b"".join(put)):
            got = await stock.receive("a", len(got) + 1)
        assert b"".join(each.body for each in got) == b"".join(put)
        assert max(len(each.body) for each in got) > 250_000


@every_client
async def test_outcomes_of_an_unsettled_link_are_counted_and_settled(kind: str) -> None:
    outcomes = ["accept", "reject", "release", "modify"]
    async with running() as rig, client(kind, rig.port) as stock:
        await stock.attach("a", "euronext.104?quality=0", settled=False)
        stock.order("credit", link="a", count=8)
        await published(rig, 1, 8)
        await stock.receive("a", 8)
        (sender_queue,) = rig.fanout.sender_queues
        assert sender_queue.sender.unsettled == 8
        for index in range(8):  # one by one: rhea puts different outcomes into one range
            stock.order("outcome", link="a", place=index, what=outcomes[index % 4])
            await rig.until(lambda n=index: sender_queue.sender.unsettled == 7 - n, "the outcome")
        assert (rig.count("accepted"), rig.count("refused")) == (2, 6)
        # What was released does not come again: the stream goes on, as on a settled link.
        stock.order("credit", link="a", count=2)
        await published(rig, 9, 10)
        got = await stock.receive("a", 10)
        assert [each.sequence for each in got] == list(range(1, 11))


REFUSALS = {
    "euronext.104?as=byte": "amqp:invalid-field",
    "euronext..104": "amqp:invalid-field",
    "queue.orders": "amqp:not-found",
    "euronext.104?snapshot=1": "amqp:not-implemented",
}


async def refused(stock: Client, link: str) -> tuple[str, str]:
    """With which words the node refuses a link."""
    detached = await stock.hear("detached", link=link)
    return detached["condition"], detached["description"]


@every_client
async def test_refusals_say_why_and_the_connection_lives_on(kind: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        for address, condition in REFUSALS.items():
            stock.order("attach", link=address, address=address)
            name, description = await refused(stock, address)
            assert name == condition
            assert description
        stock.order("sender", link="up", address="euronext.104")
        assert (await refused(stock, "up"))[0] == "amqp:not-allowed"
        stock.order("dynamic", link="own")
        assert (await refused(stock, "own"))[0] == "amqp:not-implemented"
        await stock.attach("good", "euronext.104")
        stock.order("credit", link="good", count=1)
        await stock.receive("good", 1)
        assert rig.count("links_refused") == len(REFUSALS) + 2


@every_client
async def test_a_filter_that_is_not_applied_is_not_in_the_answer(kind: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        stock.order("attach", link="a", address="euronext.104", selector="price > 100")
        answer = await stock.hear("attached", link="a")
        assert answer["filter"] == []


@every_client
async def test_an_overrun_link_is_detached_with_its_reason(kind: str) -> None:
    async with running(Settings(queue_bytes=20_000)) as rig, client(kind, rig.port) as stock:
        await stock.attach("slow", "euronext.104?quality=0")
        await stock.attach("quick", "euronext.104?quality=0", session="other")
        stock.order("credit", link="quick", count=1000)
        await stock.settle_down()
        await published(rig, 1, 100)
        assert (await refused(stock, "slow"))[0] == "amqp:resource-limit-exceeded"
        assert len(await stock.receive("quick", 100)) == 100


@every_client
async def test_a_session_that_ends_takes_its_links_along_and_no_others(kind: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        for link, session in (("a", "first"), ("b", "first"), ("c", "second")):
            await stock.attach(link, "euronext.104?quality=0", session=session)
            stock.order("credit", link=link, count=100)
        await published(rig, 1, 5)
        for link in "abc":
            await stock.receive(link, 5)
        stock.order("detach", link="b")
        await rig.until(lambda: rig.node.links == 2, "one link gone")
        stock.order("end", session="first")
        await stock.hear("ended", session="first")
        await rig.until(lambda: rig.node.links == 1, "the session's links gone")
        await published(rig, 6, 9)
        assert len(await stock.receive("c", 9)) == 9
        assert len(stock.messages["a"]) == 5


@every_client
async def test_heartbeats_keep_a_quiet_connection_and_silence_ends_one(kind: str) -> None:
    """The client's idle time-out is honoured by empty frames, and the node's by the client's."""
    # Longer than a busy machine may hold up either process.
    settings = Settings(idle_timeout_ms=3_000)
    async with running(settings) as rig, client(kind, rig.port, idle_ms=3_500) as stock:
        await stock.attach("a", "euronext.104?quality=0")
        stock.order("credit", link="a", count=10)
        (connection,) = rig.node.connections
        heard = connection.engine.frames_received
        began = rig.node.loop.time()
        await rig.until(lambda: connection.engine.frames_received > heard, "empty frames")
        await rig.until(lambda: rig.node.loop.time() > began + 4.0, "a time-out passed")
        assert rig.node.connections == {connection}
        await published(rig, 1, 1)
        await stock.receive("a", 1)
        stock.process.send_signal(signal.SIGSTOP)  # stopped: not a word any more
        await rig.until(lambda: not rig.node.connections, "the silent client dropped")
        assert rig.node.links == 0
        assert rig.count("connections_failed") == 1


@every_client
async def test_a_reset_connection_is_forgotten_and_no_other_notices(kind: str) -> None:
    async with (
        running() as rig,
        client(kind, rig.port) as stock,
        client("proton", rig.port) as steady,
    ):
        await stock.attach("a", "euronext.104?as=batch&quality=0")
        await steady.attach("b", "euronext.104?quality=0")
        steady.order("credit", link="b", count=1000)
        stock.order("credit", link="a", count=1000)
        await steady.settle_down()
        await published(rig, 1, 500)
        stock.order("reset")
        await stock.hear("gone")
        await rig.until(lambda: rig.node.links == 1, "the other one forgotten")
        await published(rig, 501, 600)
        got = await steady.receive("b", 600)
        assert [each.sequence for each in got] == list(range(1, 601))


@every_client
async def test_the_nodes_goodbye_reaches_the_client_behind_the_last_message(kind: str) -> None:
    async with running() as rig, client(kind, rig.port) as stock:
        await stock.attach("a", "euronext.104?quality=0")
        stock.order("credit", link="a", count=1000)
        await stock.settle_down()
        await published(rig, 1, 300)
        await rig.node.stop(5.0)
        assert (await stock.hear("closed"))["condition"] == "amqp:connection:forced"
        if kind == "go-amqp":
            # It drops what it has not yet sorted when a connection ends: a beginning is left.
            await stock.hear("detached", link="a")
            got = [each.sequence for each in stock.messages.get("a", [])]
            assert got == list(range(1, len(got) + 1))
            return
        assert len(await stock.receive("a", 300)) == 300
