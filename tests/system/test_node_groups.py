"""Links with the capability `shared`: one stream among several clients, at a node on a socket."""

from typing import Any

import proton
import pytest

from feedhandler.ingest.records import RecordKind
from tests.support.node import RawClient, Settings, in_thread, running

ADDRESS = "euronext.104?as=message"


def share(
    client: RawClient, name: str, address: str = ADDRESS, credit: int = 3000, settled: bool = False
) -> Any:
    """Attach a link that asks for a share, as JMS clients do: among other capabilities."""
    if not client.sessions:
        client.new_session()
    link = client.sessions[-1].receiver(name)
    client.received[name] = []
    link.source.address = address
    capabilities = link.source.capabilities
    capabilities.put_array(False, proton.Data.SYMBOL)
    capabilities.enter()
    capabilities.put_symbol(proton.symbol("topic"))
    capabilities.put_symbol(proton.symbol("shared"))
    capabilities.exit()
    link.snd_settle_mode = proton.Link.SND_SETTLED if settled else proton.Link.SND_UNSETTLED
    link.open()
    link.flow(credit)
    return link


def messages(client: RawClient, link: Any) -> list[tuple[int, int]]:
    """(sequence, number) of the market messages that a link got."""
    return [
        (each.sequence, each.number) for each in client.got(link) if each.content != "quality+json"
    ]


def all_of(first: int, last: int) -> list[tuple[int, int]]:
    return [(sequence, number) for sequence in range(first, last + 1) for number in range(5)]


@pytest.mark.gateways_loop
@pytest.mark.parametrize("settled", [True, False])
async def test_clients_of_a_group_divide_the_stream_among_them(settled: bool) -> None:
    async with running() as rig:
        clients = [rig.raw() for _ in range(2)]
        links = [share(each, f"work|{n}", settled=settled) for n, each in enumerate(clients)]
        for client, link in zip(clients, links, strict=True):
            await in_thread(client.sync)
            assert link.remote_source.address == ADDRESS
        await rig.stream(1, 100)
        both = list(zip(clients, links, strict=True))
        got: list[tuple[int, int]] = []
        while len(got) < 500:
            for client in clients:
                await in_thread(client.sync)
            got = [each for client, link in both for each in messages(client, link)]
        assert sorted(got) == all_of(1, 100)
        for client, link in both:
            assert messages(client, link)
            numbers = [each.group_sequence for each in client.got(link)]
            assert numbers == list(range(len(numbers)))
            assert [e.content for e in client.got(link)].count("quality+json") == 1
            await in_thread(client.close)
        await rig.until(lambda: not rig.node.groups.groups, "the group's end")


async def test_what_a_client_that_dies_had_not_settled_goes_to_another() -> None:
    async with running() as rig:
        dying, living = rig.raw(), rig.raw()
        dying.settle = False
        first, second = share(dying, "work|1"), share(living, "work|2")
        await in_thread(dying.sync)
        await in_thread(living.sync)
        await rig.stream(1, 50)
        await in_thread(dying.pump, lambda: len(messages(dying, first)) > 20, "some")
        for delivery in dying.deliveries[:5]:
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
        await in_thread(dying.sync)
        done = messages(dying, first)[: 5 - 1]  # the first delivery is a quality message
        dying.drop()
        enough = lambda: len(messages(living, second)) >= 250 - len(done)  # noqa: E731
        await in_thread(living.pump, enough, "the rest")
        assert sorted(done + messages(living, second)) == all_of(1, 50)
        assert rig.count("shared_again") > 0


async def test_a_link_that_asks_a_group_for_something_else_is_refused() -> None:
    async with running() as rig:
        client = rig.raw()
        share(client, "work|1")
        await in_thread(client.sync)
        for index, address in enumerate(("euronext.105?as=message", "euronext.104")):
            other = share(client, f"work|{index + 2}", address)
            refused = lambda: other.remote_condition is not None  # noqa: B023, E731
            await in_thread(client.pump, refused, "the refusal")
            assert other.remote_condition.name == "amqp:invalid-field"
        assert rig.count("links_refused") == 2


async def test_a_group_that_does_not_read_is_detached_as_a_whole() -> None:
    async with running(Settings(queue_bytes=50_000)) as rig:
        rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
        client = rig.raw()
        links = [share(client, f"work|{n}", credit=2) for n in range(2)]
        await in_thread(client.sync)
        await rig.stream(1, 100)
        over = lambda: all(link.remote_condition is not None for link in links)  # noqa: E731
        await in_thread(client.pump, over, "the detach")
        names = {link.remote_condition.name for link in links}
        assert names == {"amqp:resource-limit-exceeded"}
        await rig.until(lambda: not rig.node.groups.groups, "the group's end")
        again = share(client, "work|9")
        await in_thread(client.sync)
        await rig.stream(101, 101)
        await in_thread(client.pump, lambda: len(messages(client, again)) == 5, "the next")
