"""Links that resume at a node on a socket: from its history, then live, whatever the credit."""

import json
import struct
from typing import Any

import pytest

from feedhandler.amqp.framing import WHOLE_PACKET
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, Sent, packet, prefix_of
from tests.support.node import NodeRig, Settings, in_thread, running

GRAINS = ("packet", "batch", "message")
HISTORY = 4 << 20


def tag(sequence: int, number: int = WHOLE_PACKET, service: int = 104) -> str:
    """A tag of the day, in hexadecimal."""
    return (prefix_of(FEED, service) + struct.pack(">QH", sequence, number)).hex()


def data_of(sent: list[Sent]) -> list[Sent]:
    return [each for each in sent if each.content != "quality+json"]


def qualities(sent: list[Sent]) -> list[dict[str, Any]]:
    """The quality messages, decoded."""
    return [json.loads(each.body) for each in sent if each.content == "quality+json"]


async def published(rig: NodeRig, last: int) -> None:
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    await rig.stream(1, last)


@pytest.mark.gateways_loop
@pytest.mark.parametrize("grain", GRAINS)
async def test_a_history_larger_than_the_queue_comes_as_the_credit_allows_and_live_after_it(
    grain: str,
) -> None:
    settings = Settings(queue_bytes=20_000)
    async with running(settings, history_bytes=HISTORY) as rig:
        await published(rig, 600)
        client = rig.raw()
        address = f"euronext.104?as={grain}&from={tag(10)}"
        link = client.receiver(address, credit=5)
        await in_thread(client.pump, lambda: len(client.got(link)) >= 5, "the first five")
        await rig.stream(601, 610)
        assert rig.count("links_overrun") == 0
        wanted = 600 * (5 if grain == "message" else 1)
        size = len(packet(9))

        def done() -> bool:
            if link.credit < 100:
                link.flow(500)
            got = client.got(link)
            batched = sum(len(each.body) for each in data_of(got))
            count = batched if grain == "batch" else len(got)
            return count >= (wanted * size if grain == "batch" else wanted + 1)

        await in_thread(client.pump, done, "all of it")
        got = data_of(client.got(link))
        if grain == "batch":
            assert len(b"".join(each.body for each in got)) == 600 * size
        else:
            assert [each.sequence for each in got] == sorted(each.sequence for each in got)
            assert {each.sequence for each in got} == set(range(11, 611))
            assert len(got) == wanted
        numbers = [each.group_sequence for each in client.got(link)]
        assert numbers == list(range(len(numbers)))
        assert [each["reason"] for each in qualities(client.got(link))] == ["resume"]


async def test_a_tag_that_is_too_old_is_answered_with_the_numbers_that_are_gone() -> None:
    async with running(history_bytes=1 << 17) as rig:
        await published(rig, 2000)
        client = rig.raw()
        link = client.receiver(f"euronext.104?from={tag(10)}", credit=3000)
        done = lambda: client.got(link) and client.got(link)[-1].sequence == 2000  # noqa: E731
        await in_thread(client.pump, done, "the rest")
        first, *others = qualities(client.got(link))
        got = data_of(client.got(link))
        assert others == []
        assert (first["reason"], first["state"], first["doubt"]) == (
            "resume",
            "STALE",
            "too late",
        )
        assert first["lost"] == [[11, got[0].sequence - 1]]
        assert [each.sequence for each in got] == list(range(got[0].sequence, 2001))


async def test_services_without_a_tag_start_live_and_each_with_one_resumes_from_its_own() -> None:
    async with running(services=(104, 105, 106), history_bytes=HISTORY) as rig:
        for channel in range(3):
            rig.control_event(RecordKind.START, channel=channel, sequence=1, next_sequence=1)
            rig.packets(1, 50, channel)
        await rig.deliver()
        client = rig.raw()
        tags = f"{tag(40)},{tag(45, service=105)},{tag(1, service=999)}"
        link = client.receiver(f"euronext.#?from={tags}", credit=3000)
        await in_thread(client.sync)
        for channel in range(3):
            rig.packets(51, 52, channel)
        await rig.deliver()
        done = lambda: len(data_of(client.got(link))) == 12 + 7 + 2  # noqa: E731
        await in_thread(client.pump, done, "the rest")
        found = {key: [] for key in ("euronext.104", "euronext.105", "euronext.106")}
        for each in data_of(client.got(link)):
            found[each.key].append(each.sequence)
        assert found == {
            "euronext.104": list(range(41, 53)),
            "euronext.105": list(range(46, 53)),
            "euronext.106": [51, 52],
        }
        reasons = {each["service"]: each["reason"] for each in qualities(client.got(link))}
        assert reasons == {104: "resume", 105: "resume", 106: "attached"}


