"""Publishing to a real RabbitMQ 3.10 over TLS, by password and by certificate."""

from pathlib import Path

import pytest

from tests.support.brokers import USER, RabbitMQ3
from tests.support.brokers.clients import consume
from tests.support.node import in_thread
from tests.support.publish import check_stream, publishing
from tests.support.security import Certificates


@pytest.mark.parametrize("way", ["password", "certificate"])
async def test_a_stream_arrives_over_tls(
    rabbitmq3: RabbitMQ3, broker_certificates: Certificates, way: str
) -> None:
    exchange = f"sealed.{way}"
    rabbitmq3.exchange(exchange)
    rabbitmq3.queue(f"{exchange}.all", exchange, "#")
    settings = {"to": rabbitmq3.tls_url, "exchange": exchange, "ca": rabbitmq3.ca}
    if way == "certificate":
        certificate, key = broker_certificates.issue("gateway.example", common=USER)
        settings |= {"to": rabbitmq3.sealed(""), "certificate": certificate, "key": key}
    async with publishing(rabbitmq3, **settings) as rig:
        await rig.both(1, 300)
        await rig.confirmed()
        found = await in_thread(consume, rabbitmq3, f"{exchange}.all")
        for service in (104, 105):
            check_stream(found, 300, service)


async def test_a_broker_of_another_ca_and_a_wrong_password_are_named(
    rabbitmq3: RabbitMQ3, tmp_path: Path
) -> None:
    (tmp_path / "word").write_text("not it")
    login = {"to": rabbitmq3.sealed("feed@"), "password_file": str(tmp_path / "word")}
    ca, theirs = rabbitmq3.ca, Certificates(tmp_path, "theirs")
    cases = (
        ({**login, "ca": ""}, "its certificate's CA is not trusted"),
        ({**login, "ca": theirs.ca}, "its certificate's CA is not trusted"),
        ({**login, "ca": ca}, "it refused user feed (check user"),
    )
    for settings, words in cases:
        async with publishing(rabbitmq3, exchange="amq.topic", **settings) as rig:
            await rig.until(lambda r=rig, w=words: w in r.seen["reason"], words)
            assert "not it" not in str(rig.reported)
