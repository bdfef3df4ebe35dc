"""Settings of arbitration, with the reasons for the defaults."""

from typing import Annotated

import msgspec

from feedhandler.codecs.toml_text import check_bounds, setting

#: Default `max_jump` in multiples of the hold, where a feed counts packets: twice the hold, so that
#: behind a gap the hold overflows, and gives the gap up, before honest packets look like a jump.
PACKETS_PER_HOLD = 2
#: The same where a feed counts messages: a full packet carries about so many.
MESSAGES_PER_PACKET = 64
#: Messages of a typical packet: for the compared numbers, whose memory it multiplies.
MESSAGES_PER_PACKET_USUAL = 16


class ArbitrationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one channel's arbitration; times in microseconds, sizes as named."""

    gap_wait_us: Annotated[
        int, setting("a gap is declared lost after this long without either line")
    ] = 10_000
    """how long a missing packet may still come, from the instant the gap was noticed; more than
    the usual skew of the two lines, less than a subscriber minds waiting"""

    start_wait_us: Annotated[
        int, setting("packets are held this long at the start, to begin at the lowest number")
    ] = 10_000
    """how long to look for the lowest number when joining a stream in its middle"""

    hold_packets: Annotated[int, setting("packets held behind a gap at most")] = 16_384
    """most packets held behind a gap, while the other line and then recovery may fill it: a tenth
    of a second at the highest rates"""

    packet_bytes_max: Annotated[
        int, setting("longest datagram taken; longer ones are dropped and counted")
    ] = 2048
    """longest datagram: an Ethernet frame of 1,500 bytes and some air; up to 65,535 for others"""

    max_jump: Annotated[
        int, setting("widest forward jump that needs no confirmation; 0: by hold_packets")
    ] = 0
    """widest forward jump in sequence numbers that needs no confirmation; 0: twice `hold_packets`,
    or 64 times where the feed counts messages (a full packet carries about that many)"""

    quarantine_packets: Annotated[
        int, setting("packets beyond the window that wait for confirmation at most")
    ] = 64
    """most packets beyond the window that wait for confirmation; the oldest gives way"""

    compare_packets: Annotated[
        int, setting("latest packets whose bytes are compared between the lines")
    ] = 4096
    """latest packets whose message bytes are compared between the lines"""

    silent_us: Annotated[
        int, setting("a line without a packet for this long is reported silent")
    ] = 3_000_000
    """a line is silent when nothing came for so long; feeds send heartbeats every second or two"""

    resync_us: Annotated[
        int, setting("nothing fitted for this long: one line alone may move the channel")
    ] = 1_000_000
    """how long nothing may have fitted before one line alone may move the channel elsewhere"""

    resync_run_packets: Annotated[
        int, setting("consecutive packets by which one line alone moves the channel")
    ] = 8
    """consecutive packets by which one line alone moves the channel"""

    epoch_window_us: Annotated[
        int, setting("how long after a reset the other line's older packets are expected")
    ] = 5_000_000
    """how long after a sequence reset the other line's copy of it, and packets from before it, may
    still come; ten times the widest skew seen between lines"""

    unsequenced_window_us: Annotated[
        int, setting("how long another line's copy of an unsequenced packet may come")
    ] = 1_000_000
    """how long after a packet outside the sequence another line's copy of it may come: the same
    bytes from a line that has not shown them yet are a copy then, later a packet of its own; twice
    the widest skew seen between lines"""

    def __post_init__(self) -> None:
        """Check the values. Raises `ValueError` (which msgspec turns into its own error)."""
        check_bounds(self, _BOUNDS)

    def jump_numbers(self, counts_messages: bool) -> int:
        """Return `max_jump` in sequence numbers, for a feed that counts messages or packets."""
        width = MESSAGES_PER_PACKET if counts_messages else PACKETS_PER_HOLD
        return self.max_jump or self.hold_packets * width

    def compare_numbers(self, counts_messages: bool) -> int:
        """Return `compare_packets` in sequence numbers."""
        return self.compare_packets * (MESSAGES_PER_PACKET_USUAL if counts_messages else 1)


#: Each field of `ArbitrationSettings`: its least and greatest value.
_BOUNDS: dict[str, tuple[int, int]] = {
    "gap_wait_us": (0, 60_000_000),
    "start_wait_us": (0, 60_000_000),
    "hold_packets": (1, 1 << 20),
    "packet_bytes_max": (64, 65_535),
    "max_jump": (0, 1 << 32),
    "quarantine_packets": (1, 4096),
    "compare_packets": (1, 1 << 20),
    "silent_us": (1_000, 3_600_000_000),
    "resync_us": (1_000, 3_600_000_000),
    "resync_run_packets": (2, 4096),
    "epoch_window_us": (0, 3_600_000_000),
    "unsequenced_window_us": (0, 3_600_000_000),
}
