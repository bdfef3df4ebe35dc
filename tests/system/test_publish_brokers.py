"""Every kind of broker behind one gateway, and what each of them does when it crashes."""

import os
from collections import Counter
from typing import Any

import pytest

from feedhandler.amqp.publishing.publisher import Publishers
from feedhandler.config.publishing import PublishConfig
from tests.support.amqp import STAMP_NS
from tests.support.brokers import Broker
from tests.support.brokers.clients import consume
from tests.support.node import NodeRig, in_thread
from tests.support.publish import check_stream, data, publishing, tag

#: What messages go to, by the broker's kind.
FORMS = {"rabbitmq-3": "exchange", "rabbitmq-4": "exchange", "artemis": "topic", "qpid": "exchange"}


def prepared(broker: Broker, name: str) -> dict[str, Any]:
    """An exchange or topic with a queue for everything; the settings that name it."""
    broker.exchange(name)
    broker.queue(f"{name}.all", name, "#")
    return {FORMS[broker.kind]: name, "require_route": False}


#: Brokers that are killed; RabbitMQ 3 is in `tests/interop/test_rabbitmq_publish.py`. A start of
#: those in Java takes seconds of both processors: theirs is `make crash`'s.
KILLED = ["rabbitmq4", "artemis", "brokerj"][: 3 if os.environ.get("CRASHES") else 1]


@pytest.mark.parametrize("name", KILLED)
async def test_a_broker_killed_and_restarted_loses_nothing_that_was_confirmed(
    request: pytest.FixtureRequest, name: str
) -> None:
    broker = request.getfixturevalue(name)
    settings = prepared(broker, "publish.crash")
    async with publishing(broker, window=100, **settings) as rig:
        await rig.both(1, 100)
        await rig.confirmed()
        await rig.both(101, 300)
        assert rig.seen["unconfirmed"] + rig.seen["queued"] > 0, "dies with messages under way"
        await in_thread(broker.kill)
        await rig.both(301, 400)
        await in_thread(broker.start)
        await rig.confirmed()
        seen = rig.seen
        assert seen["confirmed"] == seen["sent"] == 2 + 2 * 400
        assert seen["dropped"] == seen["abandoned"] == 0
        found = await in_thread(consume, broker, "publish.crash.all")
        times = Counter((tag(m)[2], tag(m)[3]) for m in data(found))
        assert set(times) == {(s, n) for s in (104, 105) for n in range(1, 401)}
        assert sum(times.values()) - len(times) <= seen["resent"], "only the unconfirmed twice"
        for service in (104, 105):
            once = dict.fromkeys(tag(m)[3] for m in data(found) if tag(m)[2] == service)
            assert list(once) == [*range(1, 401)], "first copies are in order"


async def test_brokers_of_all_kinds_are_published_to_at_once(
    rabbitmq3: Broker, rabbitmq4: Broker, artemis: Broker, brokerj: Broker
) -> None:
    brokers = (rabbitmq3, rabbitmq4, artemis, brokerj)
    rig = NodeRig()
    configs = [
        PublishConfig(name=each.kind, to=each.url, stamp=True, **prepared(each, "publish.together"))
        for each in brokers
    ]
    publishers = Publishers(
        tuple(configs), rig.fanout, rig.feed.type_code, "gateway", lambda text: None
    )
    rig.node.start()
    publishers.start(rig.qualities)
    await rig.stream(1, 200)
    await rig.until(lambda: all(one["confirmed"] == 201 for one in publishers.snapshot()))
    assert [one["kind"] for one in publishers.snapshot()] == [each.kind for each in brokers]
    await publishers.stop(5.0)
    await rig.node.stop(0.1)
    for each in brokers:
        found = await in_thread(consume, each, "publish.together.all")
        check_stream(found, 200)
        stamps = [message.annotations["x-opt-received-ns"] for message in data(found)]
        assert stamps == [STAMP_NS + number for number in range(1, 201)], "handed on"
