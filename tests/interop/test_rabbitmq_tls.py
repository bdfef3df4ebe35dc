"""Publishing to a real RabbitMQ 3.10 over TLS, as a user with a password."""

import asyncio
from pathlib import Path

from broker_kit import RabbitMQ3
from broker_kit.clients import consume
from node_kit import in_thread
from test_rabbitmq_publish import data, publishing, tag


def test_a_stream_arrives_over_tls(rabbitmq3: RabbitMQ3) -> None:
    rabbitmq3.exchange("sealed")
    rabbitmq3.queue("sealed.all", "sealed", "#")

    async def story() -> None:
        async with publishing(rabbitmq3, "sealed", to=rabbitmq3.tls_url, ca=rabbitmq3.ca) as rig:
            await rig.both(1, 300)
            await rig.confirmed()
            found = data(await in_thread(consume, rabbitmq3, "sealed.all"))
            for service in (104, 105):
                numbers = [tag(message)[3] for message in found if tag(message)[2] == service]
                assert numbers == list(range(1, 301))

    asyncio.run(story())


def test_a_broker_of_another_ca_and_a_wrong_password_are_named(
    rabbitmq3: RabbitMQ3, tmp_path: Path
) -> None:
    (tmp_path / "word").write_text("not it")
    place = rabbitmq3.tls_url.rpartition("@")[2]
    to = f"amqps://feed@{place}"
    cases = (
        ({"ca": ""}, "its certificate's CA is not trusted"),
        ({"ca": rabbitmq3.ca}, "it refused user feed (check user"),
    )

    async def story() -> None:
        for settings, words in cases:
            word = str(tmp_path / "word")
            async with publishing(
                rabbitmq3, "amq.topic", to=to, password_file=word, **settings
            ) as rig:
                await rig.until(lambda r=rig: len(r.told) > 0, words)
                assert words in rig.told[0]
                assert "not it" not in str(rig.told)

    asyncio.run(story())
