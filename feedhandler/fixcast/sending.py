"""One channel's way out: messages are numbered, kept, packed and paced into datagrams.

A `ChannelSender` is the publisher without its sockets. `publish` takes application messages, `tick`
does what is due, and `due` counts the datagrams that may leave now, each for every line. The
wait for the token bucket is bounded: while a channel is `full`, nothing more may be published on
it.

Messages of a channel in clear are stamped, packed and kept by compiled code (`stamping`,
`send_queue`), one at a time or many; on a sealed one each datagram is sealed when it is complete.

What was sent stays in `store`, message by message under its number, as far as there is room:
retransmissions come from there.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.datagrams import DATAGRAM_BYTES, UDP_BYTES_MAX, Packer
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.pacing import TokenBucket
from feedhandler.fixcast.send_queue import SendQueue
from feedhandler.fixcast.session import NEVER, PublisherSession, SessionSettings
from feedhandler.fixcast.values import NUMBER_FIRST, NUMBER_MAX, Message
from feedhandler.retrans.store import PacketStore

if TYPE_CHECKING:
    from feedhandler.fixcast.protection import ChannelSealer

#: Upper limit on a channel's datagrams that wait for the bucket: 1.4 MB, or 11 ms at 1 Gbit/s.
WAITING_MAX = 1000


@dataclass(frozen=True, slots=True)
class SendingSettings:
    """Settings of one channel's sending.

    period_ns    the longest wait of a message for others to share its datagram
    bytes_max    upper limit on a datagram's bytes
    long         a message longer than that goes "alone", or is refused: "refuse"
    waiting_max  upper limit on datagrams that wait for the token bucket
    store_bytes  room for messages that are kept for retransmission
    session      intervals of Heartbeat, Logon, Time Beacon
    """

    period_ns: int = 1_000_000
    bytes_max: int = DATAGRAM_BYTES
    long: Literal["alone", "refuse"] = "alone"
    waiting_max: int = WAITING_MAX
    store_bytes: int = 64 << 20
    session: SessionSettings = field(default_factory=SessionSettings)


class ChannelSender:
    """Sender of one channel with a `header`; others on the same network may share `bucket`.

    With a `sealer` datagrams are sealed before they wait, so that the bucket counts sealed bytes.
    """

    def __init__(
        self,
        header: Header,
        settings: SendingSettings,
        bucket: TokenBucket,
        sealer: "ChannelSealer | None" = None,
    ) -> None:
        self.header = header
        self.settings = settings
        self.session = PublisherSession(settings.session)
        self.store = PacketStore(settings.store_bytes)
        self.counts: Counter[str] = Counter()
        self._sealer = sealer
        # Packs messages to be sealed; for a channel in clear only its `longest` is used.
        self._packer = plain_packer(settings, settings.period_ns, sealer)
        self.queue = SendQueue(
            settings.period_ns, settings.bytes_max, self._packer.longest, settings.waiting_max
        )
        self._stamper = header.stamper(0)
        self._bucket = bucket
        self._ready_ns = NEVER

    def start(self, now_ns: int, epoch: int, next_number: int = NUMBER_FIRST) -> None:
        """Begin a sequence epoch, or continue one, and send a Logon."""
        if epoch != self.session.epoch:
            self.store.clear()
        logon = self.session.start(now_ns, epoch, next_number)
        self._stamper = self.header.stamper(epoch)
        self._administer([logon], now_ns)

    @property
    def full(self) -> bool:
        """Return whether the channel takes no messages now."""
        return self.queue.is_full()

    def publish(self, data: bytes, now_ns: int) -> int:
        """Send an application message and return its number.

        Raises `UsageError` where it is none, or is too long, or the channel is `full` or not
        started; it has taken no number then.
        """
        if not self.publish_each([data], 0, 1, now_ns):
            raise UsageError("the channel is full", "publish more slowly, or raise the rate")
        return self.session.next - 1

    def publish_each(self, messages: list[bytes], begin: int, end: int, now_ns: int) -> int:
        """Send `messages[begin:end]` as `publish` does; return how many there was room for.

        It stops before a message that cannot be published. Raises `UsageError` where that is the
        first one.
        """
        self.session.check()
        if self.full:
            return 0
        if self.session.exhausted:
            self._renumber(now_ns)
        first = self.session.next
        end = min(end, begin + NUMBER_MAX - first + 1)
        if self._sealer is not None:
            count = self._publish_sealed(messages[begin:end], now_ns)
        else:
            before = self.queue.message_bytes
            count = self.queue.publish_each(
                self._stamper, self.store, messages, begin, end, first, now_ns
            )
            self.counts["message_bytes"] += self.queue.message_bytes - before
            if count:
                self.session.publish(now_ns, count)
                self._ready_ns = 0
        if count:
            self.counts["messages"] += count
        elif begin < end and not self.full:
            self._refuse(messages[begin])
        return count

    def _refuse(self, data: bytes) -> None:
        """Raise the error of a message that was not taken."""
        message = self.header.application(data, self.session.next, self.session.epoch)
        self._packer.check(len(message))

    def _publish_sealed(self, messages: list[bytes], now_ns: int) -> int:
        """Publish on a sealed channel; return how many messages there was room for."""
        number = self.session.next
        for count, data in enumerate(messages):
            message = self._stamper.stamped(data, number + count)
            if self.full or message is None or len(message) > self._packer.longest:
                return count
            # Its number is taken, even if the datagrams that it completes are dropped.
            self.session.publish(now_ns)
            self.store.append(number + count, number + count + 1, message, 0, len(message), now_ns)
            self._seal(self._packer.add(message, now_ns), now_ns)
            self.counts["message_bytes"] += len(message)
        return len(messages)

    def skip(self, next_number: int, now_ns: int) -> None:
        """Leave out the numbers up to `next_number`, and send the GapFill."""
        self._administer([self.session.skip(next_number, now_ns)], now_ns)

    def tick(self, now_ns: int) -> None:
        """Send what is due: Heartbeats, Logons, Beacons, and the datagram whose period is over."""
        self._administer(self.session.tick(now_ns), now_ns)
        if self._sealer is not None:
            self._seal(self._packer.tick(now_ns), now_ns)
            self._wait(self._sealer.tick(now_ns))
        elif now_ns >= self.queue.deadline_ns:
            self.queue.flush()
            self._ready_ns = 0

    def stop(self, now_ns: int) -> None:
        """End the session with a Logout. Waiting datagrams may still be taken."""
        self._administer(self.session.stop(now_ns), now_ns)
        if self._sealer is not None:
            self._wait(self._sealer.flush(now_ns))

    def repeat(self, datagram: bytes, now_ns: int) -> None:
        """Send a datagram again, among the others: an answer on the main group."""
        self._seal([datagram], now_ns)

    def due(self, now_ns: int, most: int) -> int:
        """Return how many of `queue`'s first datagrams may leave now, `most` at most.

        Call `gone` when they have been sent.
        """
        count = self.queue.due(self._bucket, now_ns, most)
        self._ready_ns = self.queue.ready_ns(self._bucket, now_ns) if not count else 0
        return count

    def gone(self, count: int, now_ns: int) -> None:
        """Remove the first `count` datagrams, sent by now; charge the bucket for one line."""
        self.queue.gone(self._bucket, count, now_ns)
        self.counts["datagrams"] += count

    @property
    def waiting(self) -> int:
        """Number of datagrams that wait for the bucket."""
        return self.queue.count

    @property
    def deadline_ns(self) -> int:
        """Return when `tick`, or `due` where datagrams wait, has something to do next.

        Call `due` first: only it determines when the bucket is ready.
        """
        deadline_ns = min(self.session.deadline_ns, self.queue.deadline_ns)
        if self.queue.count:
            deadline_ns = min(deadline_ns, self._ready_ns)
        if self._sealer is not None:
            deadline_ns = min(deadline_ns, self._packer.deadline_ns, self._sealer.deadline_ns)
        return deadline_ns

    def _renumber(self, now_ns: int) -> None:
        """Begin a new epoch, because all numbers are used up."""
        self._administer(self.session.stop(now_ns), now_ns)
        self.start(now_ns, self.session.epoch + 1)
        self.counts["epochs_used_up"] += 1

    def _administer(self, messages: list[Message], now_ns: int) -> None:
        """Send administrative messages at once, behind everything that has a number."""
        for message in messages:
            data = self.header.administrative(message, self.settings.session.heartbeat_ns)
            if self._sealer is not None:
                self._seal(self._packer.add(data, now_ns), now_ns)
            elif not self.queue.add(data, now_ns):
                self.counts["dropped"] += 1
        if messages and self._sealer is not None:
            self._seal(self._packer.flush(), now_ns)
        elif messages:
            self.queue.flush()
            self._ready_ns = 0

    def _seal(self, datagrams: list[bytes], now_ns: int) -> None:
        """Queue whole datagrams, sealed where the channel is."""
        if self._sealer is not None:
            seal = self._sealer.seal
            datagrams = [sealed for datagram in datagrams for sealed in seal(datagram, now_ns)]
        self._wait(datagrams)

    def _wait(self, datagrams: list[bytes]) -> None:
        """Queue datagrams; one for which there is no slot is dropped and counted, as if lost."""
        for datagram in datagrams:
            if not self.queue.push(datagram):
                self.counts["dropped"] += 1
            self._ready_ns = 0


def plain_packer(
    settings: SendingSettings, period_ns: int, sealer: "ChannelSealer | None"
) -> Packer:
    """Return a packer whose datagrams have the configured size once they are sealed.

    Raises `UsageError` where that leaves no room for messages.
    """
    overhead_bytes = sealer.overhead_bytes if sealer is not None else 0
    if sealer is not None and settings.bytes_max <= overhead_bytes:
        raise UsageError(
            f"a sealed datagram of {settings.bytes_max} bytes has no room for messages",
            f"more than {overhead_bytes}, which the seal takes",
        )
    packer = Packer(period_ns, settings.bytes_max - overhead_bytes, settings.long)
    packer.longest = min(packer.longest, UDP_BYTES_MAX - overhead_bytes)
    return packer


def next_epoch(before: int, wall_ns: int) -> int:
    """Return an epoch above `before`: the wall clock's time, as long as that goes forward."""
    return min(max(before + 1, wall_ns), NUMBER_MAX)
