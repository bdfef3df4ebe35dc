"""Send times of replayed packets: kept, shifted by one amount, or made anew."""

import dataclasses
import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from feedhandler.codecs import Feed, load_feed
from feedhandler.replay.captures.reading import Capture, DatagramBatch
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.stamps import Stamper, Stamps

SECOND = 10**9
UTP, IEX = load_feed("euronext-utp-md"), load_feed("iex-deep")
XDP = load_feed("nyse-integrated-xdp")
#: Half a minute before midnight in Paris, on a winter's day.
LATE = datetime.datetime(2026, 11, 20, 23, 59, 30, tzinfo=ZoneInfo("Europe/Paris"))
LATE_NS = int(LATE.timestamp()) * SECOND


def batch_of(folder: Path, payloads: list[bytes]) -> DatagramBatch:
    with CaptureWriter(folder / "x.pcap") as writer:
        for payload in payloads:
            writer.write(0, "239.1.1.1", 5_001, payload)
    return next(Capture(folder / "x.pcap").batches())


def times(batch: DatagramBatch, feed: Feed) -> list[int]:
    return [feed.decode_packet(one.payload).send_time for one in batch.datagrams()]


def packets(feed: Feed, *send_times: int) -> list[bytes]:
    return [feed.encode_packet(sequence=5, send_time=at) for at in send_times]


DUE_NS = np.array([0, 1_500_000, 2 * SECOND])


def test_kept_times_are_untouched(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, packets(UTP, 1, 2, 3))
    before = batch.data.tobytes()
    stamper = Stamper(UTP, Stamps.KEEP)
    stamper.begin(LATE_NS)
    stamper(batch, DUE_NS)
    assert batch.data.tobytes() == before
    assert stamper.stamped == 0


def test_shifted_times_begin_now_and_keep_their_distances_past_midnight(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, packets(UTP, 1_000, 1_007, 40_000))
    stamper = Stamper(UTP, Stamps.SHIFT)
    stamper.begin(LATE_NS + 999_999)
    stamper(batch, DUE_NS)
    day_ms = 86_400_000
    first = day_ms - 30_000
    assert times(batch, UTP) == [first, first + 7, (first + 39_000) % day_ms]
    assert stamper.stamped == 3


def test_shifted_times_go_on_where_their_pass_was_moved_to(tmp_path: Path) -> None:
    stamper = Stamper(IEX, Stamps.SHIFT)
    stamper.begin(7 * SECOND)
    first = batch_of(tmp_path, packets(IEX, 100, 200))
    stamper(first, DUE_NS[:2])
    again = dataclasses.replace(batch_of(tmp_path, packets(IEX, 100, 200)), moved_ns=150)
    stamper(again, DUE_NS[:2])
    assert times(first, IEX) + times(again, IEX) == [
        7 * SECOND + late for late in (0, 100, 150, 250)
    ]
    stamper.begin(9 * SECOND)
    elsewhere = batch_of(tmp_path, packets(IEX, 700, 701))
    stamper(elsewhere, DUE_NS[:2])
    assert times(elsewhere, IEX) == [9 * SECOND, 9 * SECOND + 1]


@pytest.mark.parametrize(
    ("feed", "unit_ns", "begins"),
    [(UTP, 1_000_000, 86_370 * SECOND), (IEX, 1, LATE_NS), (XDP, 1, LATE_NS)],
)
def test_new_times_are_when_each_is_due_pauses_included(
    tmp_path: Path, feed: Feed, unit_ns: int, begins: int
) -> None:
    batch = batch_of(tmp_path, packets(feed, 5, 6, 7))
    stamper = Stamper(feed, Stamps.NOW)
    stamper.begin(LATE_NS)
    stamper(batch, DUE_NS, late_ns=3 * SECOND)
    assert times(batch, feed) == [(begins + 3 * SECOND + due) // unit_ns for due in DUE_NS.tolist()]


def test_only_packets_of_the_feed_are_stamped_and_lose_their_checksum(tmp_path: Path) -> None:
    batch = batch_of(tmp_path, [b"no packet of it", *packets(UTP, 5)])
    checksums = [int(at) - 2 for at in batch.offset]
    for at in checksums:
        batch.data[at : at + 2] = 7
    stamper = Stamper(UTP, Stamps.NOW)
    stamper.begin(LATE_NS)
    stamper(batch, DUE_NS[:2])
    assert batch.payload(0) == b"no packet of it"
    assert [batch.data[at : at + 2].tolist() for at in checksums] == [[7, 7], [0, 0]]
    nothing = batch_of(tmp_path, [b"nothing"])
    stamper(nothing, DUE_NS[:1])
    assert stamper.stamped == 1


def test_copies_of_a_packet_get_one_time_also_in_the_next_batch(tmp_path: Path) -> None:
    one, two, three = (IEX.encode_packet(sequence=number, send_time=7) for number in (1, 2, 3))
    stamper = Stamper(IEX, Stamps.NOW)
    stamper.begin(0)
    found = []
    for payloads, due in (
        ([one, two, one], [10, 20, 30]),
        ([two, three], [40, 50]),
        ([IEX.encode_packet(sequence=9)], [60]),
        ([one, three], [70, 80]),
    ):
        batch = batch_of(tmp_path, payloads)
        stamper(batch, np.array(due))
        found.append(times(batch, IEX))
    # What came three batches ago is forgotten.
    assert found == [[10, 20, 10], [20, 50], [60], [70, 50]]
