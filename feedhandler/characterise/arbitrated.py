"""A session as the arbitrated stream: each packet once, in the order of its numbers.

The arbitrated stream of a service is its numbered packets, of all its lines but refresh lines: the
first copy of each in the order of the capture, with that copy's time, and all of them in the order
of their numbers. A packet is a copy where its first number came before; a reset that leads back
begins new numbers. Heartbeats and resets are no part of it. Its tables equal those of a capture
with these packets, in this order, on one line.

Slices are read twice, side by side. The first walk counts packets as the job does and finds which
numbers each slice brings (the lines' own tables are made from it, too). From that follows the
*plan* of each slice: which numbers no slice before it has brought, and where between its numbers
those of other slices belong. The second walk (`in_order`) takes exactly those numbers. Its tallies
are put together in the order of numbers and stitched at their boundaries like any stretches
(`digest`): nothing is shuffled, and the result does not depend on how captures are cut.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from feedhandler.characterise import ranges
from feedhandler.characterise.digest import Columns, Digest
from feedhandler.characterise.files import shown
from feedhandler.characterise.in_order import MAIN, InOrder, Plan, Span, ordered_span
from feedhandler.characterise.job import (
    Mapper,
    Outcome,
    Request,
    Runner,
    Tallied,
    in_process,
    look_at_all,
    selected,
    stitched,
    with_channels,
)
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.slices import Slice, by_file, cut_bytes, cut_into_slices, slice_bytes
from feedhandler.characterise.tables import Table, Tables
from feedhandler.codecs import load_feed
from feedhandler.codecs.feed import Feed

#: Tables that are about lines, also where the others are about the arbitrated stream.
OF_LINES = ("channels", "gaps", "skew", "left_out")

#: Numbers by service and sequence epoch.
Numbers = dict[tuple[int, int], ranges.Ranges]


class Task(NamedTuple):
    """A slice to be read a second time."""

    part: Slice
    request: Request
    plan: Plan


class Part(NamedTuple):
    """A tally of the second walk, and its position among the others."""

    position: tuple[int, int, int, int, int]
    columns: Columns


def characterise_arbitrated(
    paths: Sequence[str],
    request: Request,
    runner: Runner = in_process,
    mapper: Mapper = map,
    *,
    workers: int = 1,
    slice_size: int | None = None,
) -> Outcome:
    """Build the digest of the arbitrated stream, and in `lines` that of the lines.

    Raises `UsageError` as the job does, and where lines are so far apart in the captures that they
    cannot be put in order.
    """
    feed = load_feed(request.feed)
    files, accounts = look_at_all(paths)
    request = with_channels(request, files, mapper, workers)
    slices = cut_into_slices(files, slice_size or slice_bytes(cut_bytes(files), workers))
    packets_only = structs.replace(request, messages=False)
    results = iter(runner(slices, packets_only))
    lines, kept = Digest(request.channels), []
    by_path = {account.path: account for account in accounts}
    for group, file in ((group, group[0].file) for group in by_file(slices)):
        account = by_path[shown(file.path)]
        for tallied in stitched(group, results, account, lambda x: runner([x], packets_only)):
            lines.add(tallied.columns)
            lines.resolve()
            kept.append(_exactly(group[0], tallied))
    plans = plans_of(lines, feed)
    tasks = [Task(part, request, plan) for part, plan in zip(kept, plans, strict=True)]
    parts = []
    for number, found in enumerate(mapper(read_in_order, tasks)):
        parts += [_placed(number, plans, *each) for each in found]
    digest = Digest(request.channels)
    for part in sorted(parts, key=lambda each: each.position):
        digest.add(part.columns)
        digest.resolve()
    return Outcome(digest, accounts, lines)


def _exactly(first: Slice, tallied: Tallied) -> Slice:
    """Return the slice that was read, with its true boundaries."""
    file, report = first.file, tallied.report
    if file.is_cut:
        began_with = report.began_with
        return Slice(file, first.number, report.began, report.ended, waiting=began_with)
    return Slice(file, first.number, 0, file.size)


# -- what each slice is to bring -----------------------------------------------------------------


def plans_of(lines: Digest, feed: Feed) -> list[Plan]:
    """Make a plan for each stretch that was added to the lines' digest, in their order."""
    refresh = Tables(Outcome(lines, []), feed, "UTC").refresh_indexes
    channels = lines.channels
    realtime = {index for index in range(len(channels)) if index not in refresh}
    addresses = frozenset((channels[index].group, channels[index].port) for index in realtime)
    plans: list[Plan] = []
    seen: Numbers = {}
    for starts, runs in lines.stretches:
        epochs = {
            (channels[index].group, channels[index].port, channels[index].service): epoch
            for index, epoch in starts.items()
            if index in realtime
        }
        wanted: Numbers = {}
        for service, epoch, numbers in _numbers(runs, lines, realtime):
            before = seen.get((service, epoch), ranges.NOTHING)
            new = ranges.minus(numbers, before)
            seen[service, epoch] = ranges.union(before, numbers)
            if len(new):
                wanted[service, epoch] = new
        plans.append(Plan(addresses, epochs, wanted, {}, lines.channel_map))
    for service in {service for plan in plans for service, _ in plan.wanted}:
        _set_breaks(plans, service)
    return plans


