"""The publisher and brokers with TLS: whom it believes, what it says, and what it never says."""

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from feedhandler.codecs.errors import ConfigError
from tests.support.broker_peer import broker
from tests.support.publish import DestinationRig, started
from tests.support.security import SECRET, Certificates


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def serving(ours: Certificates, pair: tuple[str, str], clients: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    if clients:
        context.load_verify_locations(ours.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def published(to: str, **settings: Any) -> AbstractAsyncContextManager[DestinationRig]:
    """A fan-out with one publisher."""
    waits = {"reconnect_us": 1000, "reconnect_max_us": 20_000}
    return started(DestinationRig(to, exchange="market", **waits, **settings), 0.5)


@pytest.mark.gateways_loop
async def test_a_stream_is_published_over_tls(ours: Certificates) -> None:
    mine = ours.issue("gateway.example", common="gateway")
    for clients, settings in (
        (False, {}),
        (True, {"certificate": mine[0], "key": mine[1]}),
    ):
        context = serving(ours, ours.issue("127.0.0.1"), clients)
        async with broker(tls=context) as peer:
            to = peer.url.replace("amqp:", "amqps:")
            async with published(to, ca=ours.ca, **settings) as rig:
                await rig.stream(1, 300)
                await rig.until(lambda: rig.seen["confirmed"] == 301, "confirmed")
                assert rig.seen["to"] == f"127.0.0.1:{peer.port}"
                peer.break_off()
                await rig.stream(301, 400)
                await rig.until(lambda: rig.seen["confirmed"] >= 401, "after a break")


async def test_what_is_wrong_with_a_broker_is_said_once_with_a_remedy(
    ours: Certificates, tmp_path: Any
) -> None:
    theirs = Certificates(tmp_path, "theirs")
    good, late = ours.issue("127.0.0.1"), ours.expired("127.0.0.1")
    other = ours.issue("other.example")
    cases = (
        (serving(ours, good), {"ca": theirs.ca}, "", "CA is not trusted (name that CA"),
        (serving(ours, good), {}, "", "CA is not trusted"),
        (serving(ours, late), {"ca": ours.ca}, "", "its certificate has expired"),
        (serving(ours, other), {"ca": ours.ca}, "", "its certificate is for another"),
        (serving(ours, good, True), {"ca": ours.ca}, "", "want a client certificate"),
        (serving(ours, good), {"ca": ours.ca}, "feed@", "it takes no passwords"),
    )
    for context, settings, who, words in cases:
        async with broker(tls=context) as peer:
            to = f"amqps://{who}127.0.0.1:{peer.port}"
            if who:
                (tmp_path / "word").write_text(SECRET)
                settings["password_file"] = str(tmp_path / "word")
            async with published(to, **settings) as rig:
                await rig.until(lambda r=rig: len(r.reported) > 0, words)
                await rig.until(lambda r=rig: r.seen["failures"] > 2, f"tried again: {words}")
                assert words in rig.reported[0]
                assert len([line for line in rig.reported if "not connected" in line]) == 1
                assert SECRET not in str(rig.reported) + str(rig.seen) + repr(rig.publishers.all)


@pytest.mark.parametrize(
    ("answer", "words", "timeout_us"),
    [
        (b"AMQP\x03\x01\x00\x00", "the other side speaks no TLS", 60_000_000),
        (b"", "no answer to TLS in time", 2_000_000),
    ],
    ids=["a broker without TLS", "one that never answers"],
)
async def test_a_broker_without_tls_is_named(
    ours: Certificates, answer: bytes, words: str, timeout_us: int
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    to = f"amqps://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with published(to, ca=ours.ca, connect_timeout_us=timeout_us) as rig:
        await rig.until(lambda: len(rig.reported) > 0, words)
        assert words in rig.reported[0]
    server.close()


def test_files_that_are_not_there_are_named_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="publish 'firm': ca: /nowhere: no such file"):
        DestinationRig("amqps://127.0.0.1", ca="/nowhere")
