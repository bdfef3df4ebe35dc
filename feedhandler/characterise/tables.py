"""Tables from a digest: those that the source paper prints of a session, and more.

`tables_of` returns every table, in the order in which a report shows them. A table is columns and
rows of plain values; times of day are text in the zone asked for. No I/O.

Lines: the lines of a service are its groups and ports in rising order, called A, B and so on. Where
packets name no service, channels take its place: groups and ports that carry the same numbers, as
the digest's map has them (`channels`). A group and port on which compressed packets came is a
refresh line, with all that came on it; where there are such, so is one that brought no data at all
(its snapshot was not due yet). Every packet of the feed counts where the paper counts packets, on
whichever line it came; tables of messages, interarrival and symbols use the first line of each
service, as the paper did. Bytes are `payload_bytes` (what UDP carried) and `file_bytes` (the frame
and 16 bytes, as in a classic capture file, which is how the paper counts).
"""

import datetime
import functools
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from feedhandler.characterise import ranges
from feedhandler.characterise.channels import Label, endpoint_text
from feedhandler.characterise.digest import Channel, FineHistogram, summed
from feedhandler.characterise.job import FileAccount, Outcome
from feedhandler.characterise.tally import TOTALS
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import REJECT_TEXT, Reject
from feedhandler.codecs.times import SECOND_NS
from feedhandler.histogram import FINE_BOUNDS, percentiles_of
from feedhandler.spans import span_text

Array = np.ndarray[Any, Any]

#: Rows of the paper's tables of peaks, and of the table of symbols.
PEAKS, SYMBOLS = 10, 50
#: Widths at which peaks are searched, in milliseconds.
PEAK_WIDTHS_MS = (1_000, 100, 10, 1)
#: Numbers of the busiest symbols whose share of the messages is shown.
TOP_SYMBOLS = (1, 10, 100, 1_000)
QUANTILES = (0.5, 0.9, 0.99, 0.999)

_DATA = TOTALS.index("data")
_PACKETS, _PAYLOAD, _FILE = (
    TOTALS.index("packets"),
    TOTALS.index("payload_bytes"),
    TOTALS.index("file_bytes"),
)


class Table(Struct):
    """A table: `rows` of plain values under `columns`; `note` says how to read it."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""


def heading_of(column: str) -> str:
    """Format a column's name as a heading; cells of times carry their own unit."""
    return column.removesuffix("_ns").replace("_", " ")


