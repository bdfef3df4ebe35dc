"""Translated messages through a publisher's and a receiver's real datagrams, without sockets."""

from collections.abc import Iterable, Iterator

from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.pacing import TokenBucket
from feedhandler.fixcast.receiving import ChannelReceiver
from feedhandler.fixcast.reception import Deliver, Lost, ReceptionSettings
from feedhandler.fixcast.sending import ChannelSender, SendingSettings
from tests.support.fixcast import pop_due

SENDER, TOPIC = b"REAL", b"translated"
EPOCH = 1_700_000_000_000_000_000
MS = 1_000_000
#: Every message waits so long for others to share its datagram; they come every hundredth of it.
PERIOD_NS = MS


class Wire:
    """A channel: its publisher, two lines that lose every third datagram in turn, its receiver.

    `datagrams` has what was published; `bodies` the messages that came, by number.
    """

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        bucket = TokenBucket(1 << 40, 1 << 30)
        settings = SendingSettings(period_ns=PERIOD_NS)
        self.sender = ChannelSender(Header(b"FIXT.1.1", SENDER, TOPIC), settings, bucket)
        self.receiver = ChannelReceiver("c", TOPIC, ReceptionSettings(), None, 1, self.now_ns)
        self.datagrams: list[bytes] = []
        self.bodies: dict[int, bytes] = {}
        self.sender.start(self.now_ns, EPOCH)

    def publish(self, messages: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Publish messages; those that arrive meanwhile, with their numbers."""
        for message in messages:
            self.now_ns += PERIOD_NS // 100
            self.sender.publish(message, self.now_ns)
            yield from self._turn()

    def end_period(self) -> Iterator[tuple[int, bytes]]:
        """End the datagram's period, and yield the messages that arrive as (number, body)."""
        self.now_ns += PERIOD_NS
        yield from self._turn()

    def end(self) -> Iterator[tuple[int, bytes]]:
        """Send a Logout, and yield the messages still on their way as (number, body)."""
        self.now_ns += PERIOD_NS
        self.sender.stop(self.now_ns)
        yield from self._turn()
        assert not self.sender.waiting

    def _turn(self) -> Iterator[tuple[int, bytes]]:
        self.sender.tick(self.now_ns)
        for datagram in pop_due(self.sender, self.now_ns):
            self.datagrams.append(datagram)
            lost = (None, 0, 1)[len(self.datagrams) % 3]
            for line in (0, 1):
                if line != lost:
                    yield from self._arrive(datagram, line)

    def _arrive(self, datagram: bytes, line: int) -> Iterator[tuple[int, bytes]]:
        for event in self.receiver.datagram(datagram, line, self.now_ns):
            assert not isinstance(event, Lost)
            if isinstance(event, Deliver):
                self.bodies[event.number] = event.body
                yield event.number, event.body
