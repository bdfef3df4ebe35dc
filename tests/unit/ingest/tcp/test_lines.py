"""Lines of a gateway that come by TCP: configuration, connections, hand-over, doctor, status."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.soupbin import Login, LoginAccepted
from feedhandler.config import parse_config
from feedhandler.config.show import to_toml
from feedhandler.doctor import examination as doctor
from feedhandler.gateway import Gateway, open_config
from feedhandler.gateway.readings import readings
from feedhandler.ingest.lines import ChannelPlan, Line, TcpServer
from feedhandler.ingest.tcp import lines as tcp_lines
from feedhandler.ingest.tcp.lines import TcpLines
from feedhandler.observe.metrics import Reading
from feedhandler.ops import run, status
from feedhandler.retrans.settings import RecoverySettings
from tests.support.fed_lines import PATIENCE_S, recorded_frame, until
from tests.support.refusal import refusal
from tests.support.tcp_lines import PASSWORD, SESSION, USER, TcpFeed

QUICK = RecoverySettings(reconnect_us=10_000, reconnect_max_us=20_000)
FEED = load_feed("nasdaq-totalview-itch")
#: Bytes of an accepted login.
ACCEPTED = len(LoginAccepted(SESSION, 1).encode())

HEAD = """
[gateway]
feed = "nasdaq-totalview-itch"

[amqp]
listen = "127.0.0.1:0"

[[channel]]
service = 104
"""
LINE = """
[[channel.line]]
name = "A"

[channel.line.tcp]
address = "127.0.0.1:7001"
framing = "soupbin"
username = "MEUSER"
password_file = "password"
"""
LENGTH = """
[[channel.line]]
name = "A"
tcp = { address = "127.0.0.1:7001", framing = "length" }
"""


# -- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (LINE, 'name = "A"', 'name = "A"\ngroup = "239.1.1.1"', "gw.toml:13: channel[0].line[0]."
         "group: a line comes by a group, through a topology or by TCP"),
        (LINE, 'name = "A"', 'name = "A"\nport = 7', "line[0].port: a line comes"),
        (LINE, 'name = "A"', 'name = "A"\ntopology = "t"', "line[0].topology: a line comes"),
        (LINE, 'username = "MEUSER"', "", "line[0].tcp.username: missing, and SoupBinTCP logs in"),
        (LINE, 'password_file = "password"', "", "tcp.password_file: missing, and SoupBinTCP"),
        (LINE, "password_file", 'password_env = "P"\npassword_file', "there is password_file as"),
        (LINE, "127.0.0.1:7001", "127.0.0.1", "gw.toml:15: channel[0].line[0].tcp.address: '127."),
        (LINE, '"soupbin"', '"soup"', "gw.toml:16: channel[0].line[0].tcp.framing"),
        (LINE, 'framing = "soupbin"', "", "tcp.framing: missing"),
        (LINE, '"soupbin"', '"length"', "tcp.username: length has no login"),
        (LENGTH, "framing", 'begin = "first", framing', "tcp.begin: length has no numbers"),
        (LINE, LINE, LINE + LINE.replace('"A"', '"B"'), "line[1].tcp: 127.0.0.1:7001 is line 'A'"),
        (LINE, LINE, '\n[[channel.line]]\nname = "A"\n', "add it below [[channel.line]], or a table"
         " [channel.line.tcp]"),
        (LENGTH, LENGTH, LENGTH + LENGTH.replace("channel.line", "channel.refresh_line"),
         "refresh_line[0].tcp: only a [[channel.line]] comes by TCP"),
        (LENGTH, LENGTH, LENGTH + LENGTH.replace("channel.line", "channel.retransmission_line"),
         "retransmission_line[0].tcp: only a [[channel.line]] comes by TCP"),
    ],
)  # fmt: skip
def test_what_is_wrong_about_a_line_is_reported_by_key(
    text: str, old: str, new: str, said: str
) -> None:
    assert old in text
    assert said in refusal(parse_config, HEAD + text.replace(old, new), "gw.toml")


@pytest.mark.parametrize("text", [LINE, LENGTH, LINE + LENGTH.replace('"A"', '"B"')])
def test_a_configuration_is_written_as_it_was_read(text: str) -> None:
    config = parse_config(HEAD + text)
    assert parse_config(to_toml(config, comments=True)) == config


def test_two_users_of_one_server_are_two_lines() -> None:
    other = LINE.replace('"A"', '"B"').replace("MEUSER", "OTHER")
    assert len(parse_config(HEAD + LINE + other).tcp_lines) == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nasdaq-totalview-itch", "euronext-utp-md", "euronext-utp-md has no MoldUDP64 packets"),
        ('"MEUSER"', '"SEVENER"', "the username is not 6 ASCII characters at most"),
        ('password_file = "password"', 'password_env = "NOT_THERE"', "no environment variable"),
        ("password_file", 'session = "MUCH TOO LONG"\npassword_file', "the session is not 10"),
    ],
)
def test_what_feed_and_credentials_do_not_allow_is_refused_by_config_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("password").write_text(PASSWORD)
    Path("password").chmod(0o600)
    good = HEAD + LINE
    Path("gw.toml").write_text(good)
    open_config("gw.toml")
    assert old in good
    Path("gw.toml").write_text(good.replace(old, new))
    with pytest.raises(ConfigError, match=said) as caught:
        open_config("gw.toml")
    assert "gw.toml:14: channel[0].line[0].tcp: " in str(caught.value)
    assert PASSWORD not in str(caught.value)


# -- connections --------------------------------------------------------------------------------


class Serving:
    """A `TcpFeed` in a thread of its own; `call` runs something there."""

    def __init__(self, **options: Any) -> None:
        self.feed = TcpFeed(**options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> "Serving":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.feed.__aenter__(), self._loop).result(PATIENCE_S)
        host, port = self.feed.address.split(":")
        self.host, self.port = host, int(port)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.feed.__aexit__(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Callable[[], object]) -> None:
        """Run `work` in the server's thread, and wait for it."""

        async def running() -> None:
            work()

        asyncio.run_coroutine_threadsafe(running(), self._loop).result(PATIENCE_S)


