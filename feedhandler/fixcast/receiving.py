"""One channel's way in: datagrams go in, the stream and requests come out.

A `ChannelReceiver` is the receiver without its sockets: it reads datagrams, keeps the channel's
`Reception`, and requests what is missing where there is a server. A faulty datagram is read up to
the faulty message; faults are counted by reason, and sealed datagrams, for which
`fixcast.protection` has the keys, as `sealed`. Messages of another topic, as a shared
retransmission group brings them, are skipped.
"""

from collections import Counter

from feedhandler.codecs.fix.framing import Frame
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.fixcast.datagrams import SEALED
from feedhandler.fixcast.messages import read_datagram
from feedhandler.fixcast.reception import (
    Deliver,
    Event,
    Missing,
    NewEpoch,
    Reception,
    ReceptionSettings,
)
from feedhandler.retrans.fix.client import Requester, RequesterSettings
from feedhandler.retrans.fix.request import ResendRequest


class ChannelReceiver:
    """Receiver of the channel `name`, whose messages have the topic `topic` (b"": none).

    `requests` None: what the lines lose is lost.
    """

    def __init__(
        self,
        name: str,
        topic: bytes,
        reception: ReceptionSettings,
        requests: RequesterSettings | None,
        seed: int,
        now_ns: int,
    ) -> None:
        self.name = name
        self.topic = topic
        self.reception = Reception(reception, now_ns)
        self.requester = Requester(name, requests, seed) if requests else None
        self.counts: Counter[str] = Counter()
        self._frame = Frame()

    def datagram(self, data: bytes, line: int, now_ns: int) -> list[Event]:
        """Take a datagram from a line, or from `RETRANSMISSION`; return the resulting events."""
        if data.startswith(SEALED):
            self.counts["sealed"] += 1
            return []
        messages, fault = read_datagram(data, self._frame)
        if fault:
            self.counts[f"wrong_{FixReject(fault).name.lower()}"] += 1
        events: list[Event] = []
        for message in messages:
            if self.topic and message.topic != self.topic:
                self.counts["other_topic"] += 1
                continue
            found = self.reception.receive(message, line, now_ns)
            self._follow(found, now_ns)
            events += found
        return events

    def finish(self) -> list[Event]:
        """Give up what is missing; return the last events of a receiver that stops."""
        return self.reception.finish()

    def tick(self, now_ns: int) -> list[Event]:
        """Do what is due by the time; return the resulting events."""
        events = self.reception.tick(now_ns)
        self._follow(events, now_ns)
        return events

    def requests(self, now_ns: int) -> list[ResendRequest]:
        """Return the requests that are due."""
        return self.requester.tick(now_ns) if self.requester else []

    @property
    def deadline_ns(self) -> int:
        """When `tick` or `requests` has something to do next."""
        deadline_ns = self.reception.deadline_ns
        return min(deadline_ns, self.requester.deadline_ns) if self.requester else deadline_ns

    def _follow(self, events: list[Event], now_ns: int) -> None:
        """Inform the requester of what is missing, and what no longer is."""
        if self.requester is None:
            return
        for first, last in self.reception.settled:
            self.requester.settled(first, last, now_ns)
        for event in events:
            if isinstance(event, Missing):
                self.requester.missing(event.first, event.last, now_ns)
            elif isinstance(event, NewEpoch):
                self.requester.clear()


def described(event: Event) -> dict[str, object]:
    """Return an event as a JSON object; of a message only its number and size."""
    if isinstance(event, Deliver):
        return {"event": "message", "number": event.number, "bytes": len(event.body)}
    if isinstance(event, NewEpoch):
        return {"event": "new-epoch", "epoch": event.epoch, "ended": event.ended}
    return {"event": _names(type(event).__name__), **event._asdict()}


def _names(text: str) -> str:
    return "".join(f"-{each.lower()}" if each.isupper() else each for each in text).lstrip("-")
