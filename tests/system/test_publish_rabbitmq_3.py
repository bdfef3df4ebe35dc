"""Publishing to a real RabbitMQ 3: queues, of which it confirms even what is not there.

Exchanges are in `tests/interop/test_rabbitmq_publish.py`.
"""

from tests.support.brokers import VHOST, RabbitMQ3
from tests.support.brokers.clients import consume
from tests.support.node import in_thread
from tests.support.publish import check_stream, publishing


async def test_a_queue_is_declared_durable_by_the_link_and_takes_everything(
    rabbitmq3: RabbitMQ3,
) -> None:
    broker = rabbitmq3
    async with publishing(broker, queue="publish.made", require_route=True) as rig:
        await rig.both(1, 100)
        await rig.confirmed()
        assert rig.seen["kind"] == "rabbitmq-3"
        assert (await in_thread(broker.api, "GET", f"queues/{VHOST}/publish.made"))["durable"]
        check_stream(await in_thread(consume, broker, "publish.made"), 100, 105)


async def test_a_queue_that_is_not_declared_is_waited_for(rabbitmq3: RabbitMQ3) -> None:
    broker = rabbitmq3
    settings = {"queue": "publish.later", "declare": False, "require_route": True}
    async with publishing(broker, management=broker.management, **settings) as rig:
        await rig.stream(1, 10)
        await rig.until(lambda: "there is no queue 'publish.later'" in rig.seen["reason"])
        assert rig.seen["sent"] == 0
        path = f"queues/{VHOST}/publish.later"
        await in_thread(broker.api, "PUT", path, {"durable": True})
        await rig.confirmed()
        check_stream(await in_thread(consume, broker, "publish.later"), 10)


async def test_a_full_queue_that_says_nothing_gets_its_messages_again_when_there_is_room(
    rabbitmq3: RabbitMQ3,
) -> None:
    broker = rabbitmq3
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    path = f"queues/{VHOST}/publish.full"
    broker.api("PUT", path, {"durable": True, "arguments": limits})
    settings = {"queue": "publish.full", "declare": False, "quality": False}
    async with publishing(broker, confirm_timeout_us=300_000, **settings) as rig:
        await rig.stream(1, 4)
        await rig.until(lambda: any("nothing was said" in line for line in rig.reported), "silent")
        await in_thread(broker.api, "DELETE", path)
        await in_thread(broker.api, "PUT", path, {"durable": True})
        await rig.confirmed()
        assert (rig.seen["confirmed"], rig.seen["abandoned"]) == (4, 0)
