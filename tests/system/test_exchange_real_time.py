"""The simulated exchange over loopback multicast, with real sockets and a real process."""

import contextlib
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict

import pytest

from feedhandler.codecs import PacketKind, load_feed
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.replay.exchange.ledger import LedgerWriter, read_ledger
from feedhandler.replay.exchange.ledger_check import check
from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.playing.inject import LineFaults
from tests.support import free_addresses
from tests.support.replay import arrived, joined

FEED = load_feed("euronext-utp-md")
DEADLINE_S = 60.0


def plan_of(**settings):
    """An exchange on groups that no other test uses."""
    groups = (free_addresses.prefix(), free_addresses.prefix())
    usual = {"instruments": 60, "messages_per_s": 3000.0, "group_prefixes": groups}
    return ExchangePlan(**{**usual, **settings})


@contextlib.contextmanager
def listening(plan):
    """A socket for each line and service, joined on loopback."""
    sockets = {}
    try:
        for line in "AB":
            for service in SERVICES:
                sockets[joined(*plan.address(line, service), timeout_s=0)] = (line, service)
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


def receive(sockets, ended):
    """(line, service) to datagrams, until `ended()` and nothing is left to read."""
    got = defaultdict(list)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        over = ended()
        found = arrived(sockets, 0.05)
        if over and not found:
            return got
        for sock, data in found:
            got[sockets[sock]].append(data)
    pytest.fail("the exchange did not end in time")


def run_beside(exchange):
    """Run an exchange in a thread; returns what tells its end, and its result when it has."""
    box = []
    thread = threading.Thread(target=lambda: box.append(exchange.run()), daemon=True)
    thread.start()
    return (lambda: not thread.is_alive()), box


def ledger_of(path, datagrams):
    """A subscriber's ledger of the first copy of every packet, in order of arrival."""
    with LedgerWriter(path, FEED) as ledger:
        for service in SERVICES:
            seen = set()
            for datagram in datagrams[service]:
                packet = FEED.decode_packet(datagram)
                if packet.messages and packet.sequence not in seen:
                    seen.add(packet.sequence)
                    ledger.received_packet(datagram)
    return read_ledger(path)


def test_both_lines_carry_the_same_session_and_the_ledger_lists_it(tmp_path):
    plan = plan_of(seed=1, seconds=1.0, ledger=tmp_path / "sent", heartbeat_ms=100)
    with listening(plan) as sockets:
        ended, box = run_beside(Exchange(plan))
        got = receive(sockets, ended)
    (result,) = box
    for service in SERVICES:
        assert got["A", service] == got["B", service]
        packets = [FEED.decode_packet(datagram) for datagram in got["A", service]]
        numbered = [p.sequence for p in packets if p.kind is not PacketKind.HEARTBEAT]
        assert numbered == list(range(1, result.next_sequences[service]))
        assert packets[0].kind is PacketKind.RESET
        assert packets[-1].kind is PacketKind.HEARTBEAT
        assert len(packets) == result.packets[service]
    sent = read_ledger(plan.ledger)
    assert len(sent.records) == sum(result.messages.values()) > 3000
    line_a = {service: got["A", service] for service in SERVICES}
    report = check(FEED, sent, ledger_of(tmp_path / "received", line_a))
    assert report.clean
    assert report.ok == report.expected == len(sent.records)
    assert not result.stopped


def test_what_one_line_loses_the_other_has_and_the_ledger_names_what_one_line_lacks(tmp_path):
    seed = 5
    print(f"seed {seed}")
    faults = (LineFaults(loss=0.1), LineFaults(loss=0.1, delay_us=2000))
    plan = plan_of(
        seed=seed, seconds=1.0, ledger=tmp_path / "sent", faults=faults, spare_shared=True
    )
    with listening(plan) as sockets:
        ended, box = run_beside(Exchange(plan))
        got = receive(sockets, ended)
    (result,) = box
    assert result.lines["A"].dropped > 20
    assert result.lines["B"].dropped > 20
    sent = read_ledger(plan.ledger)
    alone = {service: got["A", service] for service in SERVICES}
    report = check(FEED, sent, ledger_of(tmp_path / "alone", alone))
    assert report.lost_unannounced > 50
    both = {service: got["A", service] + got["B", service] for service in SERVICES}
    report = check(FEED, sent, ledger_of(tmp_path / "both", both))
    assert report.lost_unannounced == report.phantom == report.corrupt == 0
    for service in SERVICES:
        # The close of the session is never lost on purpose.
        assert got["A", service][-1] == got["B", service][-1]


def test_sigterm_ends_an_exchange_in_good_order(tmp_path):
    plan = plan_of(seed=2, ledger=tmp_path / "sent")
    program = (
        "from pathlib import Path\n"
        "from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan\n"
        "from feedhandler.terminal.console import signal_handlers\n"
        f"plan = ExchangePlan(seed=2, instruments=60, messages_per_s=3000.0,"
        f" ledger=Path({str(plan.ledger)!r}), group_prefixes={plan.group_prefixes!r})\n"
        "exchange = Exchange(plan)\n"
        "with signal_handlers(lambda *_: exchange.stop()):\n"
        "    print(exchange.run().stopped)\n"
    )
    with listening(plan) as sockets:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        try:
            first = next(iter(sockets))
            assert select.select([first], [], [], DEADLINE_S)[0], "the exchange sent nothing"
            process.send_signal(signal.SIGTERM)
            got = receive(sockets, lambda: process.poll() is not None)
        finally:
            process.kill()
            output, _ = process.communicate()
    assert process.returncode == 0
    assert output.strip() == b"True"
    line_a = {service: got["A", service] for service in SERVICES}
    for service in SERVICES:
        assert FEED.decode_packet(line_a[service][-1]).kind is PacketKind.HEARTBEAT
    report = check(FEED, read_ledger(plan.ledger), ledger_of(tmp_path / "received", line_a))
    assert report.clean
    assert report.ok == report.expected > 100


def test_a_stop_from_another_thread_ends_a_run_and_progress_is_reported():
    exchange = Exchange(plan_of(seed=3))
    reports = []

    def on_progress(progress):
        reports.append(progress)
        if len(reports) == 2:
            exchange.stop()

    result = exchange.run(on_progress)
    assert result.stopped
    assert reports[1].messages > reports[0].messages > 0
    assert sum(result.messages.values()) >= reports[1].messages


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"interface": "no-such-interface"}, ConfigError),
        ({"group_prefixes": ("10.0.0", "239.1.1")}, ConfigError),
        ({"seconds": -1.0}, UsageError),
        ({"seed": -1}, UsageError),
        ({"messages_per_s": 0.0}, UsageError),
        ({"instruments": 3}, UsageError),
        ({"heartbeat_ms": 0}, UsageError),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_before_anything_is_sent(settings, error):
    with pytest.raises(error):
        Exchange(plan_of(**settings))


def test_a_ledger_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Exchange(plan_of(ledger=tmp_path / "absent" / "ledger"))