def cell_text(column: str, value: Any) -> str:
    """Format a value: thousands with commas, durations with their unit."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if column.endswith("_ns"):
        return span_text(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


class Line(NamedTuple):
    """One line of a service: its channel with its letter.

    `channel_index` in the digest's channels; `is_first`: of the lines of its service.
    """

    service: Label
    letter: str
    channel_index: int
    channel: Channel
    is_first: bool


def percent(part: float, whole: float) -> float:
    """Return `part` of `whole` in percent, to a thousandth; 0 of nothing."""
    return round(100.0 * float(part) / float(whole), 3) if whole else 0.0


def ratio(part: float, whole: float) -> float:
    """Return `part` over `whole`, to a ten-thousandth; 0 over nothing."""
    return round(float(part) / float(whole), 4) if whole else 0.0


class Tables:
    """The tables of one digest. `zone`: of the times of day (a tz database name)."""

    def __init__(self, outcome: Outcome, feed: Feed, zone: str) -> None:
        self.digest = outcome.digest
        self.files = outcome.files
        self.feed = feed
        self.zone = zoneinfo.ZoneInfo(zone)
        self.zone_name = zone
        self.refresh_indexes = self._find_refresh()
        self.lines = self._find_lines()
        self._order = {each: n for n, each in enumerate(dict.fromkeys(self.services_found))}

    @functools.cached_property
    def buckets(self) -> Array:
        """The rows of `Digest.buckets`, computed on first use."""
        return self.digest.buckets()

    def _find_refresh(self) -> set[int]:
        """Find the indexes of the channels on refresh lines."""
        channels = self.digest.channels
        lines = {(channel.group, channel.port) for channel in channels if channel.refresh}
        data = {(channel.group, channel.port): 0 for channel in channels}
        for each, totals in zip(channels, self.digest.totals, strict=True):
            data[each.group, each.port] += int(totals[_DATA])
        if lines:
            lines.update(line for line, packets in data.items() if not packets)
        if self.digest.channel_map is not None:
            lines.update((each >> 16, each & 0xFFFF) for each in self.digest.channel_map.refresh)
        return {index for index, each in enumerate(channels) if (each.group, each.port) in lines}

    def _find_lines(self) -> list[Line]:
        """Find the lines of every service that are no refresh lines, A first."""
        found = []
        services: dict[int, list[tuple[int, Channel, int]]] = {}
        channel_map = self.digest.channel_map
        named = list(channel_map.lines) if channel_map is not None else []
        for index, channel in enumerate(self.digest.channels):
            if index not in self.refresh_indexes:
                endpoint = channel.group << 16 | channel.port
                rank = named.index(endpoint) if endpoint in named else len(named)
                mine = services.setdefault(self.digest.key_of(channel), [])
                mine.append((rank, channel, index))
        labels = self._labels(services)
        for key in labels:
            for number, (_, channel, index) in enumerate(sorted(services[key])):
                letter = chr(ord("A") + number) if number < 26 else f"line {number + 1}"
                if channel_map is not None:
                    letter = channel_map.lines.get(channel.group << 16 | channel.port, letter)
                found.append(Line(labels[key], letter, index, channel, number == 0))
        return found

    def _labels(self, keys: Iterable[int]) -> dict[int, Label]:
        """Label services or channels, all with numbers or all with text, in order."""
        channel_map = self.digest.channel_map
        if channel_map is None:
            return {key: key for key in sorted(keys)}
        ranks = {key: rank for rank, key in enumerate(channel_map.names)}
        order = sorted(keys, key=lambda key: (ranks.get(key, len(ranks)), key))
        labels = {key: channel_map.label(key) for key in order}
        if any(isinstance(label, str) for label in labels.values()):
            return {key: str(label) for key, label in labels.items()}
        return labels

    @property
    def services_found(self) -> list[Label]:
        """The services, or channels, that have lines, each once and in order."""
        return list(dict.fromkeys(line.service for line in self.lines))

    def all(self) -> list[Table]:
        """Make every table, in the order of the report."""
        channel_map = self.digest.channel_map
        by_index = (
            channel_map is not None and len(self.services_found) > 1 and not channel_map.by_service
        )
        return [
            *([self.channels()] if by_index else []),
            self.services(),
            self.peaks_by(1, "packet_peaks", "Packet peaks (Table 2)"),
            self.peaks_by(3, "byte_peaks", "Byte peaks (Table 3)"),
            self.prose(),
            self.peaks(),
            self.bursts(),
            self.message_types(),
            self.symbols(),
            self.concentration(),
            self.interarrival(),
            self.interarrival_distribution(),
            self.gaps(),
            self.skew(),
            self.minutes(),
            self.minutes_by_service(),
            self.foreign(),
            files_table(self.files),
        ]

    def channels(self) -> Table:
        """List which groups and ports were taken for lines of one channel."""
        channel_map = self.digest.channel_map
        assert channel_map is not None
        rows = [
            [line.service, line.letter, endpoint_text(line.channel.group << 16 | line.channel.port)]
            for line in self.lines
        ]
        note = "As the channel map gives them. "
        if channel_map.origin == "guessed":
            note = (
                "Guessed: lines of one channel carry the same bytes under the same numbers at "
                "about the same time. --channels says otherwise. "
            )
        note += "In other tables channels stand where packets would name a service."
        return Table("channels", "Channels", ["channel", "line", "address"], rows, note)

    # -- the paper's ----------------------------------------------------------------------------

    def services(self) -> Table:
        """Count packets and bytes by service (Table 1)."""
        totals = self.digest.totals
        wholes = totals.sum(axis=0)
        realtime = [line.channel_index for line in self.lines]
        chosen: list[tuple[str, Sequence[int]]] = [("realtime", realtime)]
        for service in self.services_found:
            mine = [line.channel_index for line in self.lines if line.service == service]
            chosen.append((str(service), mine))
        chosen.append(("refresh", sorted(self.refresh_indexes)))
        chosen.append(("total", range(len(totals))))
        rows = []
        for name, indexes in chosen:
            sums = totals[list(indexes)].sum(axis=0) if indexes else np.zeros_like(wholes)
            row: list[Any] = [name]
            for index in (_PACKETS, _FILE, _PAYLOAD):
                row += [int(sums[index]), percent(sums[index], wholes[index])]
            rows.append(row)
        columns = ["service"]
        for column in ("packets", "file_bytes", "payload_bytes"):
            columns += [column, f"{column}_pct"]
        return Table("services", "Traffic by service (Table 1)", columns, rows)

    def time_text(self, time_ns: int) -> str:
        """Format a time in the zone, with its date, to the second."""
        moment = datetime.datetime.fromtimestamp(time_ns // SECOND_NS, self.zone)
        return f"{moment:%Y-%m-%d %H:%M:%S}"

    def seconds(self) -> Array:
        """Return the seconds since 1970 with packets, as `binned` returns them."""
        return binned(self.buckets, 1_000)

    def peaks_by(self, column: int, name: str, title: str) -> Table:
        """List the seconds with most of one column of the millisecond buckets: Tables 2 and 3."""
        seconds = self.seconds()
        order = np.lexsort((seconds[0], -seconds[column]))[:PEAKS]
        rows = [
            [self.time_text(second * SECOND_NS), packets, on_file, payload]
            for second, packets, payload, on_file in seconds[:, order].T.tolist()
        ]
        columns = ["time", "packets", "file_bytes", "payload_bytes"]
        return Table(name, title, columns, rows, f"Seconds in {self.zone_name}.")

    def prose(self) -> Table:
        """List the figures that the paper gives in its text."""
        totals = dict(zip(TOTALS, self.digest.totals.sum(axis=0).tolist(), strict=True))
        packets = totals["packets"]
        bodies = totals["payload_bytes"] - self.feed.table.header_size * packets
        refresh = self.digest.totals[sorted(self.refresh_indexes)].sum(axis=0)
        unique, copies = self._numbers()
        unknown = sum(self.unknown_types().values())
        rows: list[list[Any]] = [
            ["packets", packets],
            ["messages", totals["messages"]],
            ["payload_bytes", totals["payload_bytes"]],
            ["file_bytes", totals["file_bytes"]],
            ["mean_packet_bytes_udp_payload", ratio(totals["payload_bytes"], packets)],
            ["mean_packet_bytes_in_file", ratio(totals["file_bytes"], packets)],
            ["mean_message_bytes", ratio(bodies, totals["messages"])],
            ["mean_message_bytes_read", ratio(totals["message_bytes"], totals["read_messages"])],
            ["mean_messages_per_packet", ratio(totals["messages"], packets)],
            ["heartbeats", totals["heartbeats"]],
            ["resets", totals["resets"]],
            *([["unsequenced", totals["unsequenced"]]] if self.feed.table.sets_aside else []),
            ["packets_with_broken_messages", totals["broken"]],
            *([["messages_of_unknown_types", unknown]] if unknown else []),
            [f"unique_{self._counted}", unique],
            [f"{self._counted}_received_again", copies - unique],
            ["received_again_pct", percent(copies - unique, copies)],
            ["refresh_packets_pct", percent(int(refresh[_PACKETS]), packets)],
            ["refresh_file_bytes_pct", percent(int(refresh[_FILE]), totals["file_bytes"])],
        ]
        note = (
            "Messages are counted by packet headers. Their mean size is what packets carry beside "
            "their headers, compressed or not; read: of the messages in uncompressed packets. "
            f"Received again: {self._counted} on one line that another (or the same) also brought."
        )
        return Table("figures", "Figures in words", ["figure", "value"], rows, note)

    def unknown_types(self) -> dict[str, int]:
        """Count messages of types that the feed's description lacks, on all lines, by type."""
        counts: dict[str, int] = {}
        for (_, code), cell in sorted(self.digest.cells.items()):
            if code >= 0 and self.feed.type_name(code) is None:
                label = str(self.feed.type_label(code))
                counts[label] = counts.get(label, 0) + cell.messages
        return counts

    @property
    def _counted(self) -> str:
        """Unit that a sequence number counts."""
        return "messages" if self.feed.counts_messages else "packets"

    def _numbers(self) -> tuple[int, int]:
        """Count the numbers that came on any line of their service, and all their copies."""
        runs = self.digest.runs()
        unique = copies = 0
        for service in self.services_found:
            indexes = [line.channel_index for line in self.lines if line.service == service]
            for epoch in {each for index in indexes for each in runs.get(index, {})}:
                sets = [runs[index][epoch] for index in indexes if epoch in runs.get(index, {})]
                unique += ranges.count(ranges.union(*sets))
                copies += sum(ranges.count(each) for each in sets)
        return unique, copies

    def minutes(self) -> Table:
        """List packets and bytes of each minute (Figures 2 and 3)."""
        whole = summed_minutes(list(self.digest.minutes().values()))
        rows = [
            [self.time_text(minute * 60 * SECOND_NS)[:-3], packets, on_file, payload, messages]
            for minute, packets, payload, on_file, messages in whole.T.tolist()
        ]
        columns = ["minute", "packets", "file_bytes", "payload_bytes", "messages"]
        title = "Traffic by minute (Figures 2 and 3)"
        return Table("minutes", title, columns, rows, f"Time of day in {self.zone_name}.")

    def minutes_by_service(self) -> Table:
        """List packets and bytes of each minute by service (Figures 4 and 5)."""
        by_index = self.digest.minutes()
        named: dict[str, list[Array]] = {}
        for line in self.lines:
            if line.channel_index in by_index:
                named.setdefault(str(line.service), []).append(by_index[line.channel_index])
        refresh = [by_index[index] for index in sorted(self.refresh_indexes) if index in by_index]
        if refresh:
            named["refresh"] = refresh
        rows = [
            [self.time_text(minute * 60 * SECOND_NS)[:-3], name, packets, on_file, payload, count]
            for name, parts in named.items()
            for minute, packets, payload, on_file, count in summed_minutes(parts).T.tolist()
        ]
        columns = ["minute", "service", "packets", "file_bytes", "payload_bytes", "messages"]
        title = "Traffic by minute and service (Figures 4 and 5)"
        note = f"Time of day in {self.zone_name}."
        return Table("minutes_by_service", title, columns, rows, note)

    # -- how soon, how often --------------------------------------------------------------------

    def _first_lines(self) -> list[Line]:
        return [line for line in self.lines if line.is_first]

    def _histograms(self) -> list[tuple[str, str, FineHistogram]]:
        """Collect the interarrival on first lines: of all, by service, by service and type."""
        whole = FineHistogram()
        histograms: list[tuple[str, str, FineHistogram]] = [("all", "all", whole)]
        for line in self._first_lines():
            mine = FineHistogram()
            histograms.append((str(line.service), "all", mine))
            for (channel, code), cell in sorted(self.digest.cells.items()):
                if channel == line.channel_index:
                    histograms.append((str(line.service), self._type_name(code), cell.interarrival))
                    mine.merge(cell.interarrival)
            whole.merge(mine)
        return histograms

    def whole_interarrival(self) -> FineHistogram:
        """Return the interarrival on first lines, all services together."""
        return self._histograms()[0][2]

    def interarrival(self) -> Table:
        """Summarise the same-symbol interarrival: Figure 6 in numbers."""
        rows = []
        for service, kind, each in self._histograms():
            if each.count + each.backwards == 0:
                continue
            repeats = each.count
            shares = [percent(each.within_1ms, repeats), percent(each.within_10ms, repeats)]
            times = quantiles_ns(each, QUANTILES)
            rows.append([service, kind, repeats, *shares, *times, each.backwards])
        columns = ["service", "type", "repeats", "within_1_ms_pct", "within_10_ms_pct"]
        columns += [f"p{100 * share:g}_ns" for share in QUANTILES]
        note = (
            "Time since the message before of the same symbol, on the first line of each service; "
            "the type is the later message's. Quantiles are the lower edges of buckets 0.8 % wide."
        )
        title = "Same-symbol interarrival (Figure 6)"
        return Table("interarrival", title, [*columns, "backwards"], rows, note)

    def interarrival_distribution(self) -> Table:
        """Return the empirical cumulative distribution, all services together (Figure 6)."""
        whole = self.whole_interarrival()
        filled = np.flatnonzero(whole.buckets)
        counts = whole.buckets[filled]
        shares = np.cumsum(counts) / max(1, whole.count)
        rows = [
            [edge, count, round(share, 6)]
            for edge, count, share in zip(
                FINE_BOUNDS[filled].tolist(), counts.tolist(), shares.tolist(), strict=True
            )
        ]
        title = "Same-symbol interarrival, cumulative (Figure 6)"
        columns = ["from_ns", "repeats", "share_up_to_here"]
        return Table("interarrival_distribution", title, columns, rows)

    def _type_name(self, code: int) -> str:
        """Format a message type with its layout's name."""
        if code < 0:
            return "others"
        return f"{self.feed.type_label(code)} {self.feed.type_name(code) or '(unknown)'}"

    def message_types(self) -> Table:
        """Count messages by type, on the first line of each service."""
        mine = {line.channel_index: line.service for line in self._first_lines()}
        cells = [
            (mine[index], code, cell)
            for (index, code), cell in self.digest.cells.items()
            if index in mine
        ]
        messages = sum(cell.messages for _, _, cell in cells)
        message_bytes = sum(cell.message_bytes for _, _, cell in cells)
        rows = [
            [
                service,
                self._type_name(code),
                cell.messages,
                percent(cell.messages, messages),
                cell.message_bytes,
                percent(cell.message_bytes, message_bytes),
                ratio(cell.message_bytes, cell.messages),
            ]
            for service, code, cell in sorted(
                cells, key=lambda each: (self._order[each[0]], -each[2].messages)
            )
        ]
        columns = [
            "service",
            "type",
            "messages",
            "messages_pct",
            "bytes",
            "bytes_pct",
            "mean_bytes",
        ]
        return Table("message_types", "Message types, on first lines", columns, rows)

    def busiest(self) -> list[tuple[int, Label, int]]:
        """Return (messages, service, symbol) on first lines, most messages first."""
        counts = self.digest.symbol_counts()
        found = [
            (count, line.service, symbol)
            for line in self._first_lines()
            for symbol, count in counts.get(line.channel_index, [])
        ]
        return sorted(found, key=lambda each: (-each[0], self._order[each[1]], each[2]))

    def symbols(self) -> Table:
        """List the busiest symbols of all services."""
        every = self.busiest()
        whole = sum(count for count, _, _ in every)
        rows = [
            [service, self.feed.symbol_name(symbol), count, percent(count, whole)]
            for count, service, symbol in every[:SYMBOLS]
        ]
        columns = ["service", "symbol", "messages", "messages_pct"]
        title = f"The busiest {SYMBOLS} symbols, on first lines"
        return Table("symbols", title, columns, rows)

    def concentration(self) -> Table:
        """Show the share of messages of the busiest symbols."""
        counts = np.array([count for count, _, _ in self.busiest()], np.int64)
        reached = np.cumsum(counts)
        rows: list[list[Any]] = [["all", len(counts), 100.0 if len(counts) else 0.0]]
        if len(counts):
            tops = {f"busiest {top}": min(top, len(counts)) for top in TOP_SYMBOLS}
            tops |= {f"busiest {part} %": max(1, len(counts) * part // 100) for part in (1, 10)}
            rows += [
                [name, top, percent(reached[top - 1], reached[-1])] for name, top in tops.items()
            ]
        columns = ["symbols", "number", "messages_pct"]
        return Table("concentration", "How concentrated the symbols are", columns, rows)

    def peaks(self) -> Table:
        """Find the fullest second, tenth, hundredth and thousandth of a second."""
        rows: list[list[Any]] = []
        for width_ms in PEAK_WIDTHS_MS:
            bins = binned(self.buckets, width_ms)
            if not bins.shape[1]:
                continue
            spanned = int(bins[0, -1] - bins[0, 0]) + 1
            for column, name in ((1, "packets"), (3, "file_bytes"), (2, "payload_bytes")):
                top = int(np.argmax(bins[column]))
                most, mean = int(bins[column, top]), float(bins[column].sum()) / spanned
                start_ns = int(bins[0, top]) * width_ms * 1_000_000
                when = f"{self.time_text(start_ns)}.{start_ns // 1_000_000 % 1_000:03d}"
                rows.append([width_ms, name, most, when, round(mean, 3), ratio(most, mean)])
        columns = ["width_ms", "what", "most", "from", "mean", "most_to_mean"]
        note = (
            "The mean is over the whole time between the first packet and the last. "
            f"Times in {self.zone_name}."
        )
        return Table("peaks", "Peaks at several widths", columns, rows, note)

    def bursts(self) -> Table:
        """Measure the bursts: how long packets come without an empty millisecond between them."""
        buckets = self.buckets
        rows: list[list[Any]] = []
        if buckets.shape[1]:
            starts = np.flatnonzero(np.concatenate([[True], np.diff(buckets[0]) != 1]))
            packets = np.add.reduceat(buckets[1], starts)
            lengths = np.diff(np.concatenate([starts, [buckets.shape[1]]]))
            for name, values in (("milliseconds", lengths), ("packets", packets)):
                shares = [rank_of(values, share) for share in QUANTILES]
                mean = ratio(float(values.sum()), len(values))
                rows.append([name, len(values), mean, *shares, int(values.max())])
        columns = ["length_in", "bursts", "mean", *(f"p{100 * share:g}" for share in QUANTILES)]
        note = "A burst: milliseconds in a row in each of which at least one packet came."
        return Table("bursts", "Burst lengths", [*columns, "longest"], rows, note)

    # -- the lines ------------------------------------------------------------------------------

    def gaps(self) -> Table:
        """Count the numbers that each line of a service lacks, and that all of them lack."""
        runs = self.digest.runs()
        rows: list[list[Any]] = []
        for service in self.services_found:
            mine = [line for line in self.lines if line.service == service]
            sets = {line.letter: runs.get(line.channel_index, {}) for line in mine}
            rows += self._gaps_of(service, sets)
        columns = ["service", "line", "numbers", "gaps", "missing", "missing_pct"]
        note = (
            f"Numbers count {self._counted}. A line lacks what lies between the first and the "
            "last number of any line of its service and did not come on it."
        )
        return Table("gaps", "Sequence gaps", columns, rows, note)

    def _gaps_of(self, service: Label, sets: dict[str, dict[int, Array]]) -> list[list[Any]]:
        found = {name: [0, 0, 0] for name in [*sets, "all lines"]}
        for epoch in sorted({each for mine in sets.values() for each in mine}):
            normal = {
                name: ranges.normal(mine[epoch]) if epoch in mine else np.zeros((0, 2), np.int64)
                for name, mine in sets.items()
            }
            whole = ranges.union(*normal.values())
            first, after = int(whole[0, 0]), int(whole[-1, 1])
            for name, numbers in [*normal.items(), ("all lines", whole)]:
                count = ranges.count(numbers)
                found[name][0] += count
                found[name][1] += ranges.gaps(numbers, first, after)
                found[name][2] += after - first - count
        if len(sets) == 1:
            del found["all lines"]
        return [
            [service, name, count, gaps, missing, percent(missing, count + missing)]
            for name, (count, gaps, missing) in found.items()
        ]

    def skew(self) -> Table:
        """Show the time between the first and the second copy of a packet, by pair of lines."""
        letters = {line.channel_index: line for line in self.lines}
        rows: list[list[Any]] = []
        for (first, later), each in self.digest.pairs.items():
            if first in letters and later in letters:
                pair = [letters[first].letter, letters[later].letter]
                times = quantiles_ns(each, (*QUANTILES, 1.0))
                service = letters[first].service
                rows.append([service, *pair, each.count, *times, each.backwards])
        rows.sort(key=lambda row: (self._order[row[0]], *row[1:3]))
        columns = ["service", "first", "later", "packets"]
        columns += [*(f"p{100 * share:g}_ns" for share in QUANTILES), "longest_ns", "backwards"]
        note = "Quantiles are the lower edges of buckets 0.8 % wide."
        return Table("skew", "Time between the copies of a packet", columns, rows, note)

    def foreign(self) -> Table:
        """Count the datagrams that are no packets of the feed, by reason."""
        rows: list[list[Any]] = [
            [REJECT_TEXT[Reject(reason)], count]
            for reason, count in enumerate(self.digest.foreign.tolist())
            if count
        ]
        names = ("packets of more channels than are distinguished", "messages of too many symbols")
        overflow = self.digest.overflow.tolist()
        rows += [[name, count] for name, count in zip(names, overflow, strict=True) if count]
        return Table("left_out", "Left out", ["reason", "count"], rows)


def files_table(files: Sequence[FileAccount]) -> Table:
    """List what was read of each file."""
    rows = [
        [
            file.path,
            file.kind,
            file.size,
            file.records,
            file.datagrams,
            _counted(file.skipped),
            file.slices,
            file.read_again,
            _counted(file.slowly),
            file.problem,
        ]
        for file in files
    ]
    columns = ["file", "kind", "bytes", "records", "datagrams", "no_datagrams", "slices"]
    stand_ins = {text: zone for file in files for text, zone in file.stand_ins.items()}
    notes = [f"{text} stands for {zone}" for text, zone in sorted(stand_ins.items())]
    if cut := sum(file.cut_payloads for file in files):
        notes.append(f"of {cut:,} datagrams only the beginning was recorded")
    note = ", ".join(notes)
    return Table("files", "Files", [*columns, "read_again", "read_slowly", "problem"], rows, note)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))


