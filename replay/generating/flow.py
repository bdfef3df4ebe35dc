# cython: language_level=3, boundscheck=True, cdivision=True
"""The order of events of a generated session: bursts along a plan, services in their mix.

A `Flow` drives the markets of a session. First it resets every channel, sends the reference data
and every book (orders sent again between delimiters, and quotes). Then activity comes in bursts of
a few packets: some visits to shares, their orders in one packet and the quotes that changed in the
next, trades in packets of their own; or an issuer's quotes, a warrant's trade, index values, a
notice, a refresh packet.

When bursts come, the plan says: how many packets there should be by when. A burst is due when the
plan reaches the packets that were sent before it, give or take an exponential wait; where that
leaves much time, some bursts follow the last one after a few milliseconds.

What comes is drawn, and every draw leans towards the debt: kinds of bursts towards each
service's share of packets, messages of a packet towards the service's mean, what events do to the
quotes towards the quotes' mean, visits towards the share of repeats within 1 ms, and those who
come back towards the share within 10 ms. So a session comes to its profile's figures whatever its
length, and the leaning is too weak to be seen in a single burst. Seconds with a size of their own
(peaks) aim at that instead.

Whole numbers throughout: shares in parts per million, means and debts in 1024ths of a message.
"""

from typing import Any

import cython
import numpy
from cython.cimports.feedhandler.replay.generating import indexes
from cython.cimports.feedhandler.replay.generating.books import ShareBooks
from cython.cimports.feedhandler.replay.generating.deals import quotient
from cython.cimports.feedhandler.replay.generating.issuers import IndexValues, IssuerQuotes
from cython.cimports.feedhandler.replay.generating.prng import Crowd, Prng
from cython.cimports.feedhandler.replay.generating.tape import Tape

from feedhandler.codecs.visibility import Readonly

#: Bursts after which the odds of their kinds are looked at again.
WEIGH_EVERY = 32
#: A burst does not follow sooner than this, and of those with time left so many in 1024 follow
#: within a few milliseconds, but no more than so many in a row.
GAP_NS_MIN, TRAIN = 20_000, 970
TRAIN_BURSTS_MAX = 6
TRAIN_NS_MIN, TRAIN_NS_SPREAD = 1_100_000, 5_000_000
#: Messages of one packet of orders and of quotes at most.
ORDERS_MAX, QUOTES_MAX = 21, 26
#: Debts are limited to so many messages: a stretch that could not pay is not paid for ever.
DEBT_MAX = 64
#: After a session's close no burst is due any more.
NEVER_NS = 1 << 62

_GAP_MIN = cython.declare(cython.longlong, GAP_NS_MIN)
_TRAIN = cython.declare(cython.uint, TRAIN)
_TRAIN_MAX = cython.declare(cython.longlong, TRAIN_BURSTS_MAX)
_TRAIN_MIN = cython.declare(cython.longlong, TRAIN_NS_MIN)
_TRAIN_SPREAD = cython.declare(cython.uint, TRAIN_NS_SPREAD)
_DEBT = cython.declare(cython.longlong, DEBT_MAX * 1024)
_SILENT, _FLAT, _SHIFT = (cython.declare(cython.int, 0), cython.declare(cython.int, 1),
                          cython.declare(cython.int, 2))  # fmt: skip
_NEVER = cython.declare(cython.longlong, NEVER_NS)
_WEIGH = cython.declare(cython.longlong, WEIGH_EVERY)
_ORDERS_MAX, _QUOTES_MAX = (cython.declare(cython.int, ORDERS_MAX),
                            cython.declare(cython.int, QUOTES_MAX))  # fmt: skip


