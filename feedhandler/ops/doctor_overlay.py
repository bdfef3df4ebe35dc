"""`feedhandler doctor` on the overlay: topologies, who of them can run here, and by which clock."""

import socket
from collections.abc import Iterator

from feedhandler.codecs.errors import ConfigError, reason_of
from feedhandler.config import Config
from feedhandler.ops import host
from feedhandler.ops.checks import Check
from feedhandler.overlay.topology import Member
from feedhandler.overlay.topology_file import receiving_member


def check_lines(config: Config) -> Iterator[Check]:
    """Each line that comes through the overlay: its topology, its address here, and the clock."""
    lines = config.overlay_lines
    for (_, number, *_), line in lines:
        name = f"line {config.channels[int(number)].service}.{line.name}"
        try:
            _, me = receiving_member(line.topologies, line.member)
        except ConfigError as error:
            yield Check(name, "fail", error.message, error.hint)
        else:
            yield check_address(name, me)
    if lines:
        remedy = "[overlay] follow_clock = true; or run chronyd, or ptp4l with phc2sys"
        yield check_clock(config.overlay.follow_clock, remedy)


def check_address(name: str, me: Member) -> Check:
    """A member's address is this machine's, and free."""
    place = f"{me.address[0]}:{me.address[1]}"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(me.address)
    except OSError as error:
        remedy = "a member runs on the machine that has its address, once"
        return Check(name, "fail", f"{me.name} cannot have {place}: {reason_of(error)}", remedy)
    return Check(name, "ok", f"{me.name} can be at {place}")


def check_clock(follows: bool, remedy: str) -> Check:
    """The sender's time is known: the machine's clock is kept, or members ask for it."""
    name = "overlay clock"
    if follows:
        return Check(name, "ok", "the sender's time is asked for, up the tree")
    clock = host.clock_state()
    if clock is None or not clock.is_synchronised:
        return Check(name, "warn", "taken for the sender's, and nobody keeps it", remedy)
    found = f"kept to within {clock.error_us_max:,} us, and taken for the sender's"
    return Check(name, "ok", found)
