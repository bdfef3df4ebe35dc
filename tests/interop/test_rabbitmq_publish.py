"""Publishing to a real RabbitMQ 3.10; consumed by stock clients; the ledger compared."""

from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from feedhandler.amqp.publishing.publisher import Publishers
from feedhandler.config.publishing import PublishConfig
from tests.support import publish
from tests.support.brokers import USER, VHOST, RabbitMQ
from tests.support.brokers.clients import consume
from tests.support.node import NodeRig, in_thread
from tests.support.publish import PublishRig, check_grain, check_group_sequences, data, tag


@pytest.fixture
def broker(rabbitmq3: RabbitMQ) -> RabbitMQ:
    """The one that these tests are about."""
    return rabbitmq3


def publishing(
    broker: RabbitMQ, exchange: str, **settings: Any
) -> AbstractAsyncContextManager[PublishRig]:
    """As the kit's; the management is asked whether the exchange leads anywhere."""
    asked = {"management": broker.management, "require_route": True}
    return publish.publishing(broker, exchange=exchange, **asked, **settings)


async def test_a_stream_arrives_per_service_and_per_symbol(broker: RabbitMQ) -> None:
    broker.exchange("fine")
    broker.queue("fine.all", "fine", "#")
    broker.queue("fine.service", "fine", "euronext.105.*")
    broker.queue("fine.symbol", "fine", "euronext.104.1003", "euronext.*.quality")
    async with publishing(broker, "fine", grain="message") as rig:
        await rig.both(1, 200)
        await rig.confirmed()
        assert rig.seen["broker"].startswith("RabbitMQ 3.")
        assert rig.seen["confirmed"] == 2 + 2 * 200 * 5
        found = await in_thread(consume, broker, "fine.all")
        check_group_sequences(found)
        for service in (104, 105):
            check_grain(found, 200, "message", service)
        assert all(message.durable for message in found)
        by_service = data(await in_thread(consume, broker, "fine.service"))
        assert {tag(message)[2] for message in by_service} == {105}
        assert len(by_service) == 1000
        by_symbol = await in_thread(consume, broker, "fine.symbol")
        wanted = [m for m in data(found) if m.subject == "euronext.104.1003"]
        assert [(tag(m), m.body) for m in data(by_symbol)] == [(tag(m), m.body) for m in wanted]
        assert len(by_symbol) - len(data(by_symbol)) == 2, "the quality of both services"


@pytest.mark.parametrize("grain", ["packet", "batch"])
async def test_packets_and_batches_arrive_byte_for_byte(broker: RabbitMQ, grain: str) -> None:
    broker.exchange(grain)
    broker.queue(f"{grain}.one", grain, "euronext.104")
    async with publishing(broker, grain, grain=grain) as rig:
        await rig.both(1, 500)
        await rig.confirmed()
        found = await in_thread(consume, broker, f"{grain}.one")
        assert {message.subject for message in found} == {"euronext.104"}
        check_grain(found, 500, grain)
        check_group_sequences(found)


async def test_a_broker_killed_and_restarted_loses_nothing_that_was_confirmed(
    broker: RabbitMQ,
) -> None:
    broker.exchange("crash")
    broker.queue("crash.all", "crash", "euronext.104", "euronext.105")
    async with publishing(broker, "crash", window=200) as rig:
        await rig.both(1, 300)
        await rig.confirmed()
        await rig.both(301, 600)
        broker.freeze()  # from here on it confirms nothing more
        (publisher,) = rig.publishers.all
        unconfirmed = {outgoing.data for outgoing in publisher.destination.unsettled.held.values()}
        assert unconfirmed, "the broker dies with messages on their way"
        await in_thread(broker.kill)
        await rig.both(601, 800)
        held = set(publisher.destination.unsettled.held)
        await in_thread(broker.start)
        await rig.both(801, 900)
        await rig.confirmed()
        seen = rig.seen
        assert seen["confirmed"] == seen["sent"] == 2 + 2 * 900
        assert seen["connects"] == 2
        assert seen["resent"] >= len(held) > 0
        assert seen["dropped"] == seen["abandoned"] == 0
        found = await in_thread(consume, broker, "crash.all")
        times = Counter((tag(m)[2], tag(m)[3]) for m in found)
        assert set(times) == {(s, n) for s in (104, 105) for n in range(1, 901)}
        doubled = {key for key, count in times.items() if count > 1}
        assert len(found) - len(times) <= seen["resent"], "only the unconfirmed come twice"
        assert all(number > 300 for _, number in doubled)
        for service in (104, 105):
            once = dict.fromkeys(tag(m)[3] for m in found if tag(m)[2] == service)
            assert list(once) == [*range(1, 901)], "first copies are in order"


async def test_an_exchange_that_leads_nowhere_is_not_published_to_until_it_does(
    broker: RabbitMQ,
) -> None:
    async with publishing(broker, "later") as rig:
        words = "there is no exchange 'later'"
        await rig.until(lambda: words in rig.seen["reason"], "refused: no exchange")
        await in_thread(broker.exchange, "later")
        await rig.until(lambda: "nothing is bound" in rig.seen["reason"], "no binding")
        await rig.stream(1, 10)
        assert rig.seen["sent"] == 0
        await in_thread(broker.queue, "later.all", "later", "#")
        await rig.confirmed()
        found = await in_thread(consume, broker, "later.all")
        assert [tag(m)[3] for m in data(found)] == [*range(1, 11)]
        assert broker.password not in str(rig.reported)


async def test_an_alternate_exchange_is_as_good_as_a_binding(broker: RabbitMQ) -> None:
    broker.exchange("catch", "fanout")
    broker.queue("catch.all", "catch", "")
    broker.exchange("leads", **{"alternate-exchange": "catch"})
    async with publishing(broker, "leads", quality=False) as rig:
        await rig.stream(1, 10)
        await rig.confirmed()
        found = await in_thread(consume, broker, "catch.all")
        assert [tag(m)[3] for m in found] == [*range(1, 11)]


async def test_a_wrong_password_is_reported_and_never_shown(
    broker: RabbitMQ, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("not-the-password\n")
    rig = NodeRig()
    reported: list[str] = []
    config = PublishConfig(
        name="firm",
        to=f"amqp://{USER}@127.0.0.1:{broker.port}/{VHOST}",
        password_file=str(secret),
        exchange="amq.topic",
        require_route=False,
    )
    publishers = Publishers((config,), rig.fanout, rig.feed.type_code, "gateway", reported.append)
    rig.node.start()
    publishers.start(rig.qualities)
    words = "it refused user feed (check user"
    await rig.until(lambda: words in publishers.snapshot()[0]["reason"], "refused")
    shown = f"{reported} {publishers.snapshot()} {publishers.all[0].broker_address}"
    assert "not-the-password" not in shown
    await publishers.stop(1.0)
    await rig.node.stop(0.1)
