"""Every table of a report, once more: from a plain list of packets, with lists, sets and sorting.

`tables_by_hand` is given packets one by one (`characterise.Seen`: of an independent reading of
a capture, or of what a generator says that it sent) and answers with the rows of each table as
docs/characterise.md explains them. Nothing here is the job's: no summaries, no slices, no numpy. Of
a feed it takes what its description says (names of message types, what numbers count).
"""

import collections
import datetime
import itertools
import math
import zoneinfo
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from feedhandler.codecs.feed import Feed
from tests.support.characterise import Seen

Rows = list[list[Any]]

SHARES = (0.5, 0.9, 0.99, 0.999)
MILLISECOND_NS = 10**6


class ByHand:
    """The tables of these packets, which stand in the order of the capture. `header_bytes`: of a
    packet of the feed."""

    def __init__(self, packets: Sequence[Seen], feed: Feed, zone: str, header_bytes: int) -> None:
        self.packets = packets
        self.feed = feed
        self.zone = zoneinfo.ZoneInfo(zone)
        self.header_bytes = header_bytes
        self.refresh_lines = self._refresh_lines()
        self.realtime = [each for each in packets if each.line not in self.refresh_lines]
        lines = collections.defaultdict(set)
        for each in self.realtime:
            lines[each.service].add(each.line)
        self.letters = {
            (service, line): chr(ord("A") + index)
            for service, mine in lines.items()
            for index, line in enumerate(sorted(mine))
        }
        self.services = sorted(lines)
        self.first = [e for e in self.realtime if self.letters[e.service, e.line] == "A"]

    def _refresh_lines(self) -> set[tuple[bytes, int]]:
        lines = {each.line for each in self.packets if each.compressed}
        with_data = {each.line for each in self.packets if each.kind == "data"}
        silent = {each.line for each in self.packets} - with_data
        return lines | silent if lines else set()

    def tables(self) -> dict[str, Rows]:
        """All of them by name."""
        interarrivals = self.interarrivals()
        return {
            "services": self.traffic(),
            "packet_peaks": self.peak_seconds(0),
            "byte_peaks": self.peak_seconds(1),
            "figures": self.figures(),
            "peaks": self.peaks(),
            "bursts": self.bursts(),
            "message_types": self.message_types(),
            "symbols": self.symbols(),
            "concentration": self.concentration(),
            "interarrival": self.interarrival(interarrivals),
            "interarrival_distribution": self.distribution(interarrivals),
            "gaps": self.gaps(),
            "skew": self.skew(),
            "minutes": self.minutes(self.packets),
            "minutes_by_service": self.minutes_by_service(),
        }

    # -- traffic --------------------------------------------------------------------------------

    def traffic(self) -> Rows:
        """Table 1."""
        groups: dict[str, list[Seen]] = {"realtime": self.realtime}
        for service in self.services:
            groups[str(service)] = [each for each in self.realtime if each.service == service]
        groups["refresh"] = [each for each in self.packets if each.line in self.refresh_lines]
        groups["total"] = list(self.packets)
        whole = sums(self.packets)
        rows: Rows = []
        for name, mine in groups.items():
            shares = [(x, pct(x, y)) for x, y in zip(sums(mine), whole, strict=True)]
            rows.append([name, *itertools.chain.from_iterable(shares)])
        return rows

    def bins(self, width_ms: int) -> dict[int, list[int]]:
        """Packets, file bytes and payload bytes by bin since 1970."""
        found: dict[int, list[Seen]] = collections.defaultdict(list)
        for each in self.packets:
            found[each.time_ns // (width_ms * MILLISECOND_NS)].append(each)
        return {bin: sums(mine) for bin, mine in sorted(found.items())}

    def clock(self, time_s: int) -> str:
        return f"{datetime.datetime.fromtimestamp(time_s, self.zone):%Y-%m-%d %H:%M:%S}"

    def peak_seconds(self, column: int) -> Rows:
        """Tables 2 and 3."""
        order = sorted(self.bins(1_000).items(), key=lambda each: (-each[1][column], each[0]))
        return [[self.clock(second), *counts] for second, counts in order[:10]]

    def peaks(self) -> Rows:
        """The fullest bins."""
        rows = []
        for width_ms in (1_000, 100, 10, 1):
            bins = self.bins(width_ms)
            spanned = max(bins) - min(bins) + 1
            for column, name in enumerate(("packets", "file_bytes", "payload_bytes")):
                most = max(counts[column] for counts in bins.values())
                at_ms = width_ms * min(p for p, counts in bins.items() if counts[column] == most)
                mean = sum(counts[column] for counts in bins.values()) / spanned
                when = f"{self.clock(at_ms // 1_000)}.{at_ms % 1_000:03d}"
                rows.append([width_ms, name, most, when, mean, most / mean])
        return rows

    def bursts(self) -> Rows:
        """Milliseconds in a row with packets."""
        runs: list[list[int]] = []
        before = None
        for moment, (packets, *_) in self.bins(1).items():
            if before is None or moment != before + 1:
                runs.append([0, 0])
            runs[-1][0] += 1
            runs[-1][1] += packets
            before = moment
        rows = []
        for index, name in enumerate(("milliseconds", "packets")):
            values = sorted(run[index] for run in runs)
            shares = [ranked(values, share) for share in SHARES]
            rows.append([name, len(runs), sum(values) / len(runs), *shares, values[-1]])
        return rows

    def minutes(self, packets: Iterable[Seen], *named: str) -> Rows:
        """Figures 2 and 3."""
        found: dict[int, list[Seen]] = collections.defaultdict(list)
        for each in packets:
            found[each.time_ns // (60 * 10**9)].append(each)
        return [
            [self.clock(60 * minute)[:-3], *named, *sums(mine), sum(each.count for each in mine)]
            for minute, mine in sorted(found.items())
        ]

    def minutes_by_service(self) -> Rows:
        """Figures 4 and 5."""
        rows = []
        for service in self.services:
            mine = [each for each in self.realtime if each.service == service]
            rows += self.minutes(mine, str(service))
        refresh = [each for each in self.packets if each.line in self.refresh_lines]
        return rows + self.minutes(refresh, "refresh")

    # -- figures in words -----------------------------------------------------------------------

    def figures(self) -> Rows:
        """Return the figures that the paper tells in its text, as rows of name and value."""
        packets, messages = len(self.packets), sum(each.count for each in self.packets)
        _, on_file, payload = sums(self.packets)
        read = [size for each in self.packets for _, _, size in each.messages]
        refresh = sums([each for each in self.packets if each.line in self.refresh_lines])
        kinds = collections.Counter(each.kind for each in self.packets)
        numbers = self.numbers()
        copies = sum(len(mine) for mine in numbers.values())
        unique = sum(len(self._of_service(numbers, service)) for service in self.services)
        counted = "messages" if self.feed.counts_messages else "packets"
        return [
            ["packets", packets],
            ["messages", messages],
            ["payload_bytes", payload],
            ["file_bytes", on_file],
            ["mean_packet_bytes_udp_payload", payload / packets],
            ["mean_packet_bytes_in_file", on_file / packets],
            ["mean_message_bytes", (payload - self.header_bytes * packets) / messages],
            ["mean_message_bytes_read", sum(read) / len(read)],
            ["mean_messages_per_packet", messages / packets],
            ["heartbeats", kinds["heartbeat"]],
            ["resets", kinds["reset"]],
            ["packets_with_broken_messages", 0],
            [f"unique_{counted}", unique],
            [f"{counted}_received_again", copies - unique],
            ["received_again_pct", pct(copies - unique, copies)],
            ["refresh_packets_pct", pct(refresh[0], packets)],
            ["refresh_file_bytes_pct", pct(refresh[1], on_file)],
        ]

    def numbers(self) -> dict[tuple[int, str], set[int]]:
        """By service and line, the numbers that came."""
        found: dict[tuple[int, str], set[int]] = {
            (service, letter): set() for (service, _), letter in sorted(self.letters.items())
        }
        for each in self.realtime:
            mine = found[each.service, self.letters[each.service, each.line]]
            if each.kind == "reset":
                mine.add(each.number)
            elif each.kind == "data":
                width = each.count if self.feed.counts_messages else 1
                mine.update(range(each.number, each.number + width))
        return found

    @staticmethod
    def _of_service(numbers: dict[tuple[int, str], set[int]], service: int) -> set[int]:
        return set().union(*(mine for key, mine in numbers.items() if key[0] == service))

    def gaps(self) -> Rows:
        """Return what each line lacks of all between the first and the last number of any."""
        rows = []
        numbers = self.numbers()
        for service in self.services:
            whole = self._of_service(numbers, service)
            mine = {letter: x for (of, letter), x in sorted(numbers.items()) if of == service}
            if len(mine) > 1:
                mine["all lines"] = whole
            for name, there in mine.items():
                missing = set(range(min(whole), max(whole) + 1)) - there
                gaps = sum(number - 1 not in missing for number in missing)
                share = pct(len(missing), len(missing) + len(there))
                rows.append([service, name, len(there), gaps, len(missing), share])
        return rows

    def skew(self) -> Rows:
        """Return how long after a data packet's first copy another line's came, by quantile."""
        waiting: dict[tuple[int, int], Seen] = {}
        apart: dict[tuple[int, str, str], list[int]] = collections.defaultdict(list)
        for each in self.realtime:
            key = (each.service, each.number)
            if each.kind != "data":
                continue
            before = waiting.pop(key, None)
            if before is None or before.line == each.line:
                waiting[key] = each
                continue
            sides = (self.letters[each.service, e.line] for e in (before, each))
            apart[(each.service, *sides)].append(each.time_ns - before.time_ns)  # type: ignore[index]
        return [
            [*key, len(times), *(edge(ranked(times, s)) for s in (*SHARES, 1.0)), 0]
            for key, times in sorted((key, sorted(times)) for key, times in apart.items())
        ]

    # -- messages on first lines ----------------------------------------------------------------

    def type_name(self, code: int) -> str:
        label, ways = self.feed.type_label(code), self.feed.layouts.get(code)
        return f"{label} {ways[0].name}" if ways else f"{label} (unknown)"

    def message_types(self) -> Rows:
        """The mix, most first within a service."""
        found: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for each in self.first:
            for code, _, size in each.messages:
                found[each.service, code].append(size)
        count = sum(map(len, found.values()))
        whole = sum(map(sum, found.values()))
        rows = [
            [
                service, self.type_name(code), len(sizes), pct(len(sizes), count), sum(sizes),
                pct(sum(sizes), whole), sum(sizes) / len(sizes),
            ]
            for (service, code), sizes in found.items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (row[0], -row[2], row[1]))

    def busiest(self) -> list[tuple[int, int, int]]:
        """(messages, service, symbol), most first."""
        counts = collections.Counter(
            (each.service, symbol)
            for each in self.first
            for _, symbol, _ in each.messages
            if symbol is not None
        )
        order = sorted((-count, service, symbol) for (service, symbol), count in counts.items())
        return [(-count, service, symbol) for count, service, symbol in order]

    def symbols(self) -> Rows:
        """The fifty busiest."""
        every = self.busiest()
        whole = sum(count for count, _, _ in every)
        return [
            [service, self.feed.symbol_name(symbol), count, pct(count, whole)]
            for count, service, symbol in every[:50]
        ]

    def concentration(self) -> Rows:
        """Return the share of all messages that the busiest symbols have, in percent."""
        counts = [count for count, _, _ in self.busiest()]
        tops = [(f"busiest {top}", min(top, len(counts))) for top in (1, 10, 100, 1_000)]
        tops += [(f"busiest {p} %", max(1, len(counts) * p // 100)) for p in (1, 10)]
        rows: Rows = [["all", len(counts), 100.0]]
        return rows + [[name, top, pct(sum(counts[:top]), sum(counts))] for name, top in tops]

    def interarrivals(self) -> dict[tuple[int, int], list[int]]:
        """By (service, later message's type), the times since the same symbol's message before."""
        last: dict[tuple[int, int], int] = {}
        found: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for each in self.first:
            for code, symbol, _ in each.messages:
                if symbol is None:
                    continue
                key = (each.service, symbol)
                if key in last:
                    found[each.service, code].append(each.time_ns - last[key])
                last[key] = each.time_ns
        return found

    def interarrival(self, found: dict[tuple[int, int], list[int]]) -> Rows:
        """Figure 6 in numbers."""
        groups: dict[tuple[str, str], list[int]] = {("all", "all"): flat(found.values())}
        for service in self.services:
            mine = {code: times for (of, code), times in sorted(found.items()) if of == service}
            groups[str(service), "all"] = flat(mine.values())
            groups |= {(str(service), self.type_name(c)): times for c, times in mine.items()}
        rows = []
        for key, unsorted in groups.items():
            if not unsorted:
                continue
            times = sorted(each for each in unsorted if each >= 0)
            soon = [pct(sum(t <= n * MILLISECOND_NS for t in times), len(times)) for n in (1, 10)]
            edges = [edge(ranked(times, share)) for share in SHARES]
            rows.append([*key, len(times), *soon, *edges, len(unsorted) - len(times)])
        return rows

    def distribution(self, found: dict[tuple[int, int], list[int]]) -> Rows:
        """Figure 6."""
        counts = collections.Counter(edge(t) for times in found.values() for t in times if t >= 0)
        rows, so_far = [], 0
        for from_ns, count in sorted(counts.items()):
            so_far += count
            rows.append([from_ns, count, so_far / counts.total()])
        return rows


def flat(lists: Iterable[list[int]]) -> list[int]:
    """All of them in one."""
    return list(itertools.chain.from_iterable(lists))


def sums(packets: Sequence[Seen]) -> list[int]:
    """Packets, file bytes, payload bytes."""
    on_file = sum(each.file_bytes for each in packets)
    return [len(packets), on_file, sum(each.payload_bytes for each in packets)]


def pct(part: float, whole: float) -> float:
    """`part` of `whole` in percent."""
    return 100 * part / whole if whole else 0.0


def ranked(values: Sequence[int], share: float) -> int:
    """Of sorted values, the least that this share reaches or stays below."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def edge(time_ns: int) -> int:
    """A time as reports tell it: its eight highest bits."""
    cut = max(0, time_ns.bit_length() - 8)
    return time_ns >> cut << cut


def tables_by_hand(packets: Sequence[Seen], feed: Feed, zone: str) -> dict[str, Rows]:
    """The rows of every table, but those that are about files and what was left out."""
    header_bytes = {"iex-deep": 40, "euronext-utp-md": 16}[feed.name]
    return ByHand(packets, feed, zone, header_bytes).tables()


def hold(name: str, ours: Rows, by_hand: Rows) -> None:
    """Whole numbers and words are the same, shares as far as they are printed; in the same order,
    but for message types that are equally many."""
    if name == "message_types":
        ours = sorted(ours, key=lambda row: (row[0], -row[2], row[1]))
    assert len(ours) == len(by_hand), name
    for mine, theirs in zip(ours, by_hand, strict=True):
        near = [pytest.approx(x, abs=6e-4) if isinstance(x, float) else x for x in theirs]
        assert mine == near, name
