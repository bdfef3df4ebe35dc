"""The oracle of a gateway's output: a subscriber that trusts nothing and checks all that comes.

The oracle stands where a subscriber stands and knows what the exchange sent. Its promises are those
of `Subscriber`'s methods:

* published numbers ascend, each comes once, and what is skipped was announced just before, exactly;
* message bytes are those that were sent (headers may differ: a retransmitted packet has a flag);
* quality tells the truth: while a range is missing or lost and not healed, the stream is not OK and
  not REFRESHED;
* a market fed with the output (cleared at snapshot-begin, then the block, then live packets) equals
  the fault-free market at each snapshot's end, and whenever the stream says that it is whole;
* a packet outside the sequence is published as often as a line brought it, and never more often
  than all lines did;
* what no gap was announced in equals the fault-free stream entirely, by a running hash.

Violations raise `AssertionError` with the service and the number.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable

from sessions import FEED, Session

from feedhandler.market.stream_market import Market
from feedhandler.retrans.ranges import RangeSet

WHOLE = ("OK", "REFRESHED")


class _Service:
    """State of one service as a subscriber knows it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.joined = 0
        self.expected = 0
        self.state = "WAITING"
        #: Ranges, half-open, announced lost (or before the start) and not healed; by first number.
        self.lost: list[tuple[int, int]] = []
        #: One past the last number that the lines did not bring in time, and how far arbitration
        #: has come.
        self.missing_end = 0
        self.reached = 0
        self.started = False
        self.tails: list[int] = []
        self.announced_lost = RangeSet()
        #: What was published, or came in a snapshot instead; and of that, what lay behind where
        #: the stream went back to.
        self.delivered = RangeSet()
        self.covered = RangeSet()
        self.behind = RangeSet()
        self.went_back = False
        self.announced = 0
        self.published = 0
        self.refreshes = 0
        self.chain = hashlib.blake2b(digest_size=16)


class Link:
    """A subscriber that came later and asked for each service's state first (`snapshot=1`)."""

    def __init__(self, attached_ns: int) -> None:
        self.attached_ns = attached_ns
        self.market = Market(FEED, keeps_messages=True)
        #: Services whose state it has.
        self.based: set[int] = set()
        #: Services of which it was told that there is no snapshot.
        self.denied: set[int] = set()
        #: Services of which it gets nothing before its snapshot.
        self.withheld: set[int] = set()

    def block(self, service: int, packets: list[bytes]) -> None:
        """A snapshot and what was published since."""
        assert service not in self.withheld, "a block for a link that takes no part yet"
        self.market.clear(service)
        for packet in packets:
            self.market.apply(packet)
        self.based.add(service)


