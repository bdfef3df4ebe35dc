"""NYSE XDP refreshes: the books of a channel by multicast lines, when they were asked for.

A refresh is an answer in one or several packets, marked by their delivery flags: 17 the only one,
18 the first, 19 further ones, 20 the last. Each packet is about one symbol, and begins with a
refresh header (message 35) that says which of how many packets of the symbol it is; the symbol's
first one says up to which number of the live lines it is current (LastSeqNum), each symbol for
itself. Behind it stand the messages of the symbol's state. Mappings of symbols (message 3) that
were asked for come as an answer of their own, without refresh headers. (XDP Common Client
Specification 2.3c; Integrated Feed Client Specification 2.5.)

**What is inferred.** Public material does not say whether the flags enclose the answer to a request
for all symbols, or each symbol by itself. Both are read (`XdpRefreshAssembler`): an answer with
several symbols has all of them; answers with one symbol each, which may be for others as well, are
gathered until every symbol of the latest answer with mappings is there. So a state that lacks
symbols is never taken for whole. Numbers are only compared within an answer.

**How far it reaches.** Applying a message twice would change a book of orders. So of what came
behind the symbol that reaches least far, each symbol gets only the messages with numbers above its
own (`XdpSnapshots.since`).

Sans-IO: a datagram and the time are arguments.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed, pack_messages
from feedhandler.codecs.feed_table import NO_SYMBOL
from feedhandler.retrans.line_assembly import LineAssembly, LineSnapshots
from feedhandler.retrans.packet_cut import PacketCutter
from feedhandler.retrans.protocols.nyse_xdp import HEADER, check_feed
from feedhandler.retrans.refresh import Snapshot, SnapshotBegan
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import Assembler
from feedhandler.retrans.snapshots import PACKET_BYTES_MAX
from feedhandler.retrans.store import PacketStore

#: Delivery flags of an answer's packets.
ONLY, FIRST, FURTHER, LAST = 17, 18, 19, 20
#: Refresh headers: size, type, number of the packet and how many the symbol has; in its first
#: packet also LastSeqNum and LastSymbolSeqNum.
REFRESH_HEADER = 35
FULL_HEADER, SHORT_HEADER = struct.Struct("<HHHHII"), struct.Struct("<HHHH")
#: Bytes of a packet's messages.
BODY_BYTES_MAX = PACKET_BYTES_MAX - HEADER.size


# -- the lines, sent ------------------------------------------------------------------------------


def by_symbol(feed: Feed, messages: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Return messages by their symbols, in order; those without one are left out."""
    found: dict[int, list[bytes]] = {}
    for message in messages:
        symbol = feed.symbol_of(message)
        if symbol != NO_SYMBOL:
            found.setdefault(symbol, []).append(message)
    return found


def refresh_bodies(state: Iterable[list[bytes]], last: int) -> Iterator[list[bytes]]:
    """Yield the messages of each packet of a refresh; `state` has those of each symbol.

    All of it is as of the live number `last`. LastSymbolSeqNum is 0.
    """
    for messages in state:
        runs = pack_messages(messages, BODY_BYTES_MAX - FULL_HEADER.size)
        for number, run in enumerate(runs, 1):
            header = (REFRESH_HEADER, number, len(runs))
            if number == 1:
                yield [FULL_HEADER.pack(FULL_HEADER.size, *header, last, 0), *run]
            else:
                yield [SHORT_HEADER.pack(SHORT_HEADER.size, *header), *run]


def flag_of(index: int, count: int) -> int:
    """Return the delivery flag of an answer's packet at `index` of `count`."""
    if count == 1:
        return ONLY
    return FIRST if index == 0 else LAST if index == count - 1 else FURTHER


# -- the lines, read ------------------------------------------------------------------------------


@dataclass(slots=True)
class Part:
    """The state of one symbol, up to the live number `last`."""

    last: int
    total: int
    send_time: int
    symbol: int = NO_SYMBOL
    number: int = 1
    messages: list[bytes] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class _Answers:
    """Answers received on a line: the answer under way, and parts of those before, by symbol.

    `expected` is the next packet's number, 0 between answers; `first` that of the answer's first.
    `names` are the mappings that the answer brings. `size`: bytes of the answer's messages; `kept`:
    of those `before`.
    """

    deadline_ns: int
    first: int = 0
    expected: int = 0
    part: Part | None = None
    names: dict[int, bytes] = field(default_factory=dict)
    now: dict[int, Part] = field(default_factory=dict)
    before: dict[int, Part] = field(default_factory=dict)
    size: int = 0
    kept: int = 0


