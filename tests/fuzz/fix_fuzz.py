"""Mutated FIX messages through the compiled codec: exactly one typed answer each, nothing read
outside a message, the same from the interpreted twin, and a second library as judge.

Valid messages of many types are damaged field by field (fields left out, doubled, swapped, with
wrong tags, values, counts, lengths), most of them with a BodyLength that fits; then thousands of
copies at a time byte by byte, most of them with a CheckSum that fits again, so that the damage
reaches the index. Every batch is read twice, with different bytes between the messages: a read
outside of one would change the answer. Of each batch a sample, each in a buffer of exactly its
size, goes through both twins, as a datagram and through the columns; and what we find right,
simplefix must read as the same fields.

    python -m tests.fuzz.fix_fuzz --count 100000000 --seed 1

prints the seed, the rate and how often each reject reason came. Exit code 1 where one never came.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy
import simplefix

from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.reasons import FixReject
from tests.fuzz.command import Command
from tests.support.fix_messages import sealed, summed
from tests.support.fix_twins import BOTH, COMPILED, of_twin

#: Messages that are read in one turn, of so many different ones.
BATCH_MESSAGES = 4_096
BATCH_ORIGINALS = 64
#: Damaged messages that bytes are changed in, made once.
POOL_MESSAGES = 2_000
#: Messages of a batch that also go through the twin, the columns and the judge.
SAMPLE_MESSAGES = 12
SLACK_BYTES = 16
#: Fields that an index has room for: few, so that some messages have more.
INDEX_FIELDS = 48
#: What cannot come of a message: no message at all, and groups deeper than our dictionary has them.
UNREACHABLE = (FixReject.NO_MESSAGES, FixReject.NESTING_TOO_DEEP)
#: Bytes that mean something in FIX, and some that do not.
BYTES = numpy.frombuffer(b"0123456789=\x01-.NYABXzf \x00\x7f\xff:", numpy.uint8)

HEADER = b"34=12|49=PUB|56=TOPIC|52=20260102-03:04:05.678|"
BODIES = [
    b"35=X|" + HEADER + b"268=2|279=0|269=0|278=1|55=AB|270=1.25|271=100|273=09:30:00|"
    b"279=1|269=1|55=CD|270=-1|271=5|290=2|",
    b"35=W|" + HEADER + b"1021=2|55=AB|454=1|455=x|456=8|291=1 2|268=1|269=0|270=1|15=EUR|"
    b"453=1|448=p|447=D|452=1|802=1|523=q|803=4|",
    b"35=A|" + HEADER + b"98=0|108=30|95=7|96=a\x0110=1\x01|141=Y|464=N|",
    b"35=4|" + HEADER + b"43=Y|123=Y|36=20|",
    b"35=0|" + HEADER + b"112=x|",
    b"35=UB|52=20260102-03:04:05.678|",
    b"35=V|" + HEADER + b"262=r|263=1|264=0|267=2|269=0|269=1|146=2|55=A|200=202612|55=B|",
    b"35=AE|" + HEADER + b"571=t|55=A|470=GB|32=1|31=2.5|75=20260102|552=1|54=1|37=o|",
    b"35=0|" + HEADER + b"627=2|628=a|629=20260102-03:04:05|628=b|90=3|91=x|y|",
    b"35=X|" + HEADER + b"268=12|" + b"279=0|269=0|270=1|55=A|" * 12,
]


class Damage:
    """Damages messages field by field."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.ways: list[Callable[[list[bytes]], None]] = [
            self.leave_out,
            self.double,
            self.swap,
            self.retag,
            self.revalue,
            self.recount,
            self.renumber,
            self.lie_of_data,
        ]

    def _index(self, fields: list[bytes]) -> int:
        return self.source.randrange(len(fields))

    def leave_out(self, fields: list[bytes]) -> None:
        fields.pop(self._index(fields))

    def double(self, fields: list[bytes]) -> None:
        fields.insert(self._index(fields), fields[self._index(fields)])

    def swap(self, fields: list[bytes]) -> None:
        one, other = self._index(fields), self._index(fields)
        fields[one], fields[other] = fields[other], fields[one]

    def retag(self, fields: list[bytes]) -> None:
        tag = self.source.choice(
            b"4999|5001|0|055|1234567890|x|-1|8|10|89|35|34|112|269|270|55|65537|56|".split(b"|")
        )
        index = self._index(fields)
        fields[index] = tag + b"=" + fields[index].partition(b"=")[2]

    def revalue(self, fields: list[bytes]) -> None:
        value = self.source.choice(
            b"|x|18446744073709551615|-5|1.2.3|Y|20260230|ZZ|=|0|10=123|UXY|1e5|24:00:00".split(
                b"|"
            )
        )
        index = self._index(fields)
        fields[index] = fields[index].partition(b"=")[0] + b"=" + value

    def recount(self, fields: list[bytes]) -> None:
        counts = [at for at, field in enumerate(fields) if field[:4] in (b"268=", b"453=", b"267=")]
        if counts:
            index = self.source.choice(counts)
            fields[index] = fields[index][:4] + b"%d" % self.source.choice([0, 1, 2, 3, 99])

    def renumber(self, fields: list[bytes]) -> None:
        numbers = [at for at, field in enumerate(fields) if field[:3] in (b"34=", b"36=")]
        if numbers:
            index = self.source.choice(numbers)
            number = self.source.choice([b"18446744073709551615", b"9" * 25, b"0", b"7x"])
            fields[index] = fields[index][:3] + number

    def lie_of_data(self, fields: list[bytes]) -> None:
        lengths = [at for at, field in enumerate(fields) if field[:3] in (b"95=", b"90=")]
        if lengths:
            index = self.source.choice(lengths)
            lie = self.source.choice([b"0", b"1", b"2", b"8", b"999", b"9999999999", b"x"])
            fields[index] = fields[index][:3] + lie

    def message(self) -> bytes:
        """A message with none to three faults in its fields, or one in its envelope."""
        body = self.source.choice(BODIES)
        # `|` ends fields here, SOH stands within data alone.
        fields = body.split(b"|")[:-1]
        for _ in range(self.source.randrange(4)):
            if len(fields) > 1:
                self.source.choice(self.ways)(fields)
        whole = sealed(b"".join(field + b"|" for field in fields))
        return self._damage_envelope(whole) if self.source.random() < 0.2 else whole

    def _damage_envelope(self, whole: bytes) -> bytes:
        length = whole.split(b"\x01")[1]
        body = whole[whole.index(b"\x01", 10) + 1 : -7]
        lies = [b"9=%d" % (int(length[2:]) + lie) for lie in (-7, -1, 1, 7, 300)]
        lies += [b"9=x", b"9=", b"9=3", b"9=12345678", b"9=1234567890", b"08=1", b"35=0"]
        begins = [b"8=FIXT.1.1", b"8=FIX" + b"x" * 20, b"8=FOX", b"9=5", b"8=FIX.4.4"]
        choice = self.source.randrange(7)
        if choice == 0:
            return whole[: self.source.randrange(1, len(whole))]
        if choice == 1:
            return whole[:-7] + self.source.choice([b"10=1x3\x01", b"10=1234", b"11=123\x01"])
        if choice == 2:
            return summed(whole[:-8] + b"?")
        if choice == 3:
            # Another message behind: what is there is enough for a length that is too long.
            lie = b"9=%d" % (int(length[2:]) + self.source.randrange(20))
            return summed(b"8=FIXT.1.1\x01" + lie + b"\x01" + body) + whole
        begin = self.source.choice(begins)
        said = self.source.choice([length, *lies])
        return summed(begin + b"\x01" + said + b"\x01" + body)


