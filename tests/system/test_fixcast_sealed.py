"""Sealed, signed channels from publisher to receiver, on loopback."""

import asyncio
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from feedhandler.codecs.fix.stream import FixStream
from feedhandler.fixcast.channels import Channels, host_and_port
from feedhandler.fixcast.key_files import KeyFolder, new_key
from feedhandler.fixcast.keys import FOREVER
from feedhandler.fixcast.messages import Header, enveloped
from feedhandler.fixcast.protection import Protection
from feedhandler.fixcast.publisher import Publisher, PublisherSettings, open_sender
from feedhandler.fixcast.receiver import Receiver, ReceiverSettings
from feedhandler.fixcast.reception import Lost, Missing, ReceptionSettings
from feedhandler.fixcast.sending import SendingSettings
from feedhandler.fixcast.session import SessionSettings
from feedhandler.fixcast.signing import Mode
from feedhandler.retrans.fix.client import RequesterSettings
from feedhandler.retrans.fix.request import RequestFormat
from feedhandler.retrans.fix.server import ResendSettings
from tests.support.fixcast import Sink, channels, lossy_lines, update

SENDING = SendingSettings(session=SessionSettings(heartbeat_ns=20_000_000))
MANY = 300
SECOND = 1_000_000_000


def keys(path: Path) -> Path:
    """A folder with a key and a signer of channel c1."""
    folder = KeyFolder(path)
    folder.add(new_key(folder.ring("c1"), 0, FOREVER))
    folder.new_signer("c1")
    return path


def receiving(path: Path | None, verify: Mode = "before") -> ReceiverSettings:
    return ReceiverSettings(
        reception=ReceptionSettings(recovery_wait_ns=30 * SECOND),
        requests=RequesterSettings(spread_us=1000, receivers=2),
        seed=1,
        keys=path,
        verify=verify,
    )


def sending(path: Path, resend: ResendSettings | None = None) -> PublisherSettings:
    return PublisherSettings(sending=SENDING, resend=resend or ResendSettings(), keys=path)


def watch_sent(monkeypatch: pytest.MonkeyPatch, lost: Callable[[int], bool]) -> list[bytes]:
    """All that is sent to a group; datagrams of channels whose index is `lost` go on no line."""
    sent: list[bytes] = []
    send_to = Publisher._send_to

    def seen(self: Publisher, sock: socket.socket, data: bytes, address: tuple[str, int]) -> None:
        sent.append(data)
        send_to(self, sock, data, address)

    lossy_lines(monkeypatch, lost, sent.append)
    monkeypatch.setattr(Publisher, "_send_to", seen)
    return sent


@pytest.mark.parametrize("verify", ["off", "before", "after"])
@pytest.mark.parametrize(
    "resend",
    [ResendSettings(), ResendSettings(route="main", poss_dup=True), ResendSettings(route="tcp")],
    ids=["group", "main", "tcp"],
)
async def test_what_both_lines_lost_of_a_sealed_channel_is_retransmitted_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Mode, resend: ResendSettings
) -> None:
    losses: list[bool] = []
    sent = watch_sent(monkeypatch, lambda index: bool(losses) and losses.pop(0))
    known, sink, path = channels(), Sink(), keys(tmp_path / "keys")
    async with (
        Receiver(known, [], receiving(path, verify), sink.receive) as receiver,
        Publisher(known, [], sending(path, resend)) as publisher,
    ):
        await sink.until(lambda: bool(sink.events["c1"]))
        losses.extend([False, False, True, True, False, True])
        for number in range(MANY):
            await publisher.publish("c1", update(f"{number} {'x' * 200}"))
        await sink.until(lambda: len(sink.texts()) == MANY)
        assert not receiver.openers["c1"].drops["forged"]
    assert sink.texts() == [f"{number} {'x' * 200}" for number in range(MANY)]
    assert [each for each in sink.others() if isinstance(each, Missing)]
    assert not [each for each in sink.others() if isinstance(each, Lost)]
    assert all(each.startswith(b"FS\x01") and len(each) <= 1400 for each in sent)


async def test_a_wrong_key_opens_nothing_and_no_key_is_reported_once(tmp_path: Path) -> None:
    known, right, wrong, none = channels(), Sink(), Sink(), Sink()
    path, other = keys(tmp_path / "keys"), keys(tmp_path / "other")
    events: list[tuple[str, dict[str, object]]] = []
    async with (
        Receiver(known, [], receiving(other), wrong.receive) as shut,
        Receiver(known, [], receiving(None), none.receive, lambda *what: events.append(what)),
        Receiver(known, [], receiving(path), right.receive),
        Publisher(known, [], sending(path)) as publisher,
    ):
        for number in range(20):
            await publisher.publish("c1", update(str(number)))
        await right.until(lambda: len(right.texts()) == 20)
    assert wrong.texts() == none.texts() == []
    assert shut.openers["c1"].drops["forged"] > 0
    assert shut.openers["c1"].opened == 0
    assert events == [("c1", {"event": "sealed"})]


