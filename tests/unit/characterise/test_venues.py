"""The lake and the rows of real packets of every venue: all messages that decoding finds."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from feedhandler.characterise.lake import fill_lake
from feedhandler.characterise.rows import RowMaker
from feedhandler.codecs import BadPacket, load_feed
from feedhandler.replay.captures.reading import Capture
from tests.support.feeds import BINARY_FEEDS
from tests.support.venues import FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
def test_every_message_that_can_be_read_is_in_the_lake_and_a_row(
    venues: Path, tmp_path: Path, name: str
) -> None:
    assert name in BINARY_FEEDS
    path, feed = venues / FOLDERS[name] / "packets.pcap", load_feed(name)
    messages = 0
    for datagram in Capture(path):
        try:
            messages += sum(index.count for _, _, index in feed.scanned(datagram.payload))
        except BadPacket:
            continue
    assert messages > 0
    (written,) = fill_lake([str(path)], name, tmp_path)
    contents = written.contents
    assert (contents.messages, contents.in_tables + contents.raw) == (messages, messages)
    assert (contents.not_whole, contents.lost) == (0, 0)
    kept = {
        (row["time_ns"], row["line"], row["sequence"], row["number"])
        for each in tmp_path.glob("capture=*/type=*/day=*/service=*/*.parquet")
        for row in pq.ParquetFile(each).read(["time_ns", "line", "sequence", "number"]).to_pylist()
    }
    assert 0 < len(kept) <= messages
    maker, packets = RowMaker(feed, messages=True), RowMaker(feed)
    rows = sum(batch.num_rows for batch in maker.batches(Capture(path).batches(), "", 0))
    counts = [
        number
        for batch in packets.batches(Capture(path).batches(), "", 0)
        for number in batch["messages"].to_pylist()
    ]
    assert (rows, sum(counts)) == (messages, messages)