class Fuzzer:
    """Damages messages and holds the answers against each other."""

    def __init__(self, seed: int) -> None:
        source = random.Random(seed)
        damage = Damage(source)
        dictionary = load_dictionary("fix50sp2")
        self.random = numpy.random.default_rng(seed)
        self.pool = [damage.message() for _ in range(POOL_MESSAGES)]
        self.messages = self.compared = self.judged = 0
        self.reasons: Counter[FixReject] = Counter()
        self.readers = []
        for fix in BOTH.values():
            table = of_twin(fix, dictionary)
            index = fix["index"].FieldIndex(table, INDEX_FIELDS)
            self.readers.append((fix, table, fix["framing"].Frame(1 << 16), index))
        self.columns = COMPILED["entries"].EntryColumns(self.readers[0][1], 1_000)

    def batch(self, count: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """(rows, sizes): `count` damaged messages, `sizes[i]` bytes of row i."""
        chosen = [self.pool[at] for at in self.random.integers(0, len(self.pool), BATCH_ORIGINALS)]
        originals = numpy.zeros((BATCH_ORIGINALS, max(map(len, chosen))), numpy.uint8)
        for row, message in zip(originals, chosen, strict=True):
            row[: len(message)] = numpy.frombuffer(message, numpy.uint8)
        which = numpy.arange(count) % BATCH_ORIGINALS
        rows = originals[which]
        sizes = numpy.array([len(message) for message in chosen])[which]
        for _ in range(2):
            hit = numpy.flatnonzero(self.random.integers(0, 3, count) == 0)
            index = (self.random.random(len(hit)) * sizes[hit]).astype(numpy.int64)
            rows[hit, index] = self.random.choice(BYTES, len(hit))
        self._fit_check_sums(rows, sizes)
        return rows, sizes

    def _fit_check_sums(self, rows: numpy.ndarray, sizes: numpy.ndarray) -> None:
        """Let the CheckSum fit, but for one message in sixteen, and those that are cut."""
        every = numpy.arange(len(rows))
        fit = (self.random.integers(0, 16, len(rows)) > 0) & (sizes > 12)
        ends = numpy.maximum(sizes, 12)
        is_sum = (rows[every, ends - 7] == ord("1")) & (rows[every, ends - 5] == ord("="))
        counted = numpy.arange(rows.shape[1]) < (ends - 7)[:, None]
        sums = (rows * counted).sum(axis=1) % 256
        fit &= is_sum
        for index, power in ((4, 100), (3, 10), (2, 1)):
            rows[every[fit], ends[fit] - index] = 48 + sums[fit] // power % 10

    def check(self, rows: numpy.ndarray, sizes: numpy.ndarray) -> None:
        """Read a batch twice, with different surroundings; then a sample of it closely."""
        answers = [self._read(rows, sizes, filling) for filling in (0x01, 0xFF)]
        assert answers[0] == answers[1], "bytes outside of a message changed the answer"
        self.messages += len(rows)
        for each in answers[0]:
            self.reasons.update((FixReject(each[0]), FixReject(each[1])))
        for index in self.random.integers(0, len(rows), SAMPLE_MESSAGES):
            self.compare(rows[index, : sizes[index]].tobytes())

    def _read(self, rows: numpy.ndarray, sizes: numpy.ndarray, filling: int) -> list[Any]:
        width = rows.shape[1] + SLACK_BYTES
        buffer = numpy.full((len(rows), width), filling, numpy.uint8)
        inside = numpy.arange(rows.shape[1]) < sizes[:, None]
        buffer[:, : rows.shape[1]][inside] = rows[inside]
        data = memoryview(buffer.reshape(-1))
        fix, table, frame, index = self.readers[0]
        read, walk = fix["index"].read_message, fix["datagram"].walk_datagram
        datagram = fix["datagram"].Datagram()
        found = []
        for start, size in zip(range(0, len(data), width), sizes.tolist(), strict=True):
            verdict = read(table, data, start, size, frame, index)
            said = (index.count, index.entry_count, index.fault_at, index.fault_tag)
            walked = walk(data, start, size, frame, datagram)
            found.append((verdict, walked, *said, datagram.fault_at, datagram.next_sequence))
        return found

    def compare(self, message: bytes) -> None:
        """Both twins over one message in a buffer of its own size; a judge where it is right."""
        answers = [self._answer(*reader, message) for reader in self.readers]
        assert answers[0] == answers[1], f"the twins differ over {message!r}: {answers}"
        self.compared += 1
        verdict, fields, *_ = answers[0]
        if verdict == FixReject.FINE:
            self.judge(message, fields)
        self.columns.clear()
        rejects = numpy.zeros(len(FixReject), numpy.uint64)
        self.columns.decode(message, 0, len(message), rejects)
        spans = self.columns.arrays()
        assert (spans["symbol_at"] + spans["symbol_size"] <= len(message)).all()

    def judge(self, message: bytes, fields: list[tuple[int, bytes]]) -> None:
        """simplefix reads the same fields."""
        parser = simplefix.FixParser()
        parser.append_buffer(message)
        theirs = parser.get_message()
        assert theirs is not None, f"simplefix finds no message in {message!r}"
        # Of a message and what stands behind it both read the message.
        assert [(int(tag), value) for tag, value in theirs.pairs] == fields, message
        self.judged += 1

    @staticmethod
    def _answer(fix: Any, table: Any, frame: Any, index: Any, message: bytes) -> tuple[Any, ...]:
        verdict = fix["index"].read_message(table, message, 0, len(message), frame, index)
        fields = index.fields(message) if verdict == FixReject.FINE else []
        said = [index.count, index.fault_at, index.fault_tag, index.declared, index.found]
        datagram = fix["datagram"].Datagram()
        walked = fix["datagram"].walk_datagram(message, 0, len(message), frame, datagram)
        numbers = [datagram.sequence, datagram.next_sequence, datagram.fault_at]
        numbers += [datagram.new_sequence, datagram.send_time_ns, datagram.consecutive]
        return verdict, fields, walked, said + numbers

    @property
    def missing(self) -> list[str]:
        """Reasons that never came."""
        return [
            reason.name
            for reason in FixReject
            if not self.reasons[reason] and reason not in UNREACHABLE
        ]

    def report(self) -> str:
        """Reject reasons and how often each came."""
        shares = ", ".join(f"{each.name.lower()} {count:,}" for each, count in self.reasons.items())
        return (
            f"{self.messages:,} messages, {self.compared:,} compared with the twin, {self.judged:,}"
            f" with simplefix: {shares}"
        )


def run(count: int, seed: int, progress: bool = False) -> Fuzzer:
    """Damage and read `count` messages. Raises `AssertionError` at the first wrong answer."""
    fuzzer = Fuzzer(seed)
    began = time.monotonic()
    while fuzzer.messages < count:
        fuzzer.check(*fuzzer.batch(min(BATCH_MESSAGES, count - fuzzer.messages)))
        if progress and fuzzer.messages % (BATCH_MESSAGES * 1000) == 0:
            rate = fuzzer.messages / (time.monotonic() - began)
            print(f"{fuzzer.messages:,} messages, {rate:,.0f}/s", flush=True)
    return fuzzer


def problems(fuzzer: Fuzzer, _count: int) -> list[str]:
    """Return the broken promises, a line each: reject reasons that never came."""
    return [f"never reached: {', '.join(fuzzer.missing)}"] if fuzzer.missing else []


if __name__ == "__main__":
    command = Command("fix_fuzz", "messages", lambda n, seed, _: run(n, seed, True), problems)
    sys.exit(command.main())