def soup(server: Serving, **changed: Any) -> TcpServer:
    options = {"username": USER, "password": PASSWORD, "first": 1, **changed}
    return TcpServer(server.host, server.port, "soupbin", **options)


@contextlib.contextmanager
def connected(
    *servers: TcpServer, failures: list[BaseException] | None = None
) -> Iterator[TcpLines]:
    """Lines by TCP of one channel, running."""
    lines = tuple(
        Line(f"104/{name}", "", 0, "lo", tcp=server)
        for name, server in zip("ABC", servers, strict=False)
    )
    failed = [] if failures is None else failures
    made = TcpLines([ChannelPlan(104, lines)], QUICK, 2_048, failed.append, 1)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        for feed in made.feeds.values():
            feed.close()
    assert failures is not None or not failed, failed


def read(feed: socket.socket) -> bytes:
    """The next packet that a line handed over."""
    feed.settimeout(PATIENCE_S)
    return feed.recv(65_536)


def test_a_line_is_addressed_by_its_server_and_stamped_by_the_kernel() -> None:
    with Serving(messages=[b"one", b"two"]) as server, connected(soup(server)) as lines:
        ((line, feed),) = lines.feeds.items()
        assert (line.group, line.port) == ("127.0.0.1", server.port)
        assert lines.plans[0].lines == (line,)
        feed.settimeout(PATIENCE_S)
        data, stamps, _, _ = feed.recvmsg(4_096, 128)
        assert list(FEED.messages_of(data)) == [b"\0\3one", b"\0\3two"]
        assert [kind for _, kind, _ in stamps] == [35]


def test_the_login_does_not_wait_for_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    seldom = msgspec.structs.replace(QUICK, heartbeat_us=60_000_000, dead_us=300_000_000)
    monkeypatch.setitem(globals(), "QUICK", seldom)
    with Serving(messages=[b"one"]) as server, connected(soup(server)) as lines:
        (feed,) = lines.feeds.values()
        feed.settimeout(PATIENCE_S / 2)
        assert list(FEED.messages_of(feed.recv(4_096))) == [b"\0\3one"]


def test_a_server_whose_name_is_not_known_is_tried_again() -> None:
    server = TcpServer("name.invalid", 7, "length")
    with connected(server) as lines:
        (line,) = lines.feeds
        assert line.group == "0.0.0.0"
        until(lambda: lines.snapshot()[0]["disconnects"] == 1, lines.snapshot)
        assert not lines.snapshot()[0]["up"]


