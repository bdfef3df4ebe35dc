"""The simulated exchange's servers and refresh lines, with real sockets."""

import contextlib
import socket
import threading
import time
from collections import defaultdict

import pytest

from feedhandler.codecs import PacketKind, load_feed
from feedhandler.codecs.errors import ConfigError
from feedhandler.market.stream_market import Market
from feedhandler.replay.exchange.ledger import read_ledger
from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan
from feedhandler.replay.generating.packets import ORDERS, REFERENCE, SERVICES
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.events import (
    Answered,
    Broken,
    Packet,
    RefreshAccepted,
    RefreshPacket,
    Rejected,
)
from feedhandler.retrans.protocol import RetransReject
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from tests.support import free_addresses
from tests.support.replay import arrived, joined

FEED = load_feed("euronext-utp-md")
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Servers that wait for late clients; without clients they end at once all the same."""
    monkeypatch.setattr("feedhandler.replay.exchange.simulated.QUIET_NS", 60 * 10**9)


def plan_of(**settings):
    """An exchange on groups that no other test uses."""
    usual = {"instruments": 60, "messages_per_s": 3000.0, "refresh_s": 0.5}
    usual["linger_s"] = DEADLINE_S
    ports = {"retransmission_port": 0, "refresh_port": 0}
    groups = {
        "group_prefixes": (free_addresses.prefix(), free_addresses.prefix()),
        "recovery_prefixes": (free_addresses.prefix(), free_addresses.prefix()),
    }
    return ExchangePlan(**{**usual, **ports, **groups, **settings})


class Listener:
    """Everything that one run of an exchange sends, by (line, service); "A", "refresh A", ..."""

    def __init__(self, plan):
        self.got = defaultdict(list)
        self._keys = {}
        for line in "AB":
            for service in SERVICES:
                for kind, address in (("", plan.address), ("refresh ", plan.recovery_address)):
                    sock = joined(*address(line, service), timeout_s=0)
                    self._keys[sock] = (kind + line, service)

    def read(self, wait_s=0.02):
        """Take in what has arrived; False where nothing had."""
        found = arrived(self._keys, wait_s)
        for sock, data in found:
            self.got[self._keys[sock]].append(data)
        return bool(found)

    def close(self):
        for sock in self._keys:
            sock.close()

    def live(self, service):
        """Sequence number to packet, from both lines."""
        packets = {}
        for line in "AB":
            for data in self.got[line, service]:
                decoded = FEED.decode_packet(data)
                if decoded.kind is PacketKind.DATA:
                    packets[decoded.sequence] = data
        return packets


class Running:
    """An exchange in a thread, its lines joined, and connections to its servers."""

    def __init__(self, plan):
        self.plan = plan
        self.listener = Listener(plan)
        self.exchange = Exchange(plan)
        self.results = []
        self.closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._clients = []

    def _run(self):
        self.results.append(self.exchange.run(self._on_progress))

    def _on_progress(self, progress):
        self.closed |= progress.closed

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.exchange.stop()
        for client in self._clients:
            client.sock.close()
        self._thread.join(DEADLINE_S)
        self.listener.close()

    def connect(self, port):
        client = Client(port)
        self._clients.append(client)
        return client

    def until(self, happened):
        """Read lines and connections until `happened()`."""
        deadline = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < deadline, "it did not happen in time"
            self.listener.read()
            for client in self._clients:
                client.pump()

    def until_closed(self):
        """Read until the session's close has come; the servers still work then."""
        self.until(lambda: self.closed)
        while self.listener.read():
            pass

    def to_the_end(self):
        """Read until the exchange has ended; its result."""
        self.until(lambda: not self._thread.is_alive())
        while self.listener.read():
            pass
        return self.results[0]


