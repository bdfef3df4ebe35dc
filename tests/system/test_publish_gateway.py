"""A whole gateway with a broker beside its own node: multicast in, both out."""

import struct

import pytest
from test_gateway_loopback import configured, running

import feedhandler
from feedhandler.codecs import ConfigError
from feedhandler.config.publishing import PublishConfig
from feedhandler.gateway import Gateway
from tests.support.broker_peer import broker

pytestmark = pytest.mark.gateways_loop


def destination(url: str, **settings: object) -> PublishConfig:
    return PublishConfig(name="firm", to=url, exchange="x", require_route=False, **settings)


async def test_a_gateway_serves_its_subscribers_and_a_broker_alike() -> None:
    async with broker() as peer:
        config = configured(publish=(destination(peer.url, reconnect_us=1000),))
        async with running(config) as (gateway, exchange, url):
            async with feedhandler.subscribe(url, "euronext.104") as messages:
                await exchange.packets(1, 200)
                bodies = []
                async for message in messages:
                    if message.content == "packet":
                        bodies.append(message.body)
                    if message.content == "packet" and message.sequence == 100:
                        peer.break_off()
                    if message.sequence == 200 and message.content == "packet":
                        break
            (seen,) = gateway.snapshot()["destinations"]
            assert (seen["name"], seen["dropped"]) == ("firm", 0)
            assert gateway.snapshot()["node"]["sent"] < 2 * 200 + 20, "its own links only"
        (seen,) = gateway.snapshot()["destinations"]
        assert (seen["state"], seen["queued"], seen["unconfirmed"]) == ("CLOSED", 0, 0)
        assert seen["confirmed"] == seen["sent"]
    came: dict[bytes, bytes] = {}
    for message in peer.messages:
        if struct.unpack(">IHHQH", bytes(message.id))[4] == 0xFFFF:
            came.setdefault(bytes(message.id), bytes(message.body))
    assert list(came.values()) == bodies


async def test_a_gateway_whose_broker_is_away_serves_on_and_ends_in_time() -> None:
    async with broker() as peer:
        url = peer.url
    config = configured(publish=(destination(url, queue_bytes=150_000),))
    async with running(config) as (gateway, exchange, node):
        async with feedhandler.subscribe(node, "euronext.104") as messages:
            await exchange.packets(1, 500)
            async for message in messages:
                if message.content == "packet" and message.sequence == 500:
                    break
        (seen,) = gateway.snapshot()["destinations"]
        assert seen["state"] in ("WAITING", "CONNECTING")
        assert seen["dropped"] > 0
        assert seen["queued_bytes"] <= 150_000


def test_a_destination_that_cannot_be_is_refused_before_anything_runs() -> None:
    for settings, reason in (
        ({"types": "99999"}, "no such message type"),
        ({"patterns": "a..b"}, "empty word"),
    ):
        with pytest.raises(ConfigError, match=f"publish 'firm': .*{reason}"):
            Gateway(configured(publish=(destination("amqp://127.0.0.1", **settings),)))
