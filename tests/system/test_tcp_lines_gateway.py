"""Lines of a gateway that come by TCP: what its subscribers get.

Real sockets on loopback. Line A comes by multicast and loses packets; line B is a SoupBinTCP
session whose connection is cut twice, in the middle of a packet. And a channel that has one line
alone, of packets behind their lengths.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from test_gateway_loopback import running
from test_glimpse import message
from test_line_answers import LAST, SERVICE, Publisher

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.config import AmqpConfig, ChannelConfig, Config, GatewaySettings, LineConfig
from feedhandler.config.recording import RecordConfig
from feedhandler.config.tcp_lines import TcpConfig
from feedhandler.gateway import Gateway
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.tcp.soupbin import LENGTH
from feedhandler.replay.captures.reading import Capture
from feedhandler.retrans.settings import RecoverySettings
from tests.support import free_addresses
from tests.support.commands import run_here
from tests.support.gateway import run_command
from tests.support.gateway_here import until
from tests.support.node import PATIENCE_S
from tests.support.tcp_lines import PASSWORD, SESSION, USER, TcpFeed

pytestmark = pytest.mark.gateways_loop

ITCH = load_feed("nasdaq-totalview-itch")
#: What A lost is waited for as long as the test's patience.
PATIENT = ArbitrationSettings(gap_wait_us=60_000_000, start_wait_us=100_000)
QUICK = RecoverySettings(reconnect_us=10_000, reconnect_max_us=20_000)


class Session(Publisher):
    """Line A by multicast, which loses packets, and the server of line B."""

    def __init__(self, server: TcpFeed, seed: int) -> None:
        super().__init__(ITCH, message, seed)
        self.server = server

    def packet(self, first: int, end: int) -> bytes:
        """A packet of the session that the server has."""
        return self.feed.encode_packet(
            sequence=first, messages=[self.message(n) for n in range(first, end)], session=SESSION
        )

    async def publish(self) -> None:
        """Send everything: to the server all of it, to the group what is not lost."""
        first = 1
        while first <= LAST:
            end = min(first + self.draw.randint(1, self.messages_max), LAST + 1)
            for number in range(first, end):
                self.server.send(self.message(number)[LENGTH.size :])
            if self.lose(first, end):
                self.lost += end - first
            else:
                self.sock.sendto(self.packet(first, end), self.lines[0])
            first = end
            if self.draw.random() < 0.05:
                await asyncio.sleep(0.002)


def configuration(feed: str, *lines: LineConfig, **sections: Any) -> Config:
    """A gateway of one channel."""
    return Config(
        gateway=GatewaySettings(feed=feed),
        channels=(ChannelConfig(service=SERVICE, lines=lines),),
        amqp=AmqpConfig(listen="127.0.0.1:0"),
        arbitration=PATIENT,
        recovery=QUICK,
        **sections,
    )


@contextlib.asynccontextmanager
async def subscribed_to(
    config: Config, key: str, count: int
) -> AsyncIterator[tuple[Gateway, list[bytes], list[str], Callable[[], Any]]]:
    """The gateway and a subscriber: the messages that came, the reasons of quality messages, and a
    wait until there are `count` messages."""
    feed = load_feed(config.gateway.feed)
    came: list[bytes] = []
    reasons: list[str] = []

    async with (
        running(config) as (gateway, _, url),
        feedhandler.subscribe(url, f"{key}.#") as subscribed,
    ):

        async def all_of_them() -> None:
            async with asyncio.timeout(PATIENCE_S):
                async for received in subscribed:
                    if received.quality is not None:
                        reasons.append(received.quality["reason"])
                    else:
                        came.extend(feed.messages_of(bytes(received.body)))
                    if len(came) >= count:
                        return

        yield gateway, came, reasons, all_of_them


async def test_what_one_line_lost_the_session_brings_though_its_connection_breaks(
    tmp_path: Path,
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    async with TcpFeed() as server:
        server.cut_after = [20_001, 30_002]
        session = Session(server, seed=31)
        group, port = session.lines[0]
        config = configuration(
            ITCH.name,
            LineConfig(name="A", group=group, port=port),
            LineConfig(
                name="B",
                tcp=TcpConfig(
                    address=server.address,
                    framing="soupbin",
                    username=USER,
                    password_file=str(password),
                ),
            ),
        )
        async with subscribed_to(config, ITCH.key, LAST) as (gateway, came, reasons, all_of_them):
            await until(lambda: bool(server.logins))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(session.publish())
                tasks.create_task(all_of_them())
            # What line A brought need not wait for line B, which has all the same.
            await until(lambda: gateway.snapshot()["tcp_lines"][0]["messages"] == LAST)
            snapshot = gateway.snapshot()
        session.sock.close()
    assert came == [message(number) for number in range(1, LAST + 1)]
    assert session.lost > 50
    assert server.cuts == 2
    assert [login.session for login in server.logins] == ["", SESSION, SESSION]
    assert not {"gap", "reset"} & set(reasons)
    (channel,) = snapshot["channels"]
    assert channel["lost"] == 0
    assert channel["lines"]["B"]["first"] >= 1
    (line,) = snapshot["tcp_lines"]
    assert (line["line"], line["messages"]) == (f"{SERVICE}/B", LAST)
    assert (line["connections"], line["disconnects"]) == (3, 2)


async def replayed(feed: str, address: str, folder: Path) -> list[bytes]:
    """Return the messages that a multicast line's gateway makes of a TCP line's recording."""
    group, port = free_addresses.group(), free_addresses.port()
    (path,) = folder.glob("lines-*.pcap")
    config = configuration(feed, LineConfig(name="A", group=group, port=port))
    async with subscribed_to(config, load_feed(feed).key, LAST) as (_, came, _, all_of_them):
        command = await run_command(
            "replay", str(path), "--map", f"{address}={group}:{port}@A", "--interface", "127.0.0.1"
        )
        await all_of_them()
        assert command.stderr is not None
        assert await command.wait() == 0, (await command.stderr.read()).decode()
    return came


async def test_a_length_line_alone_brings_everything_and_its_recording_can_be_played(
    tmp_path: Path,
) -> None:
    feed = load_feed("euronext-utp-md")

    def body(number: int) -> bytes:
        return feed.encode_message(230, symbol_index=7, price=number, price_scale_code=2)

    async with TcpFeed(framed=lambda packet: len(packet).to_bytes(2, "little") + packet) as server:
        tcp = TcpConfig(address=server.address, framing="length-little")
        record = RecordConfig(dir=str(tmp_path), disk_free_min_share=0.0)
        config = configuration(feed.name, LineConfig(name="A", tcp=tcp), record=record)
        async with subscribed_to(config, feed.key, LAST) as (gateway, came, reasons, all_of_them):
            await until(lambda: bool(server.clients))
            for number in range(1, LAST + 1):
                server.send(
                    feed.encode_packet(sequence=number, service=SERVICE, messages=[body(number)])
                )
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await all_of_them()
            snapshot = gateway.snapshot()
    assert came == [body(number) for number in range(1, LAST + 1)]
    assert "gap" not in reasons
    (line,) = snapshot["tcp_lines"]
    assert (line["packets"], line["up"], line["disconnects"]) == (LAST, True, 0)
    assert await replayed(feed.name, server.address, tmp_path) == came


def messages_in(capture: Path) -> list[bytes]:
    """The messages of a capture of two lines, each once."""
    found: dict[int, list[bytes]] = {}
    for one in Capture(capture):
        if messages := list(ITCH.messages_of(one.payload)):
            found[int.from_bytes(one.payload[10:18], "big")] = messages
    return [each for number in sorted(found) for each in found[number]]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of a generated session."""
    capture = tmp_path_factory.mktemp("generated") / "itch.pcap"
    words = ["--feed", ITCH.name, "--duration", "1s", "--messages-per-s", "500"]
    done = run_here("generate", *words, "--out", str(capture))
    assert done.returncode == 0, done.stderr
    return capture