class Subscriber:
    """All services' output of one run; `clock` is the world's time, for `qualities`."""

    def __init__(self, session: Session, clock: Callable[[], int]) -> None:
        self.session = session
        self.market = Market(FEED, keeps_messages=True)
        self.services = {service: _Service() for service in session.services}
        self.seen = Counter[str]()
        self.links: list[Link] = []
        #: (when, service, state, reason) of each quality message.
        self.qualities: list[tuple[int, int, str, str]] = []
        self.clock = clock
        #: Packets outside the sequence: what each line brought, and what was published.
        self.outside_by = (Counter[bytes](), Counter[bytes]())
        self.outside_delivered = Counter[bytes]()

    # -- what the gateway says --------------------------------------------------------------

    def record(self, service: int, name: str, first: int, end: int) -> None:
        """A record of the ring, before the gateway reads it: what arbitration let through, whether
        or not it is published yet, or said. It is the truth that quality must follow."""
        known = self.services[service]
        if name == "MISSING":
            known.missing_end = end
        elif name == "RESET":
            known.missing_end = 0
        elif name in ("CLOSED", "WITHDRAWN"):
            known.missing_end = end
        if name in ("PACKET", "GAP", "RESET", "START", "WITHDRAWN", "PASSED", "SKIPPED"):
            known.reached = end

    def quality(self, service: int, body: bytes) -> None:
        """A quality message."""
        quality = json.loads(body)
        known = self.services[service]
        assert quality["service"] == service
        known.state, reason = quality["state"], quality["reason"]
        self.seen[f"{known.state}/{reason}"] += 1
        self.qualities.append((self.clock(), service, known.state, reason))
        where = f"service {service}: {quality}"
        if reason == "gap":
            ((first, last),) = quality["lost"]
            assert last >= known.expected, f"{where}, expected {known.expected}"
            known.announced_lost.add(first, last)
            known.lost.append((first, last + 1))
            known.announced += last + 1 - first
        elif reason == "withdrawn":
            first = known.expected = quality["next"]
            known.went_back = True
            known.behind = RangeSet(
                (low, last) for low, last in (*known.delivered, *known.covered) if last >= first
            )
            for low, last in quality["withdrawn"]:
                known.announced_lost.discard(low, last)
                known.announced -= last + 1 - low
            known.lost = [each for each in known.lost if each[0] < first]
            known.lost = [(low, min(end, first)) for low, end in known.lost]
            if quality["doubt"]:
                known.lost.append((first - 1, first))
        elif reason == "start":
            assert not known.started, where
            known.started = True
            known.joined = known.joined or quality["next"]
            first = max(known.expected, 1)
            if quality["next"] > max(first, 2):
                known.lost.append((first, quality["next"]))
            known.expected = quality["next"]
        elif reason == "reset":
            known.epoch += known.joined > 0
            if known.joined:
                # What was lost at the end of an epoch cannot be known.
                known.tails.append(known.expected)
            known.expected = quality["since"] if known.joined else 0
            known.joined, known.started = known.joined or 1, True
            known.lost.clear()
            known.announced_lost.clear()
            known.delivered.clear()
            known.covered.clear()
            known.behind.clear()
            if quality["since"] > 2:
                # Where the epoch began was not seen.
                known.lost.append((1, quality["since"]))
            self.market.clear(service)

    def quality_of_links(self, service: int, body: bytes, links: list[Link]) -> None:
        """A quality message for some links only."""
        quality = json.loads(body)
        assert quality["state"] not in WHOLE, f"service {service}: {quality}"
        self.seen[f"link/{quality['reason']}"] += len(links)
        if quality["reason"] == "no snapshot":
            for link in links:
                link.denied.add(service)

    def packet(self, service: int, sequence: int, following: int, packet: bytes, data: bool):
        """A live packet."""
        known = self.services[service]
        where = f"service {service}, epoch {known.epoch}, packet {sequence}"
        if not data:  # the reset packet itself, which is number 1
            epoch = self.session.resets[packet]
            assert epoch == known.epoch or not known.expected, f"{where}: reset {epoch}"
            if not known.expected:
                known.tails = [0] * epoch
            known.epoch, known.expected = epoch, following
            self.market.apply(packet)
            return
        assert sequence >= known.expected, f"{where}: expected {known.expected}"
        assert sequence not in known.delivered, f"{where}: twice"
        known.delivered.add(sequence, following - 1)
        if sequence > known.expected:
            announced = not known.announced_lost.missing_in(known.expected, sequence - 1) or all(
                known.behind.covers(first, last)
                for first, last in known.announced_lost.missing_in(known.expected, sequence - 1)
            )
            assert announced, f"{where}: not announced what is missing from {known.expected} on"
        known.expected = following
        body = self.session.bodies.get((service, known.epoch, sequence))
        assert body is not None, f"{where} was never sent"
        assert packet[16:] == body, f"{where}: other bytes than were sent"
        known.published += 1
        known.chain.update(body)
        self.market.apply(packet)
        assert known.state not in WHOLE or not known.lost, f"{where}: {known.state}, {known.lost}"

    def block(self, service: int, begin: bytes, packets: list[bytes], last: int, end: bytes, links):
        """A snapshot block: markers, packets, and what it makes of the state; `links`: theirs."""
        known = self.services[service]
        begun, over = json.loads(begin), json.loads(end)
        where = f"service {service}: {over}"
        assert (begun["reason"], over["reason"]) == ("snapshot-begin", "snapshot-end"), where
        assert begun["packets"] == len(packets), where
        assert begun["last"] == last, where
        assert all(len(packet) <= 1400 for packet in packets), where
        if links is not None:
            for link in links:
                link.block(service, packets)
                self.check_state(service, f"{where}, on a link", link.market, over["next"])
            self.seen["link/snapshot-end"] += len(links)
            return
        self.quality_state(known, begun)
        self.market.clear(service)
        for packet in packets:
            self.market.apply(packet)
        if over["next"] > known.expected:
            known.covered.add(known.expected, over["next"] - 1)
        known.expected = over["next"]
        known.joined = known.joined or over["next"]
        known.lost = [(max(first, last + 1), stop) for first, stop in known.lost if stop > last + 1]
        self.quality_state(known, over)
        known.refreshes += 1
        self.seen[f"{over['state']}/snapshot-end"] += 1
        self.check_state(service, where, self.market, known.expected)

    def outside_came(self, line: int, packet: bytes) -> None:
        """A line brings a packet outside the sequence."""
        self.outside_by[line][packet] += 1

    def outside(self, packet: bytes) -> None:
        """Such a packet is published."""
        self.outside_delivered[packet] += 1
        self.seen["outside"] += 1
        assert self.outside_delivered[packet] <= sum(came[packet] for came in self.outside_by)

    def quality_state(self, known: _Service, quality: dict) -> None:
        """The state that a marker tells."""
        known.state = quality["state"]
        self.qualities.append(
            (self.clock(), quality["service"], quality["state"], quality["reason"])
        )

    def settled(self, now_ns: int) -> None:
        """The gateway has done everything that it could do by now: is what it says true?"""
        for service, known in self.services.items():
            if known.state in WHOLE:
                where = f"service {service} at {known.expected} says {known.state}"
                assert not known.lost, f"{where} without {known.lost}"
                missing = known.missing_end > known.reached
                assert not missing, f"{where}, with {known.missing_end - 1} missing"

    # -- what must be true in the end -------------------------------------------------------

    def check_state(self, service: int, where: str, market: Market, following: int) -> None:
        """The rebuilt state is the fault-free one before number `following`."""
        index = self.session.packet_indexes[service, self.services[service].epoch, following - 1]
        digest = self.session.truth(service, index).digest
        assert market.digest(service) == digest, f"{where}: other state at {following}"

    def check_end(self, healed_ns: int) -> None:
        """Every service is whole, at the end of the session, with the fault-free state, and who
        attached after the healing has got each, or was told that it cannot be had."""
        for came in self.outside_by:
            for packet, count in came.items():
                assert self.outside_delivered[packet] >= count, f"outside the sequence: {packet!r}"
        for link in self.links:
            if link.attached_ns >= healed_ns:
                answered = link.based | link.denied
                assert answered == set(self.services), f"a link has only {answered}"
                assert not link.withheld, f"a link still waits for {link.withheld}"
        for service, known in self.services.items():
            last = self.session.last(service)
            where = f"service {service}"
            assert known.state in WHOLE, f"{where} ends {known.state}, lost {known.lost}"
            assert known.epoch == last.epoch, where
            end = last.sequence + 1
            assert known.expected == end, f"{where} ends at {known.expected}, not {end}"
            self.check_state(service, where, self.market, end)
            for link in self.links:
                if service in link.based:
                    self.check_state(service, f"{where}, on a link", link.market, end)
            whole = not (known.announced or known.refreshes or known.went_back)
            if whole and known.joined <= 2:
                assert known.chain.digest() == self.session.chain(service, known.tails), where
        assert not self.market.problems["bad_packet"]
        assert not self.market.problems["bad_message"]