class Client:
    """One connection to a server: the project's own client core on a plain socket."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setblocking(False)
        self.core = RequestClient(FEED, "TESTS", RecoverySettings())
        self.core.connected(time.time_ns())
        self.events = []

    def pump(self):
        if self.sock.fileno() < 0:
            return
        now_ns = time.time_ns()
        try:
            data = self.sock.recv(1 << 20)
            if not data:
                return self.sock.close()
            self.events += self.core.feed(data, now_ns)
        except BlockingIOError:
            pass
        except ConnectionError:
            return self.sock.close()
        self.events += self.core.tick(now_ns)
        if output := self.core.data_to_send():
            with contextlib.suppress(ConnectionError):
                self.sock.sendall(output)
        assert not [event for event in self.events if isinstance(event, Broken)]

    def close(self):
        self.sock.close()

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def answered(self, request_id):
        """Return whether a request has its whole answer, or a refusal."""
        ends = self.of(Answered) + self.of(Rejected)
        return any(event.request_id == request_id for event in ends)


def ask_for(running, client, service, first, end, request_id):
    client.core.ask(Ask(request_id, service, first, end, 0), time.time_ns())
    running.until(lambda: client.answered(request_id))


def test_what_both_lines_lose_is_retransmitted_until_nothing_is_missing(tmp_path):
    plan = plan_of(seed=3, seconds=1.5, together=0.05, ledger=tmp_path / "sent")
    with Running(plan) as running:
        client = running.connect(running.exchange.ports["retransmission"])
        running.until_closed()
        fetched, missing, request_id = defaultdict(dict), 0, 0
        for service, end in running.exchange.generator.next_sequences().items():
            have = running.listener.live(service)
            for number in range(2, end):
                if number not in have:
                    missing += 1
                    request_id += 1
                    ask_for(running, client, service, number, number + 1, request_id)
        for event in client.of(Packet):
            fetched[event.service][event.sequence] = event.data
        client.close()
        result = running.to_the_end()
    assert client.of(Rejected) == []
    assert missing == sum(map(len, fetched.values())) > 20
    assert result.servers["retransmission"]["packets"] == missing
    # The reset is a packet of each service, too.
    assert 0 <= result.lines["A"].together - missing <= len(SERVICES)
    messages = 0
    for service, end in result.next_sequences.items():
        packets = {**running.listener.live(service), **fetched[service]}
        assert sorted(packets) == list(range(2, end))
        messages += sum(len(FEED.decode_packet(packet).messages) for packet in packets.values())
    assert messages == len(read_ledger(plan.ledger).records)
    assert not result.stopped


def test_a_packet_withheld_for_good_is_on_no_line_and_refused():
    with Running(plan_of(seed=4, seconds=1.0, gap_s=0.5)) as running:
        client = running.connect(running.exchange.ports["retransmission"])
        running.until_closed()
        end = running.exchange.generator.next_sequences()[ORDERS]
        (gap,) = set(range(2, end)) - set(running.listener.live(ORDERS))
        ask_for(running, client, ORDERS, gap, gap + 1, 1)
        ask_for(running, client, ORDERS, gap - 1, gap, 2)
        client.close()
        result = running.to_the_end()
    (refused,) = client.of(Rejected)
    assert refused.reason == RetransReject.NO_LONGER_AVAILABLE
    assert [packet.sequence for packet in client.of(Packet)] == [gap - 1]
    assert result.withheld == (ORDERS, gap)


def test_a_snapshot_and_the_live_packets_behind_it_give_the_exchanges_own_state():
    plan = plan_of(seed=5, seconds=2.0, refresh_faults=(LineFaults(), LineFaults(loss=0.2)))
    with Running(plan) as running:
        result = running.to_the_end()
    assert result.snapshots["cyclic"] > 20
    assert result.lines["refresh A"].dropped == 0 < result.lines["refresh B"].dropped
    checked = 0
    for service in SERVICES:
        live = running.listener.live(service)
        own = Market(FEED, keeps_messages=True)
        for number in sorted(live):
            own.apply(live[number])
        for last, packets in snapshots(running.listener.got["refresh A", service]):
            rebuilt = Market(FEED, keeps_messages=True)
            for packet in packets:
                rebuilt.apply(packet)
            for number in sorted(live):
                if number > last:
                    rebuilt.apply(live[number])
            assert not rebuilt.problems
            assert rebuilt.digest(service) == own.digest(service)
            checked += 1
    assert checked >= result.snapshots["cyclic"] - 2


def snapshots(datagrams):
    """(LastSeqNum, packets) of every whole snapshot on a refresh line; checks the numbers."""
    expected, packets, last = 2, [], 0
    for data in datagrams:
        decoded = FEED.decode_packet(data)
        if decoded.kind is not PacketKind.DATA:
            continue
        assert decoded.sequence == expected
        assert len(data) <= 1400
        expected += 1
        if decoded.types[0] == 580:
            packets, last = [], decoded.messages[0].last_seq_num
        packets.append(data)
        if decoded.types[-1] == 581:
            assert decoded.messages[-1].last_seq_num == last
            yield last, packets


def test_a_snapshot_comes_at_request_on_the_refresh_lines_alone():
    with Running(plan_of(seed=6, refresh_s=0.0)) as running:
        client = running.connect(running.exchange.ports["refresh"])
        running.until(lambda: running.listener.got["A", ORDERS])
        client.core.ask_refresh(AskRefresh(1, REFERENCE), time.time_ns())
        client.core.ask_refresh(AskRefresh(2, ORDERS), time.time_ns())
        lines = running.listener.got
        running.until(
            lambda: all(
                list(snapshots(lines[f"refresh {line}", service]))
                for line in "AB"
                for service in (REFERENCE, ORDERS)
            )
        )
        running.exchange.stop()
        result = running.to_the_end()
    assert {event.request_id for event in client.of(RefreshAccepted)} == {1, 2}
    assert result.snapshots == {"cyclic": 0, "asked": 2}
    assert client.of(RefreshPacket) == []
    for service in set(SERVICES) - {REFERENCE, ORDERS}:
        assert not list(snapshots(lines["refresh A", service]))


def test_a_snapshot_comes_over_the_connection_too_where_that_is_wanted():
    plan = plan_of(seed=7, refresh_s=0.0, servers=ServerSettings(refresh_over_tcp=True))
    with Running(plan) as running:
        client = running.connect(running.exchange.ports["refresh"])
        running.until(lambda: running.listener.got["A", ORDERS])
        client.core.ask_refresh(AskRefresh(1, ORDERS), time.time_ns())
        lines = running.listener.got

        def over_tcp():
            return list(snapshots([event.data for event in client.of(RefreshPacket)]))

        running.until(lambda: over_tcp() and list(snapshots(lines["refresh B", ORDERS])))
        assert over_tcp() == list(snapshots(lines["refresh B", ORDERS]))


def test_an_exchange_without_clients_ends_when_its_session_does():
    with Running(plan_of(seed=8, seconds=0.3)) as running:
        result = running.to_the_end()
    assert result.duration_ns < running.plan.linger_s * 1e9
    assert result.servers == {"retransmission": {}, "refresh": {}}


def test_an_exchange_stays_no_longer_than_it_may_however_much_is_asked():
    with Running(plan_of(seed=9, seconds=0.3, linger_s=0.5)) as running:
        client = running.connect(running.exchange.ports["retransmission"])
        running.until(lambda: not running._thread.is_alive())
        client.close()
        result = running.to_the_end()
    assert not result.stopped


def test_the_close_is_reported_while_the_servers_still_work():
    exchange = Exchange(plan_of(seed=10, seconds=0.3))
    closed = []
    with contextlib.closing(Client(exchange.ports["retransmission"])) as client:

        def on_progress(progress):
            closed.append(progress.closed)
            if progress.closed:
                client.close()

        result = exchange.run(on_progress)
    assert closed[-1] is True
    assert closed.count(True) == 1
    assert not result.stopped


def test_a_port_that_is_taken_is_reported_before_anything_is_sent():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            Exchange(plan_of(retransmission_port=port))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            Exchange(plan_of(refresh_port=port))


def test_without_servers_there_are_no_ports_and_no_refresh_lines():
    plan = plan_of(
        seed=11, seconds=0.3, retransmission_port=None, refresh_port=None, refresh_s=None
    )
    with Running(plan) as running:
        assert running.exchange.ports == {}
        result = running.to_the_end()
    assert not [key for key in running.listener.got if key[0].startswith("refresh")]
    assert list(result.lines) == ["A", "B"]
    assert result.snapshots == result.servers == {}
