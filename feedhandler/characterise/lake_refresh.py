"""Compressed packets of a batch turned into ordinary ones, so that they can be decoded; no I/O."""

import dataclasses

import numpy as np

from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.kinds import Reject
from feedhandler.replay.captures.packet_headers import read_headers
from feedhandler.replay.captures.reading import DatagramBatch


def inflated(feed: Feed, batch: DatagramBatch) -> tuple[DatagramBatch, int]:
    """Inflate the batch's compressed packets and clear their flags; also return how many failed.

    The packets lie over bytes of their own; those that could not be inflated are left out.
    """
    headers = read_headers(feed.table, batch.data, batch.offset, batch.length)
    rows = np.flatnonzero((headers.verdict == Reject.FINE) & (headers.compressed != 0))
    packets, good = [], []
    for row in rows.tolist():
        try:
            packets.append(feed.inflated(batch.payload(row)))
        except BadPacket:
            continue
        good.append(row)
    length = np.array([len(packet) for packet in packets], np.uint32)
    offset = (np.cumsum(length) - length).astype(np.uint32)
    made = dataclasses.replace(
        batch.select(np.array(good, np.int64)),
        data=np.frombuffer(b"".join(packets), np.uint8),
        offset=offset,
        length=length,
        frame_offset=offset,
        frame_length=length,
    )
    return made, len(rows) - len(good)
