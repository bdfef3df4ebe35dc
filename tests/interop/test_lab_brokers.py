"""The laboratory's brokers: queues of a step, the gateway's publisher, the client, the stamps."""

import asyncio
from typing import Any

import pytest

from feedhandler.lab.broker import LabBroker, binding_of, open_broker
from feedhandler.lab.broker_client import BrokerSubscriber
from tests.support.amqp import FEED, STAMP_NS
from tests.support.brokers import Broker
from tests.support.node import in_thread
from tests.support.publish import publishing

LIMIT_BYTES = 1 << 24
SERVICES = (104, 105)


class Deliveries:
    """Service, sequence and message number of everything delivered; the stamps."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int, int]] = []
        self.stamps: set[int] = set()

    def __call__(self, batch: Any) -> None:
        rows = zip(batch.services, batch.sequences, batch.numbers, strict=True)
        self.found += [(int(a), int(b), int(c)) for a, b, c in rows]
        self.stamps.update(batch.stamps.tolist())


@pytest.fixture(params=["rabbitmq3", "rabbitmq4", "artemis", "brokerj"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each kind."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("exchange", "grain"), [("direct", "packet"), ("direct", "message"), ("topic", "packet")]
)
async def test_two_clients_of_a_broker_each_get_everything_once_with_its_stamp(
    broker: Broker, exchange: Any, grain: str
) -> None:
    lab = LabBroker(broker, None, [])
    binding = binding_of(exchange, grain, "euronext", SERVICES)
    sources = await in_thread(lab.prepare, binding, 2, LIMIT_BYTES)
    goal = {"topic" if lab.kind == "artemis" else "exchange": binding.exchange}
    settings = {"grain": grain, "stamp": True, "quality": False, **goal}
    taken = [Deliveries(), Deliveries()]
    async with publishing(broker, **settings) as rig:
        clients = [BrokerSubscriber(lab.url, each, grain, FEED, lab.hostname) for each in sources]
        async with clients[0] as one, clients[1] as other:
            delivering = [
                asyncio.create_task(messages.deliver(each))
                for messages, each in zip((one, other), taken, strict=True)
            ]
            await rig.both(1, 100)
            await rig.confirmed()
            numbers = [0xFFFF] if grain == "packet" else [*range(5)]
            wanted = {(a, b, c) for a in SERVICES for b in range(1, 101) for c in numbers}
            for each in taken:
                await rig.until(lambda each=each: len(each.found) >= len(wanted), "all there")
                assert len(each.found) == len(wanted)
                assert set(each.found) == wanted
                assert each.stamps == {STAMP_NS + number for number in range(1, 101)}
        await asyncio.gather(*delivering)
    await in_thread(lab.clear)


def test_one_that_runs_already_is_found_by_its_url_with_its_processes(
    rabbitmq3: Broker, tmp_path: Any
) -> None:
    found = open_broker("rabbitmq", rabbitmq3.url, tmp_path / "none", rabbitmq3.http_port)
    assert (found.kind, found.pids) == ("rabbitmq-3", [rabbitmq3.pid])
    assert found.version.startswith("RabbitMQ 3.")
    assert not found.started
    found.close()