def forge(known: Channels, *datagrams: bytes) -> None:
    line = known.channels["c1"].lines[0]
    with open_sender(line, "127.0.0.1", 0) as sock:
        for each in datagrams:
            sock.sendto(each, (line.group, line.port))


async def test_what_is_forged_or_in_clear_is_counted_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = watch_sent(monkeypatch, lambda index: False)
    known, sink, path = channels(), Sink(), keys(tmp_path / "keys")
    async with (
        Receiver(known, [], receiving(path), sink.receive) as receiver,
        Publisher(known, [], sending(path)) as publisher,
    ):
        await publisher.publish("c1", update("true"))
        await sink.until(lambda: sink.texts() == ["true"])
        changed = bytearray(sent[0])
        changed[32:40] = (1 << 20).to_bytes(8, "big")
        forge(known, bytes(changed), update("false"), sent[0])
        for number in range(5):
            await publisher.publish("c1", update(str(number)))
        await sink.until(lambda: len(sink.texts()) == 6)
        drops = receiver.openers["c1"].drops
    assert sink.texts() == ["true", *"01234"]
    assert drops["forged"] == drops["replayed"] == 1
    assert drops["not_sealed"] + drops["truncated"] == 1


async def test_a_key_that_is_rotated_while_both_run_loses_nothing(tmp_path: Path) -> None:
    known, sink, path = channels(), Sink(), keys(tmp_path / "keys")
    async with (
        Receiver(known, [], receiving(path), sink.receive) as receiver,
        Publisher(known, [], sending(path)) as publisher,
    ):
        folder, number = KeyFolder(path), 0
        folder.add(new_key(folder.ring("c1"), time.time_ns() + 2 * SECOND, FOREVER))
        used: set[int] = set()
        while used != {1, 2}:
            number += 1
            await publisher.publish("c1", update(str(number)))
            await sink.until(lambda: len(sink.texts()) == number)  # noqa: B023
            opener = receiver.openers["c1"]._receiver.opener
            used = {each.key.id for each in opener._sessions.values()}
    assert sink.texts() == [str(each + 1) for each in range(number)]


class FalseServer:
    """A host at the server's address: answers with messages that were never published."""

    def __init__(self, path: Path, other: Path) -> None:
        self.requests = 0
        #: Who has the channel's key, but not the publisher's; who has neither.
        self.holder = Protection(path, time.time_ns() - time.monotonic_ns()).sealer("c1")
        self.stranger = Protection(other, time.time_ns() - time.monotonic_ns()).sealer("c1")
        self.recorded: list[bytes] = []

    def answers(self, first: int, last: int) -> bytes:
        """Return the answer to a request: false messages `first` to `last`, and recorded ones."""
        now_ns = time.monotonic_ns()
        false = [
            Header(sender=b"PUB", target=b"c1").application(update("false"), number, 1)
            for number in range(first, last + 1)
        ]
        sealed = [out for each in false for out in self.holder.seal(each, now_ns)]
        sealed += [out for each in false for out in self.stranger.seal(each, now_ns)]
        return b"".join([*false, *(enveloped(each) for each in [*sealed, *self.recorded])])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection."""
        stream, form = FixStream(), RequestFormat()
        while data := await reader.read(4096):
            for message in stream.receive(data):
                if request := form.decode(message):
                    self.requests += 1
                    writer.write(self.answers(request.begin, request.end))
        writer.close()


async def test_a_false_server_of_a_sealed_channel_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[bool] = []
    sent = watch_sent(monkeypatch, lambda index: bool(losses) and losses.pop(0))
    known, sink = channels(), Sink()
    path, other = keys(tmp_path / "keys"), keys(tmp_path / "other")
    given = tmp_path / "given"
    shutil.copytree(path, given)
    (given / "c1.sign").unlink()
    false = FalseServer(given, other)
    (group,) = known.retransmissions.values()
    settings = replace(sending(path), serves=False)
    listener = await asyncio.start_server(false.serve, *host_and_port(group.server))
    quick = replace(
        receiving(path, "before"), reception=ReceptionSettings(recovery_wait_ns=2_000_000_000)
    )
    async with listener, Receiver(known, [], quick, sink.receive) as receiver:
        async with Publisher(known, [], settings) as publisher:
            await sink.until(lambda: bool(sink.events["c1"]))
            false.recorded = sent[:1]
            losses.extend([False, True, False])
            for number in range(MANY):
                await publisher.publish("c1", update(f"{number} {'x' * 200}"))
            await sink.until(lambda: any(isinstance(each, Lost) for each in sink.others()))
        drops = receiver.openers["c1"].drops
        assert false.requests
        assert receiver.counts["answers_in_clear"]
        assert drops["forged"]
        assert drops["alarm_unsigned"]
    texts = sink.texts()
    assert "false" not in texts
    assert len(texts) < MANY
