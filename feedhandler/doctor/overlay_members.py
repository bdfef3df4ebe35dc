"""`feedhandler doctor` on the overlay: topologies, members that can run here, and their clock."""

import socket
from collections.abc import Iterator
from pathlib import Path

from feedhandler.codecs.errors import ConfigError
from feedhandler.config import Config
from feedhandler.doctor import host
from feedhandler.doctor.openness import check_secret
from feedhandler.overlay.running import open_socket
from feedhandler.overlay.topology import Member, Topology
from feedhandler.overlay.topology_file import read_topology, receiving_member
from feedhandler.terminal.checks import Check

#: Members that are named.
NAMES_MAX = 4


def check_lines(config: Config) -> Iterator[Check]:
    """Check each line that comes through the overlay: topology, address here, and the clock."""
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


def check_topology(path: Path, follows: bool) -> Iterator[Check]:
    """Check a topology: its file and the file's rights, its members on this machine, the clock.

    `follows`: members ask for the sender's time.
    """
    try:
        topology = read_topology(path)
    except ConfigError as error:
        yield Check(f"topology {path}", "fail", error.message, error.hint)
        return
    shape = topology.shape
    found = f"version {topology.version}: tree {topology.tree}, {len(topology.members)} members"
    found += f", hedging {shape.hedging}"
    yield Check(f"topology {path}", "ok", found)
    yield check_secret(f"topology {path} rights", str(path))
    yield _check_members(topology)
    yield check_clock(follows, "--follow-clock; or run chronyd, or ptp4l with phc2sys")


def _check_members(topology: Topology) -> Check:
    """Report the members with addresses of this machine, and those whose address is taken."""
    here = {host for host in {member.address[0] for member in topology.members} if _is_here(host)}
    members = [member for member in topology.members if member.address[0] in here]
    if not members:
        remedy = "copy the file to the machines that it names; `overlay plan --host` names others"
        return Check("overlay members", "warn", "no member has an address of this machine", remedy)
    taken = [member.name for member in members if check_address("", member).status == "fail"]
    names = ", ".join(member.name for member in members[:NAMES_MAX])
    more = f" and {len(members) - NAMES_MAX} more" if len(members) > NAMES_MAX else ""
    found = f"{len(members)} of {len(topology.members)} may run here: {names}{more}"
    if taken:
        found += f"; {len(taken)} of their addresses are taken, by themselves if they run"
    return Check("overlay members", "ok", found)


def _is_here(host: str) -> bool:
    """Return whether an address is this machine's."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except OSError:
        return False
    return True


def check_address(name: str, me: Member) -> Check:
    """Check that a member's address is this machine's, and free."""
    try:
        open_socket(me).close()
    except ConfigError as error:
        return Check(name, "fail", error.message, error.hint)
    return Check(name, "ok", f"{me.name} can be at {me.address[0]}:{me.address[1]}")


def check_clock(follows: bool, remedy: str) -> Check:
    """Check that the sender's time is known: by a synchronised clock, or because members ask."""
    name = "overlay clock"
    if follows:
        return Check(name, "ok", "the sender's time is asked for, up the tree")
    clock = host.clock_state()
    if clock is None or not clock.is_synchronised:
        return Check(name, "warn", "taken for the sender's, but not synchronised", remedy)
    found = f"kept to within {clock.error_us_max:,} us, and taken for the sender's"
    return Check(name, "ok", found)
