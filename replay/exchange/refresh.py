"""Snapshots on the refresh lines: cyclically, and on request.

`RefreshFlow` is sans-IO. It is fed with the session's packets, applies them to a `Market`, and
answers, step by step, with the packets of the refresh channel that fall due: one channel a
service, numbered from 1 like any other, with a sequence reset at its start and heartbeats while
it is idle.

A snapshot is cut at the end of a step, from the state after the last packet of that step; its
LastSeqNum is that packet's number, and it leaves after that packet was due. So a client that
applies it and goes on behind LastSeqNum has the exchange's own state. The packets of all snapshots
leave one after another, `packets_per_s` at most, so that no receiver's socket overflows; a snapshot
is not cut while more than `BACKLOG_NS` of earlier ones wait, and the services take turns: the one
that was asked for first, then the next of the cycle.

`request` may be called from any thread, the rest from one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.market.stream_market import Market
from feedhandler.replay.generating.packets import SERVICES, Outgoing
from feedhandler.retrans.protocol import RefreshReject
from feedhandler.retrans.snapshots import SnapshotCutter

#: Packets a second on each refresh line: a snapshot of a thousand packets takes a quarter second.
PACKETS_PER_S = 4_000
#: Earlier snapshots that may still wait to leave when another one is cut.
BACKLOG_NS = 500_000_000
#: As many packets.
BACKLOG_PACKETS = PACKETS_PER_S * BACKLOG_NS // 1_000_000_000
#: Snapshots cut in one step at most, so that a step keeps within its time.
CUTS_PER_STEP = 2
DAY_MS = 86_400_000


class CutSnapshot(NamedTuple):
    """One snapshot as cut: its packets leave from `due_ns` on."""

    due_ns: int
    service: int
    last: int
    packets: list[bytes]


class RefreshFlow:
    """The refresh channels of one session; see the module's text.

    `cycle_ns` is the time between two unasked snapshots of a service, 0 for none; `start_ns` the
    session's start, after midnight. `on_snapshot` is called with each one when it is cut.
    """

    def __init__(
        self,
        feed: Feed,
        state: Market,
        cutter: SnapshotCutter,
        *,
        cycle_ns: int,
        heartbeat_ns: int,
        start_ns: int = 0,
        packets_per_s: int = PACKETS_PER_S,
        services: Sequence[int] = SERVICES,
        on_snapshot: Callable[[CutSnapshot], object] | None = None,
    ) -> None:
        if cycle_ns < 0 or packets_per_s < 1:
            raise UsageError(
                f"refreshes every {cycle_ns} ns, {packets_per_s} packets/s", "use positive values"
            )
        self._feed, self._state, self._cutter = feed, state, cutter
        self._cycle_ns, self._heartbeat_ns, self._start_ns = cycle_ns, heartbeat_ns, start_ns
        self._gap_ns = 1_000_000_000 // packets_per_s
        self.on_snapshot = on_snapshot
        #: The number that the next packet cut, and the next one sent, carries.
        self._cut_next = dict.fromkeys(services, 1)
        self._sent_next = dict.fromkeys(services, 1)
        self._last_sent_ns = dict.fromkeys(services, 0)
        self._cycle_due_ns = {
            service: (index + 1) * cycle_ns // len(services)
            for index, service in enumerate(services)
        }
        self._requested: dict[int, None] = {}
        self._waiting: deque[Outgoing] = deque()
        self._free_ns = self._latest_ns = 0
        self._begun = False
        #: Snapshots cut so far: in their turn, and on request.
        self.cyclic = self.asked = 0

    @property
    def busy(self) -> bool:
        """Whether a snapshot is asked for, or is on its way."""
        return bool(self._requested or self._waiting)

    def request(self, service: int) -> RefreshReject:
        """Request a snapshot; requests of one service share the next one."""
        if service not in self._cut_next:
            return RefreshReject.WRONG_SERVICE
        self._requested[service] = None
        return RefreshReject.NONE

    def apply(self, packets: Iterable[Outgoing]) -> None:
        """Apply the session's next packets, in order."""
        apply = self._state.apply
        for packet in packets:
            apply(packet.packet)
            if packet.due_ns > self._latest_ns:
                self._latest_ns = packet.due_ns

    def step(self, until_ns: int, next_sequences: Mapping[int, int]) -> list[Outgoing]:
        """Return the refresh packets due by `until_ns`, in order of `due_ns`.

        `next_sequences` are the numbers that the live services' next packets will carry.
        """
        answer = [] if self._begun else self._begin()
        for service in self._due(until_ns):
            if self._free_ns - until_ns > BACKLOG_NS:
                break
            self._cut(service, next_sequences[service] - 1, until_ns)
        answer += self._release(until_ns)
        answer += self._heartbeats(until_ns)
        return answer

    def _begin(self) -> list[Outgoing]:
        self._begun = True
        resets = [self._control("reset", service, 0) for service in self._cut_next]
        for service in self._cut_next:
            self._cut_next[service] = self._sent_next[service] = 2
        return resets

    def _due(self, until_ns: int) -> list[int]:
        """Return the services whose snapshots are due: requests first, then the longest overdue."""
        asked = list(self._requested)[:CUTS_PER_STEP]
        if not self._cycle_ns:
            return asked
        turn = [s for s, due in self._cycle_due_ns.items() if due <= until_ns and s not in asked]
        turn.sort(key=self._cycle_due_ns.__getitem__)
        return (asked + turn)[:CUTS_PER_STEP]

    def _cut(self, service: int, last: int, now_ns: int) -> None:
        if service in self._requested:
            del self._requested[service]
            self.asked += 1
        else:
            self.cyclic += 1
            # A turn that was missed is not made up for.
            late = (now_ns - self._cycle_due_ns[service]) // self._cycle_ns
            self._cycle_due_ns[service] += (1 + late) * self._cycle_ns
        sequence, due_ns = self._cut_next[service], max(now_ns, self._latest_ns, self._free_ns)
        messages = self._state.snapshot(service)
        packets = self._cutter.cut(service, messages, last, sequence, self._clock_ms(due_ns))
        self._cut_next[service] += len(packets)
        for number, packet in enumerate(packets):
            self._waiting.append(Outgoing(due_ns + number * self._gap_ns, service, packet, 0))
        self._free_ns = due_ns + len(packets) * self._gap_ns
        if self.on_snapshot is not None:
            self.on_snapshot(CutSnapshot(due_ns, service, last, packets))

    def _release(self, until_ns: int) -> list[Outgoing]:
        answer, waiting = [], self._waiting
        while waiting and waiting[0].due_ns <= until_ns:
            packet = waiting.popleft()
            self._sent_next[packet.service] += 1
            self._last_sent_ns[packet.service] = packet.due_ns
            answer.append(packet)
        return answer

    def _heartbeats(self, until_ns: int) -> list[Outgoing]:
        """Return a heartbeat of every service that has been idle long enough."""
        beats = []
        for service, sent_ns in self._last_sent_ns.items():
            if until_ns - sent_ns >= self._heartbeat_ns:
                self._last_sent_ns[service] = until_ns
                beats.append(self._control("heartbeat", service, until_ns))
        return beats

    def _control(self, kind: str, service: int, due_ns: int) -> Outgoing:
        """Make a packet without messages; a heartbeat's number is as the feed defines it."""
        number = self._sent_next[service]
        if kind == "heartbeat":
            said = {"next": number, "last": number - 1, "none": 0}
            number = said[self._feed.description.packet.sequence.heartbeat]
        packet = self._feed.encode_packet(
            kind=kind, sequence=number, service=service, send_time=self._clock_ms(due_ns)
        )
        return Outgoing(due_ns, service, packet, 0)

    def _clock_ms(self, ns: int) -> int:
        return (self._start_ns + ns) // 1_000_000 % DAY_MS
