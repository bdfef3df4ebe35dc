"""Where the stream is tapped for the recorder: a ring whose producer never waits.

The thread that has a packet in its hands (the receive thread, the event loop) calls `packet` and,
once a batch, `publish`: two copies of a few hundred bytes, no system call, no wake-up, no GIL. The
recorder's thread looks into the ring every few milliseconds. Where the ring is full, or recording
has stopped, the packet is counted in `dropped` and forgotten; nothing ever waits for a disk.

Records are the ring's own PACKET records: `place` (a line's number, or a channel's) is the record's
channel index, `sender` (see `sender_word`) stands in its session word.
"""

import cython

if cython.compiled:
    from cython.cimports.feedhandler.ingest.ring import Ring
else:
    from feedhandler.ingest.ring import Ring


def sender_word(address: int, port: int) -> int:
    """A datagram's sender as one word: IPv4 address as a number << 16 | port; 0: not known."""
    return address << 16 | port


@cython.final
@cython.cclass
class Tap:
    """One producer's end. `taken` and `dropped` count packets since the start."""

    def __init__(self, ring_bytes: int) -> None:
        self.ring = Ring(ring_bytes)
        self.taken = 0
        self.dropped = 0
        self.shut = 0

    def packet(self, place, sequence, received_ns, sender, data, start, length):
        """Take a copy of data[start:start+length]; 1, or 0 where it was dropped and counted.

        `received_ns` is its kernel stamp. Raises IndexError for what lies outside `data`.
        """
        if self.shut == 0 and self.ring.write_packet(
            place, 0, 0, 0, sequence, sequence, received_ns, sender, 0, 0, 0, data, start, length
        ):
            self.taken += 1
            return 1
        self.dropped += 1
        return 0

    def publish(self):
        """Show the recorder everything taken so far."""
        self.ring.publish()
        return 0

    def shut_off(self):
        """Recording has stopped: from now on packets are only counted as dropped."""
        self.shut = 1
        return 0