@pytest.mark.parametrize("framing", ["soupbin", "length"])
async def test_a_capture_is_served_as_a_line_by_tcp(
    framing: str, tmp_path: Path, generated: Path
) -> None:
    capture, password = generated, tmp_path / "password"
    password.write_text("any")
    password.chmod(0o600)
    messages, server = messages_in(capture), None
    address = f"127.0.0.1:{free_addresses.port()}"
    tcp = TcpConfig(address=address, framing=framing)  # type: ignore[arg-type]
    if framing == "soupbin":
        tcp = TcpConfig(
            address=address, framing="soupbin", username=USER,
            password_file=str(password), begin="first",
        )  # fmt: skip
    config = configuration(ITCH.name, LineConfig(name="A", tcp=tcp))
    try:
        async with subscribed_to(config, ITCH.key, len(messages)) as each:
            gateway, came, _, all_of_them = each
            # Nothing comes before the subscriber is there: till then the gateway tries again.
            server = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "feedhandler", "replay", str(capture),
                "--feed", ITCH.name, "--speed", "4x", "--tcp", f"{framing}:{address}",
            )  # fmt: skip
            await all_of_them()
            (channel,) = gateway.snapshot()["channels"]
        server.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await server.wait() == 0
    finally:
        if server is not None:
            with contextlib.suppress(ProcessLookupError):
                server.kill()
            await server.wait()
    assert came == messages
    assert channel["lost"] == 0
    assert channel["messages"] == len(messages)