async def test_a_client_that_drains_gets_the_history_that_its_credit_allows_and_the_rest_back() -> (
    None
):
    async with running(history_bytes=HISTORY) as rig:
        await published(rig, 50)
        client = rig.raw()
        link = client.receiver(f"euronext.104?from={tag(20)}")
        link.drain(100)
        await in_thread(client.pump, lambda: link.credit == 0, "the drain")
        assert [each.sequence for each in data_of(client.got(link))] == list(range(21, 51))


async def test_a_link_without_quality_messages_that_is_overtaken_is_detached() -> None:
    async with running(history_bytes=1 << 17) as rig:
        await published(rig, 300)
        client = rig.raw()
        address = f"euronext.104?quality=0&from={tag(290)}"
        link = client.receiver(address, credit=2)
        await in_thread(client.pump, lambda: len(client.got(link)) == 2, "two")
        await rig.stream(301, 2000)
        link.flow(5)
        closed = lambda: link.remote_condition is not None  # noqa: E731
        await in_thread(client.pump, closed, "the detach")
        assert link.remote_condition.name == "amqp:resource-limit-exceeded"


async def test_a_link_that_leaves_in_the_midst_of_a_history_delays_no_other_of_its_connection() -> (
    None
):
    async with running(history_bytes=HISTORY) as rig:
        await published(rig, 300)
        client = rig.raw()
        leaving = client.receiver(f"euronext.104?from={tag(10)}", credit=5)
        for _ in range(63):  # each session has less room, so that the other link is behind
            client.new_session()
        other = client.receiver("euronext.104", credit=3000)
        await in_thread(client.pump, lambda: len(client.got(leaving)) == 5, "five")
        leaving.close()
        await in_thread(client.sync)
        rig.packets(301, 1500)
        await rig.deliver()
        assert rig.count("waited") > 0
        await in_thread(client.pump, lambda: client.got(other)[-1].sequence == 1500, "the rest")


async def test_where_no_history_is_kept_resuming_is_refused() -> None:
    async with running() as rig:
        client = rig.raw()
        link = client.receiver(f"euronext.104?from={tag(290)}", credit=2)
        closed = lambda: link.remote_condition is not None  # noqa: E731
        await in_thread(client.pump, closed, "the detach")
        assert link.remote_condition.name == "amqp:not-implemented"


async def test_two_links_of_one_connection_with_overlapping_patterns_can_be_joined_by_tags() -> (
    None
):
    async with running(history_bytes=HISTORY) as rig:
        await published(rig, 20)
        client = rig.raw()
        old = client.receiver("euronext.104.1003?as=message", credit=3000)
        await in_thread(client.sync)
        await rig.stream(21, 40)
        await in_thread(client.pump, lambda: len(data_of(client.got(old))) > 10, "the old")
        last = data_of(client.got(old))[-1]
        new = client.receiver(
            f"euronext.104.1003,euronext.104.1004?as=message&from={last.tag.hex()}",
            credit=3000,
            name="changed",
        )
        await in_thread(client.sync)
        await rig.stream(41, 60)
        of_old = {each.tag: each.body for each in data_of(client.got(old))}

        def joined() -> bool:
            return any(each.sequence == 60 for each in client.got(new))

        await in_thread(client.pump, joined, "the new")
        await in_thread(client.sync)
        of_new = {each.tag: each.body for each in data_of(client.got(new))}
        symbol = struct.pack(">I", 1003)
        later = {t for t in of_new if t > last.tag and of_new[t][4:8] == symbol}
        of_old = {each.tag: each.body for each in data_of(client.got(old))}
        assert later == {t for t in of_old if t > last.tag}
        assert min(of_new) > last.tag
