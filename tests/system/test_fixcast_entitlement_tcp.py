"""Entitlement over real sockets: TLS, pushed keys, refusals (`fixcast.entitlement_service`)."""

import asyncio
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from feedhandler.amqp.security import ServerTls
from feedhandler.amqp.users import User, Users
from feedhandler.codecs.errors import ConfigError, PeerError
from feedhandler.fixcast.channels import read_channels
from feedhandler.fixcast.entitlement import (
    EntitlementClient,
    EntitlementServer,
    Event,
    LoggedOn,
    LoggedOut,
)
from feedhandler.fixcast.entitlement_messages import Grant
from feedhandler.fixcast.entitlement_service import EntitlementService, check_secrecy, entitled
from feedhandler.fixcast.key_files import KeyFolder
from feedhandler.fixcast.keys import ChannelKey, KeyRing
from tests.support.fix_keys import CHANNEL, key
from tests.support.security import Certificates, cheap_hash

#: Far above what a step takes, far below the suite's patience.
PATIENCE_SECONDS = 30


@asynccontextmanager
async def serving(
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[EntitlementService, KeyRing]]:
    """A server with one user, ann, and one channel."""
    ring = KeyRing(CHANNEL)
    users = Users([User("ann", password=cheap_hash("pw"))], False)
    server = EntitlementServer({"ann": [CHANNEL]}, [Grant(CHANNEL)], [ring])
    service = EntitlementService(server, users)
    await service.start("127.0.0.1", 0, tls)
    try:
        yield service, ring
    finally:
        await service.close()


async def session(
    service: EntitlementService, password: str, tls: ssl.SSLContext | None = None, keys: int = 0
) -> list[Event]:
    """Return the events of a session until it ends, or has brought `keys` channel keys."""
    events: list[Event] = []
    enough = asyncio.Event()

    def on_event(event: Event) -> None:
        events.append(event)
        if keys and sum(isinstance(each, ChannelKey) for each in events) >= keys:
            enough.set()

    client = EntitlementClient("ann", password)
    running = asyncio.ensure_future(entitled(*service.address, client, on_event, tls))
    waiting = asyncio.ensure_future(enough.wait())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not running.done():
        running.cancel()
        await asyncio.wait({running})
    elif running.exception():
        raise running.exception()  # type: ignore[misc]
    return events


@pytest.mark.parametrize("secret", [True, False], ids=["tls", "plain on this machine"])
async def test_keys_come_at_the_logon_and_are_pushed_when_there_are_new_ones(
    secret: bool, tmp_path: Path
) -> None:
    issued = Certificates(tmp_path)
    own = ServerTls(*issued.issue("127.0.0.1")).context if secret else None
    theirs = issued.context() if secret else None
    async with serving(own) as (service, ring):
        ring.add(key(1))
        # Added while the session is up: noticed by the look once a second.
        asyncio.get_running_loop().call_later(0.3, ring.add, key(2))
        events = await session(service, "pw", theirs, keys=2)
        assert events == [LoggedOn(), Grant(CHANNEL), key(1), key(2)]


async def test_a_wrong_password_is_one_logout_with_text() -> None:
    async with serving() as (service, _):
        assert await session(service, "wrong") == [LoggedOut("user or password is wrong")]
        assert service.server.counts == {"wrong_password": 1}