@cython.final
@cython.cclass
class Flow:
    """See the module; `market` is made by `session`, `settings` by `profile_plan`.
    `ended` says that the plan is at its end, `next_ns` when the next burst is due, `rounds` how
    often every book was sent, `trading` that they all were, and the market is open; `opened` the
    tape's tables when a stationary stretch began."""

    tape: Readonly[Tape]
    prng: Prng
    books: ShareBooks
    issuers: IssuerQuotes
    indices: IndexValues
    shares: Crowd
    warrants: Crowd
    notices: object
    snapshots: object
    resets: list
    beats: list
    delimiters: cython.uchar[::1]
    modes: cython.uchar[::1]
    ended: Readonly[cython.bint]
    trading: Readonly[cython.bint]
    opened: Readonly[dict]
    next_ns: Readonly[cython.longlong]
    phase: Readonly[cython.int]
    rounds: Readonly[cython.int]
    stationary: cython.bint
    endless: cython.bint
    index: cython.int
    origin_ns: cython.longlong
    start_ns: cython.longlong
    slot_ns: cython.longlong
    names_ns: cython.longlong
    books_ns: cython.longlong
    prelude_byte_ps: cython.longlong
    planned: cython.longlong[::1]
    wanted: cython.longlong[::1]
    weights: cython.longlong[::1]
    base: cython.longlong[::1]
    bodies: cython.ushort[::1]
    base_repeats: cython.longlong
    base_near: cython.longlong
    base_mid: cython.longlong
    slot: cython.Py_ssize_t
    due: Readonly[cython.longlong]
    horizon: cython.longlong
    bursts: cython.longlong
    train: cython.longlong
    refresh_bytes: cython.longlong
    means: cython.int[::1]
    near_ppm: cython.int
    mid_ppm: cython.int
    usual_body: cython.int
    quote_debt: cython.longlong
    order_debt: cython.longlong
    warrant_debt: cython.longlong
    index_debt: cython.longlong
    body_debt: cython.longlong
    trade_debt: cython.longlong
    warrant_trade_debt: cython.longlong
    notice_debt: cython.longlong
    beat_ns: cython.longlong
    beat_every_ns: cython.longlong
    beat_less: cython.int

    def __init__(self, market: Any, settings: Any) -> None:
        self.tape, self.prng, self.books = market.tape, market.prng, market.books
        self.issuers, self.indices = market.issuers, market.indices
        self.shares, self.warrants = market.shares, market.warrants
        self.notices, self.snapshots = market.notices, market.snapshots
        self.resets, self.beats, self.delimiters = market.resets, market.beats, market.delimiters
        plan = settings.plan
        self.planned, self.bodies = memoryview(plan.packets), memoryview(plan.bodies)
        self.modes, self.slot_ns = memoryview(plan.republished), plan.slot_ns
        self.origin_ns = self.start_ns = self.next_ns = settings.start_ns
        self.names_ns, self.books_ns = settings.names_ns, settings.books_ns
        self.stationary = settings.stationary
        self.prelude_byte_ps = settings.prelude_byte_ps
        self.wanted = memoryview(numpy.array(settings.shares_ppm, numpy.int64))
        self.means = memoryview(numpy.array(settings.means, numpy.intc))
        self.near_ppm, self.mid_ppm = settings.near_ppm, settings.mid_ppm
        self.usual_body, self.horizon = settings.usual_body, settings.horizon
        self.beat_every_ns = settings.heartbeat_ns
        self.weights = memoryview(numpy.zeros(indexes.KINDS, numpy.int64))
        self.base = memoryview(numpy.zeros(7, numpy.int64))
        self.phase = indexes.RESETS
        self.index = self.rounds = 0
        self.base_repeats = self.base_near = self.base_mid = 0
        self.ended = False
        self.opened: dict[str, Any] | None = None
        self.slot = 0
        self.due = self.bursts = self.train = self.refresh_bytes = 0
        self.quote_debt = self.order_debt = self.warrant_debt = self.index_debt = 0
        self.body_debt = self.trade_debt = self.warrant_trade_debt = self.notice_debt = 0
        self.beat_ns = self.start_ns + self.beat_every_ns
        self.endless, self.trading = settings.endless, False
        #: What heartbeats say: the next number less this; nothing where it is negative.
        self.beat_less = market.beat_less

    def run(self, until_ns: cython.longlong) -> cython.int:
        """Run everything that is due by `until_ns`, as long as the tape's block has room."""
        while not self.ended and not self.tape.full():
            if self.beat_ns < self.next_ns:
                if self.beat_ns > until_ns:
                    break
                if self.beat_ns > self.tape.now_ns:
                    self.tape.now_ns = self.beat_ns
                self._beat(0)
                continue
            if self.next_ns > until_ns:
                break
            if self.next_ns > self.tape.now_ns:
                self.tape.now_ns = self.next_ns
            if self.phase == indexes.MARKET:
                self._burst()
            elif self.phase == indexes.RESETS:
                self._reset()
            elif self.phase == indexes.NAMES:
                self._name()
            else:
                self._retell()
        return 0

    # -- how it begins ----------------------------------------------------------------------------

    def _reset(self) -> cython.int:
        """Send the first packet of every channel, and fill the books."""
        for channel, packet in enumerate(self.resets):
            if packet is not None:
                self.tape.control(channel, packet, 1)
            self.tape.set_sequence(channel, 2)
        for share in range(self.books.shares):
            self.books.fill(share)
        self.next_ns = max(self.names_ns, self.tape.now_ns)
        self.phase, self.index = indexes.NAMES, 0
        return 0

    def _name(self) -> cython.int:
        """Send the next instrument's reference data."""
        self.tape.set_limit(indexes.REFERENCE, 3)
        before = self._bytes()
        if self.index == 0:
            self.notices.write_boundary(self.notices.start)
        self.notices.write_reference(self.index)
        self.index += 1
        if self.index == self.notices.instruments:
            self.notices.write_boundary(self.notices.end)
            self.tape.cut(indexes.REFERENCE)
            self.phase, self.index = indexes.BOOKS, 0
        self._pace(before)
        if self.phase == indexes.BOOKS:
            self.next_ns = max(self.next_ns, self.books_ns)
        return 0

    def _retell(self) -> cython.int:
        """Send the next share's book, or the next warrant's quote.

        One round over all of them at least, and further ones while the plan says so."""
        before: cython.longlong
        sent: cython.longlong
        before, sent = self._bytes(), self._total()
        body: cython.int = self._body()
        if body == 0:
            body = 1_300
        self.tape.open_limit[indexes.ORDERS] = min(
            max((body + self.prng.below(64)) // 64, 1), _ORDERS_MAX
        )
        limit: cython.int = min(max((body + self.prng.below(52)) // 52, 1), _QUOTES_MAX)
        self.tape.open_limit[indexes.QUOTES] = self.tape.open_limit[indexes.WARRANT_QUOTES] = limit
        if self.index == 0:
            self.tape.put(indexes.ORDERS, self.delimiters, 0, 16, -1)
        if self.index < self.books.shares:
            self.books.retell(self.index)
        elif self.index < self.books.shares + self.issuers.warrants:
            self.issuers.act(self.index - self.books.shares)
        self.index += 1
        if self.index >= self.books.shares + self.issuers.warrants:
            self.tape.put(indexes.ORDERS, self.delimiters, 16, 16, -1)
            for channel in (indexes.QUOTES, indexes.ORDERS, indexes.WARRANT_QUOTES):
                self.tape.cut(channel)
            self.index = 0
            self.rounds += 1
        if self.stationary or not self._republishing():
            self._pace(before)
        else:
            self._schedule(self._total() - sent)
        if self.index == 0 and (self.stationary or not self._republishing()):
            self._open()
        return 0

    def _open(self) -> cython.int:
        """Open the market. A stationary stretch counts from here."""
        i: cython.int
        self.phase, self.trading = indexes.MARKET, True
        for i in range(7):
            self.tape.open_limit[i] = 255
        self.tape.open_limit[indexes.TRADES] = 1
        if self.stationary:
            self.opened = {name: table.copy() for name, table in self.tape.tables.items()}
            self.origin_ns = self.tape.now_ns
            self.slot = 0
            self.due = 0
            for i in range(7):
                self.base[i] = self.tape.packets[i]
            self.base_repeats = self.tape.repeats
            self.base_near = self.tape.within_1_ms
            self.base_mid = self.tape.within_10_ms
        else:
            # A day's reference data is part of what service 101 has of it.
            self.notice_debt = (self.means[indexes.REFERENCE] + 16 * 1024) * self.tape.packets[
                indexes.REFERENCE
            ]
            self.notice_debt -= self.tape.bytes[indexes.REFERENCE] * 1024
        return 0

    def close(self) -> cython.int:
        """End the plan: a heartbeat on every service now, and only heartbeats from here on."""
        self.next_ns = _NEVER
        return self._beat(1)

    def _pace(self, before: cython.longlong) -> cython.int:
        """Set the next time by the bytes sent since `before`, at the rate of the prelude."""
        self.next_ns = self.tape.now_ns + (self._bytes() - before) * self.prelude_byte_ps // 1000
        return 0

    def _republishing(self) -> cython.bint:
        """Return whether books are published anew at this time of the plan."""
        index = (self.tape.now_ns - self.origin_ns) // self.slot_ns
        return 0 <= index < len(self.modes) and self.modes[index] != 0

    # -- when -------------------------------------------------------------------------------------

    def _schedule(self, packets: cython.longlong) -> cython.int:
        """Schedule the next burst, after one of so many packets."""
        self.due += packets * 1000
        if self.endless:
            self._go_round()
        wait: cython.longlong = packets * 1000
        if wait > 20_000:
            wait = 20_000
        at_ns: cython.longlong = self._time_of(
            self.due + self.prng.wait(cython.cast(cython.int, wait)) - wait
        )
        later: cython.longlong = self.tape.now_ns + _GAP_MIN
        if (
            at_ns - later > _TRAIN_SPREAD
            and self.train < _TRAIN_MAX
            and self._body_at(at_ns) == self._body() == 0
            and self.prng.below(1024) < _TRAIN
        ):
            at_ns = self.tape.now_ns + _TRAIN_MIN + self.prng.below(_TRAIN_SPREAD)
            self.train += 1
        else:
            self.train = 0
        self.next_ns = at_ns if at_ns > later else later
        return 0

    def _go_round(self) -> cython.int:
        """Begin the plan again where an endless session is through with it."""
        last: cython.Py_ssize_t = len(self.planned) - 1
        if self.due >= self.planned[last]:
            self.due -= self.planned[last]
            self.origin_ns += last * self.slot_ns
            self.slot = 0
        return 0

    @cython.cfunc
    @cython.exceptval(check=True)
    def _time_of(self, due: cython.longlong) -> cython.longlong:
        """Return when the plan reaches `due` thousandths of a packet; `ended` if it never does."""
        last: cython.Py_ssize_t = len(self.planned) - 1
        if due < 0:
            due = 0
        while self.slot > 0 and self.planned[self.slot] > due:
            self.slot -= 1
        while self.slot < last and self.planned[self.slot + 1] <= due:
            self.slot += 1
        if self.slot >= last:
            if not self.endless:
                self.ended = True
                return self.origin_ns + last * self.slot_ns
            # A little further than this round: as in its last slot.
            self.slot = last - 1
        span: cython.longlong = self.planned[self.slot + 1] - self.planned[self.slot]
        return (
            self.origin_ns
            + self.slot * self.slot_ns
            + (due - self.planned[self.slot]) * self.slot_ns // span
        )

    def _beat(self, everyone: cython.bint) -> cython.int:
        """Put heartbeats for the services that have been idle long enough, or for all of them."""
        channel: cython.int
        oldest: cython.longlong = self.tape.now_ns
        for channel in range(7):
            if everyone or self.tape.now_ns - self.tape.sent_ns[channel] >= self.beat_every_ns:
                number: cython.longlong = 0
                if self.beat_less >= 0:
                    number = self.tape.sequences[channel]
                    number -= self.beat_less
                self.tape.control(channel, self.beats[channel], number)
                # A profile counts every packet; a rate is the market's alone.
                self.due += 0 if self.endless else 1000
            if self.tape.sent_ns[channel] < oldest:
                oldest = self.tape.sent_ns[channel]
        self.beat_ns = oldest + self.beat_every_ns
        return 0

    # -- what -------------------------------------------------------------------------------------

    def _body(self) -> cython.int:
        """Return `_body_at` of the present time."""
        return self._body_at(self.tape.now_ns)

    def _body_at(self, at_ns: cython.longlong) -> cython.int:
        """Return the mean bytes of messages a packet that the plan asks for then; 0: usual."""
        index: cython.longlong = (at_ns - self.origin_ns) // self.slot_ns
        if index < 0 or index >= len(self.bodies):
            return 0
        return self.bodies[index]

    @cython.cfunc
    @cython.exceptval(check=True)
    def _total(self) -> cython.longlong:
        """Return the packets sent so far, on one line."""
        i: cython.int
        total: cython.longlong = 0
        for i in range(14):
            total += self.tape.packets[i]
        return total

    @cython.cfunc
    @cython.exceptval(check=True)
    def _bytes(self) -> cython.longlong:
        """Return the bytes of payload sent so far; of refreshes the estimate, since
        what they did come to depends on the machine's zlib."""
        i: cython.int
        total: cython.longlong = self.refresh_bytes
        for i in range(7):
            total += self.tape.bytes[i]
        return total

    @cython.cfunc
    @cython.exceptval(check=True)
    def _sent(self, channel: cython.int) -> cython.longlong:
        """Return the packets of the stretch so far, of a service or of all refreshes."""
        i: cython.int
        if channel < indexes.REFRESHES:
            return self.tape.packets[channel] - self.base[channel]
        refreshes: cython.longlong = 0
        for i in range(7, 14):
            refreshes += self.tape.packets[i]
        return refreshes

    def _weigh(self) -> cython.int:
        """Weigh the kinds: the share of each, less what it has too much of, over the horizon."""
        kind: cython.int
        channel: cython.int
        total: cython.longlong = 0
        for channel in range(8):
            total += self._sent(channel)
        for kind in range(indexes.KINDS):
            channel = _channel_of(kind)
            wanted: cython.longlong = self.wanted[channel]
            weight: cython.longlong = self._sent(channel) * 1_000_000 - wanted * total
            weight = wanted - quotient(weight, self.horizon)
            weight = max(wanted // 8, min(wanted * 4, weight))
            self.weights[kind] = weight
        return 0

    def _burst(self) -> cython.int:
        """Run one burst of any kind, and schedule the next one."""
        kind: cython.int
        sent: cython.longlong
        size: cython.longlong
        if self.bursts % _WEIGH == 0:
            self._weigh()
        self.bursts += 1
        body: cython.int = self._body()
        sent, size = self._total(), self._bytes()
        total: cython.longlong = 0
        for kind in range(indexes.KINDS):
            total += self.weights[kind]
        draw: cython.longlong = self.prng.below(cython.cast(cython.uint, total))
        kind = 0
        while kind < indexes.KINDS - 1 and draw >= self.weights[kind]:
            draw -= self.weights[kind]
            kind += 1
        if body > self.usual_body * 3 // 2 and kind != indexes.WARRANT:
            kind = indexes.EQUITY
        if body == 0:
            self.body_debt = 0
            self._act(kind, 0)
        else:
            self._act(kind, max(40, min(1_370, body + quotient(self.body_debt, 4))))
            sent, size = self._total() - sent, self._bytes() - size
            self.body_debt += (body + 16) * sent - size
            self.body_debt = max(-20_000, min(20_000, self.body_debt))
            sent = self._total() - sent
        return self._schedule(self._total() - sent)

    def _act(self, kind: cython.int, body: cython.int) -> cython.int:
        """Make a burst of this kind; `body`: wanted bytes of messages a packet, 0: the usual."""
        if kind == indexes.EQUITY:
            self._equities(body)
        elif kind == indexes.WARRANT:
            self._warrants(body)
        elif kind == indexes.WARRANT_TRADE:
            self._warrant_trade()
        elif kind == indexes.INDEX:
            self.index_debt += self.means[indexes.INDICES]
            count: cython.int = max(1, cython.cast(cython.int, self.index_debt // 1024))
            self.index_debt -= count * 1024
            self.indices.show(count)
            self.tape.cut(indexes.INDICES)
        elif kind == indexes.NOTICE:
            self.notice_debt += (
                self.means[indexes.REFERENCE] + (self.tape.bytes[indexes.REFERENCE] + 16) * 1024
            )
            self.notices.report(
                max(0, quotient(self.notice_debt, 1024) - self.tape.bytes[indexes.REFERENCE] - 16)
            )
            self.tape.cut(indexes.REFERENCE)
            self.notice_debt -= self.tape.bytes[indexes.REFERENCE] * 1024
        else:
            self.refresh_bytes += self.snapshots.send()
        return 0

    def _equities(self, body: cython.int) -> cython.int:
        """Visit some shares: a packet of orders, one of the quotes that changed, trades."""
        mean: cython.int
        quotes: cython.int
        before: cython.longlong
        packets: cython.longlong
        mean, quotes = self.means[indexes.ORDERS], self.means[indexes.QUOTES]
        if body > 2 * self.usual_body:
            mean, quotes = body * 1024 // 64, body * 1024 // 52
        elif body:
            mean = max(1024, mean * body // self.usual_body)
            quotes = max(1024, quotes * body // self.usual_body)
        if body > 2 * self.usual_body:
            left: cython.int = min(max(mean // 1024 - 1 + self.prng.below(3), 1), _ORDERS_MAX)
        else:
            left = self._count(mean, self.order_debt if body == 0 else 0, _ORDERS_MAX)
        if body == 0:
            self.order_debt += self.means[indexes.ORDERS] - left * 1024
            self.order_debt = max(-_DEBT, min(_DEBT, self.order_debt))
        # Quotes get their packet unless they have more than their share of packets already.
        silent: cython.bint = (
            self._sent(indexes.QUOTES) * self.wanted[indexes.ORDERS]
            > (self._sent(indexes.ORDERS) + 1) * self.wanted[indexes.QUOTES]
        )
        before, packets = self.tape.messages[indexes.QUOTES], self.tape.packets[indexes.QUOTES]
        owed: cython.longlong = (
            0 if silent else quotes + (quotient(self.quote_debt, 4) if body == 0 else 0)
        )
        if owed > _QUOTES_MAX * 1024:
            owed = _QUOTES_MAX * 1024
        while left > 0:
            share: cython.int = self._share()
            if share < 0:
                break
            left = self._visit(share, left, owed + (before - self._quoted()) * 1024, silent, body)
        self.tape.cut(indexes.ORDERS)
        self.tape.now_ns += 8_000 + self.prng.below(16_000)
        # Full packets of quotes: the rest goes with the next burst's.
        if body <= 2 * self.usual_body:
            self.tape.cut(indexes.QUOTES)
        if body == 0:
            # Some quotes come unwanted, in packets of few: the others make up for it.
            self.quote_debt += self.means[indexes.QUOTES] * (
                self.tape.packets[indexes.QUOTES] - packets
            )
            self.quote_debt -= (self.tape.messages[indexes.QUOTES] - before) * 1024
            self.quote_debt = max(-_DEBT, min(_DEBT, self.quote_debt))
        return 0

    @cython.cfunc
    @cython.exceptval(check=True)
    def _quoted(self) -> cython.longlong:
        """Return the quotes of the stretch, those in the open packet too."""
        return self.tape.messages[indexes.QUOTES] + self.tape.open_count[indexes.QUOTES]

    def _visit(
        self,
        share: cython.int,
        left: cython.int,
        owed: cython.longlong,
        silent: cython.bint,
        body: cython.int,
    ) -> cython.int:
        """Make some events of one share, at most `left`, and return how many are left.

        `owed`: quotes that the events should bring, in 1024ths.
        """
        first: cython.longlong = self._quoted()
        if self._trade_due(body):
            self._trade(share)
            left -= 1
            if left <= 0 or not self._again():
                return left
        while True:
            now: cython.longlong = owed - (self._quoted() - first) * 1024
            each: cython.longlong = quotient(now, left)
            want: cython.int = _FLAT
            if silent or each < 512:
                want = _SILENT
            elif each > 1536 and cython.cast(cython.longlong, self.prng.below(2048)) < each - 1024:
                want = _SHIFT
            self.books.act(share, want)
            left -= 1
            if left <= 0 or not self._again():
                return left
            self.tape.now_ns += self.prng.below(4_000)

    def _trade_due(self, body: cython.int) -> cython.bint:
        """Return whether trades have fewer packets than their share beside the orders'."""
        if body > self.usual_body * 3 // 2:
            return False
        return (self._sent(indexes.TRADES) + 1) * self.wanted[indexes.ORDERS] <= self._sent(
            indexes.ORDERS
        ) * self.wanted[indexes.TRADES]

    def _trade(self, share: cython.int) -> cython.int:
        """Make a trade, and as many last prices as the mean size of trades' packets asks for."""
        if not self.books.cross(share):
            return self.books.act(share, _SHIFT)
        self.trade_debt += self.means[indexes.TRADES] - 64 * 1024
        while self.trade_debt < 0:
            self.tape.now_ns += 2_000 + self.prng.below(4_000)
            self.books.deals.announce(share, self.books.number)
            self.trade_debt += self.means[indexes.TRADES] - 44 * 1024
        return 0

    def _warrant_trade(self) -> cython.int:
        """Make a warrant's trade, and its last price once or twice."""
        warrant: cython.int = self._warrant()
        self.warrant_trade_debt += self.means[indexes.WARRANT_TRADES] - (64 + 44) * 1024
        self.issuers.trade(warrant)
        self.issuers.deals.announce(warrant, self.issuers.number)
        if self.warrant_trade_debt >= 22 * 1024:
            self.issuers.deals.announce(warrant, self.issuers.number)
            self.warrant_trade_debt -= 44 * 1024
        return self.tape.cut(indexes.WARRANT_TRADES)

    def _warrants(self, body: cython.int) -> cython.int:
        """Move issuers' quotes: one packet."""
        mean: cython.int = self.means[indexes.WARRANT_QUOTES]
        if body > 2 * self.usual_body:
            mean = body * 1024 // 52
        elif body:
            mean = max(1024, mean * body // self.usual_body)
        if body > 2 * self.usual_body:
            left: cython.int = min(max(mean // 1024 - 1 + self.prng.below(3), 1), _QUOTES_MAX)
        else:
            left = self._count(mean, self.warrant_debt if body == 0 else 0, _QUOTES_MAX)
        if body == 0:
            self.warrant_debt += self.means[indexes.WARRANT_QUOTES] - left * 1024
            self.warrant_debt = max(-_DEBT, min(_DEBT, self.warrant_debt))
        warrant: cython.int = self._warrant()
        while left > 0:
            self.issuers.act(warrant)
            left -= 1
            if not self._again():
                warrant = self._warrant()
        return self.tape.cut(indexes.WARRANT_QUOTES)

    # -- who --------------------------------------------------------------------------------------

    def _again(self) -> cython.bint:
        """Return whether the next message is of the same instrument."""
        owed: cython.longlong = (self.tape.repeats - self.base_repeats) * self.near_ppm // 1_000_000
        owed -= self.tape.within_1_ms - self.base_near
        odds: cython.longlong = 640 + quotient(owed, 4)
        odds = max(100, min(1_000, odds))
        return self.prng.below(1024) < cython.cast(cython.uint, odds)

    def _echo(self) -> cython.bint:
        """Return whether the next instrument is one that came a few milliseconds ago."""
        owed: cython.longlong = (self.tape.repeats - self.base_repeats) * self.mid_ppm // 1_000_000
        owed -= self.tape.within_10_ms - self.tape.within_1_ms - self.base_mid + self.base_near
        odds: cython.longlong = 400 + quotient(owed, 2)
        odds = max(0, min(1_000, odds))
        return self.prng.below(1024) < cython.cast(cython.uint, odds)

    def _share(self) -> cython.int:
        """Return the next share to visit; -1 where a few draws find only halted ones."""
        _tries: cython.int
        now_ns: cython.longlong = self.tape.now_ns
        share: cython.int = -1
        if self._echo():
            share = self.shares.again(now_ns)
            if share >= 0 and not self.books.halted[share]:
                return share
        for _tries in range(8):
            share = self.shares.draw()
            if self.books.halted[share]:
                share = -1
                continue
            gone: cython.longlong = self.tape.last_ns[indexes.ORDERS * self.tape.symbols + share]
            if gone < 0 or now_ns - gone > 10_000_000:
                break
        if share >= 0:
            self.shares.note(share, now_ns)
        return share

    def _warrant(self) -> cython.int:
        """Return the next warrant to visit."""
        _tries: cython.int
        now_ns: cython.longlong = self.tape.now_ns
        if self._echo():
            warrant: cython.int = self.warrants.again(now_ns)
            if warrant >= 0:
                return warrant
        warrant = 0
        for _tries in range(8):
            warrant = self.warrants.draw()
            gone: cython.longlong = self.tape.last_ns[
                indexes.WARRANT_QUOTES * self.tape.symbols + self.issuers.first + warrant
            ]
            if gone < 0 or now_ns - gone > 10_000_000:
                break
        self.warrants.note(warrant, now_ns)
        return warrant

    def _count(self, mean: cython.int, debt: cython.longlong, most: cython.int) -> cython.int:
        """Draw the number of messages of a packet: around the mean, leaning to the debt."""
        above: cython.longlong = mean - 1024 + quotient(debt, 8)
        if above < 0:
            above = 0
        count: cython.longlong = 1 + (self.prng.wait(cython.cast(cython.int, above)) + 512) // 1024
        return most if count > most else cython.cast(cython.int, count)


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _channel_of(kind: cython.int) -> cython.int:
    """Return the channel by whose packets a kind's bursts are counted."""
    if kind == indexes.EQUITY:
        return indexes.ORDERS
    if kind == indexes.WARRANT:
        return indexes.WARRANT_QUOTES
    if kind == indexes.WARRANT_TRADE:
        return indexes.WARRANT_TRADES
    if kind == indexes.INDEX:
        return indexes.INDICES
    return indexes.REFERENCE if kind == indexes.NOTICE else indexes.REFRESHES