def binned(buckets: Array, width_ms: int) -> Array:
    """Sum the millisecond buckets in bins of `width_ms`: i64[4, n], the first row counts bins since
    1970."""
    if width_ms == 1 or not buckets.shape[1]:
        return buckets
    bins = buckets[0] // width_ms
    starts = np.flatnonzero(np.concatenate([[True], bins[1:] != bins[:-1]]))
    return np.concatenate([bins[None, starts], np.add.reduceat(buckets[1:], starts, axis=1)])


def summed_minutes(parts: list[Array]) -> Array:
    """Sum the minutes of several channels: i64[5, n]."""
    return summed(parts, 5)


def rank_of(values: Array, share: float) -> int:
    """Return the least value such that `share` of all do not exceed it (nearest rank)."""
    index = max(0, int(np.ceil(share * len(values))) - 1)
    return int(np.partition(values, index)[index])


def quantiles_ns(histogram: FineHistogram, shares: Sequence[float]) -> list[int]:
    """Return the lower edges of the buckets in which these shares of the times end, in ns."""
    return percentiles_of(histogram.buckets, *shares, bounds=FINE_BOUNDS)


def tables_of(outcome: Outcome, feed: Feed, zone: str) -> list[Table]:
    """Make every table of the job's result."""
    return Tables(outcome, feed, zone).all()