def test_what_the_receive_thread_does_not_take_waits_and_nothing_is_lost() -> None:
    count = 10_000
    with (
        Serving(framed=lambda packet: len(packet).to_bytes(2, "big") + packet) as server,
        connected(TcpServer(server.host, server.port, "length")) as lines,
    ):
        (feed,) = lines.feeds.values()
        until(lambda: bool(server.feed.clients), lines.snapshot)
        packets = [b"%d" % number + bytes(1_000) for number in range(count)]
        server.call(lambda: [server.feed.send(packet) for packet in packets])
        until(lambda: lines.snapshot()[0]["waits"] > 0, lines.snapshot)
        assert [read(feed) for _ in packets] == packets
        snapshot = lines.snapshot()[0]
        assert (snapshot["packets"], snapshot["disconnects"]) == (count, 0)


def test_the_end_does_not_wait_for_a_receive_thread_that_takes_nothing() -> None:
    with (
        Serving(framed=lambda packet: len(packet).to_bytes(2, "big") + packet) as server,
        connected(TcpServer(server.host, server.port, "length")) as lines,
    ):
        until(lambda: bool(server.feed.clients), lines.snapshot)
        server.call(lambda: [server.feed.send(bytes(1_000)) for _ in range(10_000)])
        until(lambda: lines.snapshot()[0]["waits"] > 0, lines.snapshot)


