"""The gateway's own arbitration finds in generated lines what their ledger tells, and no more."""

from collections import defaultdict

import pytest

from feedhandler.codecs import scanner
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.ingest.arbitration import Arbiter
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.generating.tape import CHANNELS, REALTIME
from feedhandler.replay.generating.traffic import Traffic
from tests.support.market_traffic import FEED, stretch

MS = 1_000_000


class Service:
    """One service's lines in, its stream out."""

    def __init__(self, now_ns: int) -> None:
        self.ring = Ring(1 << 18)
        self.arbiter = Arbiter(self.ring, settings=ArbitrationSettings())
        self.packets: list[int] = []
        self.missing = 0
        self.others: list[RecordKind] = []
        self.header = PacketHeader()
        self.arbiter.start(now_ns)

    def receive(self, line: int, packet: bytes, now_ns: int) -> None:
        while self.arbiter.deadline_ns <= now_ns:
            self.arbiter.tick(self.arbiter.deadline_ns)
        view = memoryview(packet)
        assert scanner.parse_header(FEED.table, view, 0, len(packet), self.header) == 0
        self.arbiter.receive(line, self.header, view, 0, now_ns, now_ns)
        self.read()

    def read(self) -> None:
        self.ring.publish()
        for event in self.ring.drain():
            if event.kind is RecordKind.PACKET:
                self.packets.append(event.sequence)
            elif event.kind is RecordKind.GAP:
                self.missing += event.next_sequence - event.sequence
            elif event.kind not in (RecordKind.LINE_SILENT, RecordKind.LINE_BACK):
                self.others.append(event.kind)


def arbitrated(traffic: Traffic) -> dict[int, Service]:
    """Every service after all that both lines bring of it."""
    services: dict[int, Service] = {}
    now_ns = 0
    for datagrams in traffic.datagrams():
        for row in range(len(datagrams)):
            line, channel = divmod(int(datagrams.destination[row]), CHANNELS)
            if channel >= REALTIME:
                continue
            now_ns = int(datagrams.time_ns[row])
            if channel not in services:
                services[channel] = Service(now_ns - MS)
            services[channel].receive(line, datagrams.payload(row), now_ns)
    for service in services.values():
        while service.arbiter.deadline_ns <= now_ns + 1_000 * MS:
            service.arbiter.tick(service.arbiter.deadline_ns)
        service.read()
    return services


def sent(traffic: Traffic) -> dict[int, int]:
    """The last number of each service."""
    return {
        channel: int(traffic.tape.tables["sequences"][channel]) - 1 for channel in range(REALTIME)
    }


def test_two_whole_lines_are_one_stream_without_a_gap() -> None:
    traffic = stretch(6)
    services = arbitrated(traffic)
    for channel, last in sent(traffic).items():
        service = services[channel]
        assert service.packets == list(range(1, last + 1)), SERVICES[channel]
        assert service.missing == 0
        assert set(service.others) <= {RecordKind.START, RecordKind.RESET}


@pytest.mark.parametrize("seed", [7, 8])
def test_what_is_missing_is_what_both_lines_lost(seed: int) -> None:
    traffic = stretch(seed, loss=(0.05, 0.05))
    lost: dict[int, set[int]] = defaultdict(set)

    def note(data, columns) -> None:
        for row in (columns["lost"] == 3).nonzero()[0].tolist():
            at = int(columns["offset"][row])
            number = int.from_bytes(data[at + 4 : at + 8].tobytes(), "big")
            lost[int(columns["channel"][row])].add(number)

    traffic.on_block = note
    services = arbitrated(traffic)
    assert sum(len(numbers) for numbers in lost.values()) > 5
    for channel, last in sent(traffic).items():
        packets = services[channel].packets
        assert packets == sorted(set(packets))
        # A first or last packet that neither line brought is no line's gap.
        known = set(range(packets[0], packets[-1] + 1))
        assert known - set(packets) == lost[channel] & known
        assert services[channel].missing == len(lost[channel] & known)
        assert packets[-1] <= last