class XdpRefreshAssembler(LineAssembly[_Answers]):
    """Assembles the refreshes of one channel's lines.

    A snapshot has the latest mappings in front, where any came: a receiver who joins late learns
    the names by them.
    """

    def __init__(self, feed: Feed, service: int, settings: RecoverySettings) -> None:
        super().__init__(feed, service, settings)
        self._mappings = feed.references.keys()
        #: The mappings of all symbols, from an answer that had several.
        self._names: dict[int, bytes] = {}

    def reset(self, now_ns: int) -> None:
        """Fail what is under way: the live lines begin a new sequence epoch."""
        self._names = {}
        super().reset(now_ns)

    def _process_data(self, line: int, data: bytes, now_ns: int) -> None:
        flag, number = self._header.flags, self._header.sequence
        answers = self._lines.get(line)
        if flag in (ONLY, FIRST):
            if answers is not None and answers.expected and number == answers.first:
                self.counts["outside"] += 1  # a copy
                return
            answers = self._begin(line, answers, now_ns)
        elif answers is None or flag not in (FURTHER, LAST) or number < answers.expected:
            self.counts["outside"] += 1
            return
        elif number > answers.expected or not answers.expected:
            self.counts["outside"] += 1
            if answers.expected:
                self._fail(line, "gap")
            return
        answers.expected = self._header.next_sequence
        answers.deadline_ns = now_ns + self._patience_ns
        if not self._gather(answers, data):
            self._fail(line, "malformed")
        elif answers.kept + answers.size > self._bytes_max:
            self._fail(line, "too_large")
        elif flag in (ONLY, LAST):
            self._end(line, answers)

    def _begin(self, line: int, answers: _Answers | None, now_ns: int) -> _Answers:
        """Begin an answer; one that is under way on the line is forgotten."""
        if answers is None:
            answers = self._lines[line] = _Answers(0)
        self.counts["began"] += 1
        self.counts["started_over"] += answers.expected > 0
        answers.first = self._header.sequence
        answers.part, answers.names, answers.now, answers.size = None, {}, {}, 0
        return answers

    def _gather(self, answers: _Answers, data: bytes) -> bool:
        """Take in the packet just read; return whether it makes sense."""
        index, at = self._index, 0
        if index.count and index.types[0] == REFRESH_HEADER:
            if not self._headed(answers, data[index.offsets[0] :][: index.sizes[0]]):
                return False
            at = 1
        elif answers.now:
            return False  # a packet of mappings amid those of books
        for i in range(at, index.count):
            start, size = index.offsets[i], index.sizes[i]
            message, symbol = data[start : start + size], index.symbols[i]
            answers.size += size
            if at == 0:
                if index.types[i] not in self._mappings:
                    return False
                answers.names[symbol] = message
            elif not self._belongs(answers, symbol):
                return False
            else:
                assert answers.part is not None
                answers.part.messages.append(message)
                answers.part.size += size
        return True

    def _headed(self, answers: _Answers, header: bytes) -> bool:
        """Take in a refresh header; return whether it makes sense where it stands."""
        part = answers.part
        if len(header) >= FULL_HEADER.size:
            _, _, number, total, last, _ = FULL_HEADER.unpack_from(header)
            if number != 1 or not total or (part is not None and part.number != part.total):
                return False
            answers.part = Part(last, total, self._header.send_time)
            if not (answers.now or answers.before):
                self._events.append(SnapshotBegan(self.service, last))
            return not answers.names
        if len(header) < SHORT_HEADER.size or part is None:
            return False
        _, _, number, total = SHORT_HEADER.unpack_from(header)
        part.number += 1
        return bool(number == part.number <= total == part.total)

    @staticmethod
    def _belongs(answers: _Answers, symbol: int) -> bool:
        """Return whether a message belongs to the part under way. The first message with a
        symbol gives the part its own."""
        part = answers.part
        assert part is not None
        if symbol == NO_SYMBOL:
            return True
        if part.symbol == NO_SYMBOL:
            part.symbol = symbol
            answers.now[symbol] = part
        return part.symbol == symbol

    def _end(self, line: int, answers: _Answers) -> None:
        """End an answer: use it, or keep its parts until all symbols are there."""
        answers.expected = 0
        part, names, now = answers.part, answers.names, answers.now
        if part is not None and part.number != part.total:
            self._fail(line, "malformed")
        elif len(now) > 1:
            self._complete(line, now)
        elif len(names) > 1:  # a request is for one symbol, or for all
            self._names = names
            del self._lines[line]
        else:
            for symbol, each in now.items():
                replaced = answers.before.get(symbol)
                answers.kept += each.size - (0 if replaced is None else replaced.size)
                answers.before[symbol] = each
            if len(self._names) > 1 and self._names.keys() <= answers.before.keys():
                self._complete(line, answers.before)
            elif not answers.before:
                del self._lines[line]

    def _complete(self, line: int, parts: dict[int, Part]) -> None:
        del self._lines[line]
        messages = [*self._names.values()]
        messages += [message for part in parts.values() for message in part.messages]
        lowest = min(parts.values(), key=lambda part: part.last)
        reaches = {symbol: part.last for symbol, part in parts.items()}
        self._events.append(self._framed(messages, reaches, lowest.send_time))


class XdpSnapshots(LineSnapshots):
    """The form of NYSE's refreshes: by lines, each symbol as of a number of its own.

    Raises `UsageError` for a feed of another framing, or without mappings of symbols.
    """

    def __init__(self, feed: Feed, settings: RecoverySettings) -> None:
        check_feed(feed)
        if not feed.references:
            raise UsageError(f"{feed.name} maps no symbols", "describe the [reference] message")
        super().__init__(feed, settings)
        self._cutter = PacketCutter(feed)

    def assemblers(self, service: int) -> tuple[Assembler, ...]:
        """One for all lines of a service."""
        return (XdpRefreshAssembler(self._feed, service, self._settings),)

    def since(
        self, snapshot: Snapshot, store: PacketStore, following: int
    ) -> list[tuple[int, int, bytes]]:
        """Return what no symbol's state holds: messages, cut from their packets where need be."""
        found: list[tuple[int, int, bytes]] = []
        for first, end, data in store.packets(snapshot.last + 1, following):
            if first > snapshot.highest:
                found.append((first, end, data))
                continue
            for low, high in self._runs(snapshot, first, data):
                found.append((low, high, self._cutter.cut(data, low, high)))
        return found

    def _runs(self, snapshot: Snapshot, first: int, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield runs of the numbers of a packet's messages that are in no state; none passes
        `highest`."""
        low = first
        messages = list(self._feed.messages_of(data))
        for number, message in enumerate(messages, first):
            reach = snapshot.reaches.get(self._feed.symbol_of(message), snapshot.last)
            if number <= reach or number == snapshot.highest + 1:
                if low < number:
                    yield low, number
                low = number + (number <= reach)
        if low < first + len(messages):
            yield low, first + len(messages)