def _numbers(
    runs: ranges.Ranges, lines: Digest, realtime: set[int]
) -> Iterable[tuple[int, int, ranges.Ranges]]:
    """Yield the numbers of a stretch, united over its lines: (channel number, epoch, ranges)."""
    found: dict[tuple[int, int], list[ranges.Ranges]] = {}
    for index in set(runs[0].tolist()) & realtime:
        mine = runs[:, runs[0] == index]
        for epoch in set(mine[1].tolist()):
            key = (lines.key_of(lines.channels[index]), epoch)
            found.setdefault(key, []).append(mine[2:, mine[1] == epoch].T)
    for (service, epoch), sets in found.items():
        yield service, epoch, ranges.union(*sets)


def _set_breaks(plans: Sequence[Plan], service: int) -> None:
    """Set the breaks of each plan whose numbers interleave with other slices' numbers."""
    spans = {n: span for n, plan in enumerate(plans) if (span := ordered_span(plan, service))}
    least: Span | None = None
    behind: dict[int, Span | None] = {}
    for number in reversed(spans):
        behind[number] = least
        least = spans[number] if least is None else min(least, spans[number])
    reached: Span | None = None
    for number, (first, last) in spans.items():
        later = behind[number]
        ahead = reached is None or reached[1] < first
        if not ahead or (later is not None and later[0] < last):
            plans[number].breaks[service] = _breaks(plans, number, service)
        reached = (
            max(reached, (first, last), key=lambda each: each[1]) if reached else (first, last)
        )


def _breaks(plans: Sequence[Plan], number: int, service: int) -> dict[int, Any]:
    """Return a slice's breaks by epoch: starts of its ranges behind other slices' (i64)."""
    made = {}
    for (whose, epoch), own in plans[number].wanted.items():
        if whose == service:
            others = [
                plan.wanted[service, epoch]
                for n, plan in enumerate(plans)
                if n != number and (service, epoch) in plan.wanted
            ]
            foreign = ranges.union(*others)[:, 0] if others else ranges.NOTHING[:, 0]
            starts = np.searchsorted(foreign, own[:-1, 1])
            ends = np.searchsorted(foreign, own[1:, 0])
            made[epoch] = own[1:, 0][ends > starts]
    return made


# -- the second walk -----------------------------------------------------------------------------


def read_in_order(task: Task) -> list[tuple[int, int, int, Columns]]:
    """Tally the wanted packets of one slice; runs in a worker."""
    part, request, plan = task
    table = load_feed(request.feed).table
    order = InOrder(table, plan, messages=request.messages)
    for batch in selected(SliceReader(part), request, table):
        order.add(batch)
    return order.finish()


def _placed(
    number: int, plans: Sequence[Plan], service: int, epoch: int, first: int, columns: Columns
) -> Part:
    """Give a tally of slice `number` its position among all.

    Main tallies are in the order of slices; a service's own tally comes behind the last slice with
    lower numbers of that service.
    """
    if service == MAIN:
        return Part((number, 0, 0, 0, 0), columns)
    behind = -1
    for other, plan in enumerate(plans):
        span = ordered_span(plan, service)
        if span and service not in plan.breaks and span[0] <= (epoch, first):
            behind = other
    return Part((behind, 1, service, epoch, first), columns)


def arbitrated_tables(outcome: Outcome, feed: Feed, zone: str) -> list[Table]:
    """Make every table; those about lines (`OF_LINES`) are made from the lines' digest."""
    of_lines = {each.name: each for each in Tables(outcome.of_lines, feed, zone).all()}
    return [
        of_lines[each.name] if each.name in OF_LINES else each
        for each in Tables(outcome, feed, zone).all()
    ]