def test_a_line_that_fails_says_so_and_ends_the_thread() -> None:
    failures: list[BaseException] = []
    with Serving(messages=[b"one"]) as server:
        lines = TcpLines(
            [ChannelPlan(104, (Line("104/A", "", 0, "lo", tcp=soup(server)),))],
            QUICK, 2_048, failures.append, 1,
        )  # fmt: skip
        for feed in lines.feeds.values():
            feed.close()
        lines.start()
        until(lambda: bool(failures), lines.snapshot)
        lines.stop()
    assert isinstance(failures[0], OSError)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of texts that the lines write into the operator log."""
    texts: list[str] = []
    monkeypatch.setattr(tcp_lines, "log_event", lambda _event, text, *_, **__: texts.append(text))
    return texts


def test_a_refused_login_is_reported_once_and_not_repeated_soon(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr(tcp_lines, "HOPELESS_NS", 20_000_000)
    with Serving() as server, connected(soup(server, password="WRONG")) as lines:
        until(lambda: lines.snapshot()[0]["refused"] >= 3, lines.snapshot)
        first = time.monotonic_ns()
        attempts = lines.snapshot()[0]["refused"]
        until(lambda: lines.snapshot()[0]["refused"] >= attempts + 2, lines.snapshot)
        assert time.monotonic_ns() - first > 20_000_000, "the least wait is kept"
    assert len(logged) == 1
    assert "104/A" in logged[0]
    assert "not authorized" in logged[0]
    assert "WRONG" not in logged[0]


def test_a_cut_connection_is_made_again_from_the_number_behind_and_both_are_reported(
    logged: list[str],
) -> None:
    server = Serving(messages=[b"one", b"two", b"three"])
    server.feed.cut_after = [ACCEPTED + 2 * 6 + 5]
    with server, connected(soup(server)) as lines:
        (feed,) = lines.feeds.values()
        assert list(FEED.messages_of(read(feed))) == [b"\0\3one", b"\0\3two"]
        assert list(FEED.messages_of(read(feed))) == [b"\0\5three"]
        assert server.feed.logins == [
            Login(USER, PASSWORD, "", 1),
            Login(USER, PASSWORD, SESSION, 3),
        ]
    assert [each.partition(": 127.0.0.1:")[2].partition(": ")[2] for each in logged] == [
        f"logged in, session {SESSION!r} from number 1 on",
        "the server closed it; it is connected to again",
        f"logged in, session {SESSION!r} from number 3 on",
    ]


def test_two_lines_share_the_thread_and_the_end_is_a_logout() -> None:
    with Serving(messages=[b"one"]) as first, Serving(messages=[b"two"]) as second:
        with connected(soup(first), soup(second)) as lines:
            found = [list(FEED.messages_of(read(feed))) for feed in lines.feeds.values()]
            assert found == [[b"\0\3one"], [b"\0\3two"]]
            assert [each["line"] for each in lines.snapshot()] == ["104/A", "104/B"]
        for server in (first, second):
            until(lambda server=server: not server.feed.clients, lambda: "no end")
            assert server.feed.logouts == 1


def test_credentials_that_do_not_fit_leave_no_socket_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    server = TcpServer("127.0.0.1", 7, "soupbin", "TOO LONG A NAME", "x")
    good = TcpServer("127.0.0.1", 7, "length")
    plans = [ChannelPlan(1, (Line("1/A", "", 0, "lo", tcp=good),)),
             ChannelPlan(2, (Line("2/A", "", 0, "lo", tcp=server),))]  # fmt: skip
    with pytest.raises(UsageError):
        TcpLines(plans, QUICK, 2_048, pytest.fail, 1)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_line_is_recorded_with_its_servers_address_and_without_a_sender() -> None:
    with Serving(messages=[b"recorded"]) as server:
        plan = ChannelPlan(104, (Line("104/A", "", 0, "lo", tcp=soup(server)),))
        lines = TcpLines([plan], QUICK, 2_048, pytest.fail, 1)
        frame = recorded_frame(lines)
        assert (frame[26:30], frame[30:34]) == (bytes(4), socket.inet_aton("127.0.0.1"))
        assert int.from_bytes(frame[36:38], "big") == server.port
        assert frame[42:72].endswith(b"\0\x08recorded")


# -- a gateway ----------------------------------------------------------------------------------


def config_of(address: str) -> Any:
    config = parse_config(HEAD + LINE.replace("127.0.0.1:7001", address))
    (channel,) = config.channels
    tcp = msgspec.structs.replace(
        channel.lines[0].tcp, password_file="", password_env="LINE_PASSWORD", begin="first"
    )
    line = msgspec.structs.replace(channel.lines[0], tcp=tcp)
    channel = msgspec.structs.replace(channel, lines=(line,))
    return msgspec.structs.replace(config, channels=(channel,))


def test_status_metrics_and_the_account_tell_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINE_PASSWORD", PASSWORD)
    order = FEED.encode_message("order_delete", stock_locate=1, order_reference_number=1)[2:]
    server = Serving(messages=[order] * 10)
    server.feed.cut_after = [ACCEPTED + 5 * (3 + len(order))]
    with server:
        gateway = Gateway(config_of(server.feed.address))

        async def scenario() -> None:
            stop = asyncio.Event()
            running = asyncio.create_task(gateway.run(stop=stop))
            async with asyncio.timeout(PATIENCE_S):
                while gateway.snapshot()["channels"][0]["messages"] < 10:
                    await asyncio.sleep(0.01)
            found = {each.scope: each for each in readings(gateway) if isinstance(each, Reading)}
            assert found["tcp_line"].labels == ("104", "A")
            assert found["tcp_line"].values["up"] == 1
            assert found["tcp_line"].values["messages"] == 10
            stop.set()
            await running

        asyncio.run(scenario())
        snapshot = gateway.snapshot()
    (line,) = snapshot["tcp_lines"]
    text = status.tcp_line({**line, "up": True})
    assert text.startswith(f"line 104/A: soupbin at {server.feed.address}, connected, ")
    assert "messages 10" in text
    assert any("line 104/A by TCP: disconnects 1" in each for each in run.account(snapshot))
    assert snapshot["channels"][0]["lost"] == 0


def test_a_gateway_ends_where_its_lines_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("it broke")

    monkeypatch.setenv("LINE_PASSWORD", PASSWORD)
    monkeypatch.setattr(tcp_lines.TcpLine, "_hand_on", fails)
    with Serving(messages=[b"one"]) as server:
        gateway = Gateway(config_of(server.feed.address))
        with pytest.raises(OSError, match="it broke"):
            asyncio.run(gateway.run())


def test_the_doctor_tries_the_connection_and_does_not_log_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LINE_PASSWORD", PASSWORD)

    def looked(address: str) -> Any:
        checks = {each.name: each for each in doctor.all_checks(config_of(address))}
        return checks["line 104.A"]

    with Serving() as server:
        good = looked(server.feed.address)
        assert (good.status, good.found) == ("ok", f"{server.feed.address} can be connected to")
        until(lambda: not server.feed.clients, lambda: "no end")
        assert not server.feed.logins
        address = server.feed.address
    bad = looked(address)
    assert (bad.status, bad.found) == ("fail", f"{address}: Connection refused")
    assert bad.remedy