async def test_a_server_that_is_not_believed_gets_no_password(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    own = ServerTls(*Certificates(tmp_path).issue("127.0.0.1")).context
    stranger = Certificates(tmp_path / "others").context()
    async with serving(own) as (service, _):
        with pytest.raises(PeerError, match="cannot connect"):
            await session(service, "pw", stranger)
        assert not service.server.counts


async def test_a_password_that_is_verified_when_the_server_closes_starts_no_timer() -> None:
    begun, end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class SlowUsers(Users):
        def by_password(self, name: str, password: str) -> User | None:
            loop.call_soon_threadsafe(begun.set)
            end.wait(PATIENCE_SECONDS)
            return super().by_password(name, password)

    async with serving() as (service, _):
        service.use(SlowUsers([User("ann", password=cheap_hash("pw"))], False))
        running = asyncio.ensure_future(session(service, "pw"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begun.wait()
        (client,) = service._clients.values()
        (verifying,) = client.tasks
    end.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await verifying
    assert service._timer is not None
    assert service._timer.cancelled()
    with pytest.raises(PeerError, match="closed the connection"):
        await running


async def test_a_server_that_is_gone_is_reported() -> None:
    async with serving() as (service, _):
        pass
    with pytest.raises(PeerError, match="cannot connect to 127"):
        await session(service, "pw")


async def test_a_name_that_no_server_can_have_is_reported() -> None:
    client = EntitlementClient("ann", "pw")
    with pytest.raises(PeerError, match="no name of a host"):
        await entitled("host..a", 1, client, lambda event: None, None, True)


@pytest.mark.parametrize(
    ("host", "tls", "plain", "good"),
    [
        ("127.0.0.1", False, False, True),
        ("::1", False, False, True),
        ("localhost", False, False, True),
        ("10.1.0.5", False, False, False),
        ("example.com", False, False, False),
        ("10.1.0.5", True, False, True),
        ("10.1.0.5", False, True, True),
    ],
)
def test_passwords_and_keys_go_in_clear_nowhere(
    host: str, tls: bool, plain: bool, good: bool
) -> None:
    context = ssl.create_default_context() if tls else None
    if good:
        check_secrecy(host, context, plain)
        return
    with pytest.raises(ConfigError, match=f"to {host} in clear"):
        check_secrecy(host, context, plain)


CONFIG = """
listen = "127.0.0.1:0"
keys = "keys"
channels = "channels.toml"
certificate = "{certificate}"
certificate_key = "{key}"

[[user]]
name = "ann"
password = "{password}"
channels = ["equities-1"]
"""
DEFINITION = """
[[channel]]
id = "equities-1"
a = { group = "239.10.1.1", port = 31001, source = "127.0.0.1" }
"""


def command(*words: str, **options: Any) -> "subprocess.Popen[str]":
    """`feedhandler fixcast keys ...` as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "feedhandler", "fixcast", "keys", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_the_commands_make_serve_fetch_and_refuse(tmp_path: Path) -> None:
    issued = Certificates(tmp_path)
    certificate, key = issued.issue("127.0.0.1")
    (tmp_path / "channels.toml").write_text(DEFINITION)
    config = tmp_path / "entitlement.toml"
    config.write_text(CONFIG.format(certificate=certificate, key=key, password=cheap_hash("pw")))
    (tmp_path / "right").write_text("pw\n")
    (tmp_path / "wrong").write_text("x\n")
    made = command("new", str(tmp_path / "keys"), CHANNEL)
    made.communicate(timeout=PATIENCE_SECONDS)
    assert made.returncode == 0
    server = command("serve", str(config))
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        found = {}
        for name in ("right", "wrong"):
            fetching = command(
                "fetch", address, "--user", "ann", "--password-file", str(tmp_path / name),
                "--to", str(tmp_path / "ann"), "--ca", issued.ca,
            )  # fmt: skip
            found[name] = *fetching.communicate(timeout=PATIENCE_SECONDS), fetching.returncode
    finally:
        server.terminate()
        said = server.communicate(timeout=PATIENCE_SECONDS)
    assert server.returncode == 0, said
    assert found["right"][2] == 0, found
    assert found["wrong"][2] == 3, found
    assert "user or password is wrong" in found["wrong"][1]
    ours, theirs = KeyFolder(tmp_path / "keys"), KeyFolder(tmp_path / "ann")
    assert theirs.ring(CHANNEL).listed() == ours.ring(CHANNEL).listed()
    assert theirs.publishers(CHANNEL) == ours.publishers(CHANNEL)
    assert read_channels(tmp_path / "ann" / f"{CHANNEL}.toml").channels.keys() == {CHANNEL}
    secret = ours.ring(CHANNEL).listed()[0].secret.hex()
    assert secret not in str(said) + str(found)
