"""`feedhandler overlay plan`: a tree's shape, its members' roles, addresses and keys."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import DecodeError, Struct
from msgspec.json import decode

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.toml_text import read_text
from feedhandler.overlay.merging import check_trees
from feedhandler.overlay.topology import Address, Topology, make_topology, roles_of
from feedhandler.overlay.topology_file import address_of, check_host, read_topology, write_topology
from feedhandler.overlay.tree import Costs, Shape, best_shape, default_shape, fan_out_of, fit_costs
from feedhandler.overlay.wire import KEY_BYTES
from feedhandler.terminal.console import ExitCode, print_json


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a plan.

    `depth` and `fan_out` 0: chosen, by `costs`, by those of trees that were `measured`, or by the
    rule.
    """

    receivers: int
    hedging: int
    depth: int
    fan_out: int
    costs: Costs | None
    tree: int
    hosts: Sequence[str]
    port: int
    measured: Path | None = None


class _Measured(Struct, frozen=True):
    """A line of what trees measured: a shape, and the median latency to its last receiver, us."""

    latency_p50_us: float
    receivers: int
    depth: int
    fan_out: int
    hedging: int
    #: Latency with deadlines, which are no cost of the shape.
    deadlines: bool = False


def measured_costs(path: Path) -> Costs:
    """Return the costs that fit what trees measured, by least squares.

    `path` has JSON lines as `overlay measure --json` prints them. Lines with hedging or deadlines
    are skipped, because the model has neither. Raises `ConfigError` with the number of a line that
    is wrong, `UsageError` where the shapes do not suffice.
    """
    rows: list[tuple[Shape, float]] = []
    for number, line in enumerate(read_text(path, "give JSON lines").splitlines(), 1):
        try:
            row = decode(line, type=_Measured)
            if not row.hedging and not row.deadlines:
                shape = Shape(row.receivers, row.depth, row.fan_out)
                rows.append((shape, row.latency_p50_us))
        except (DecodeError, UsageError) as error:
            raise ConfigError(
                f"{path}, line {number}: {error}", "give lines of `overlay measure --json`"
            ) from None
    costs = fit_costs(rows)
    if min(costs.level, costs.child) < 0:
        raise UsageError(
            f"{path}: a hop would cost {costs.level:.3g} us, a child {costs.child:.3g}",
            "measure more messages, or shapes that differ more",
        )
    return costs


def shape_of(options: Options) -> Shape:
    """Return the shape that is asked for. Raises `UsageError`."""
    receivers, hedging = options.receivers, options.hedging
    if options.depth:
        fan_out = options.fan_out or fan_out_of(receivers, options.depth)
        return Shape(receivers, options.depth, fan_out, hedging)
    if options.fan_out:
        raise UsageError("a fan-out without a depth", "give --depth, too")
    if options.costs is not None:
        return best_shape(receivers, options.costs, hedging)
    return default_shape(receivers, hedging)


def plan(options: Options, path: Path, as_json: bool) -> int:
    """Make a topology and write it. Raises `UsageError`."""
    _refuse_existing(path)
    if options.measured is not None:
        options = replace(options, costs=measured_costs(options.measured))
    shape = shape_of(options)
    count = len(roles_of(shape))
    if options.port + count > 65_536:
        raise UsageError(
            f"{count} members from port {options.port} on: ports end at 65535", "a lower --port"
        )
    hosts = options.hosts
    addresses = [(hosts[n % len(hosts)], options.port + n // len(hosts)) for n in range(count)]
    for host in hosts:
        check_host(host)
    keys = (os.urandom(KEY_BYTES) for _ in range(count + 1))
    topology = make_topology(shape, options.tree, addresses, keys)
    write_topology(topology, path)
    _report_plan(topology, path, options.costs or Costs(), as_json)
    return ExitCode.OK


def plan_beside(
    first: Path, path: Path, tree: int | None, hosts: Sequence[str], port: int, as_json: bool
) -> int:
    """Make a topology of another tree beside `first`, and write it.

    It has the shape, the sender and the receivers of `first`, and proxies and keys of its own.
    """
    _refuse_existing(path)
    before = read_topology(first)
    tree = (before.tree + 1) % 65_536 if tree is None else tree
    if not before.shape.proxies:
        raise UsageError(f"{first} has no proxies", "a tree without has nothing to share out")
    for host in hosts:
        check_host(host)
    taken = {member.address for member in before.members}
    addresses = _free_addresses(hosts, port, taken)
    members = [next(addresses) if each.role == "proxy" else each.address for each in before.members]
    keys = (os.urandom(KEY_BYTES) for _ in range(len(members) + 1))
    topology = make_topology(before.shape, tree, members, keys)
    check_trees([before, topology])
    write_topology(topology, path)
    _report_plan(topology, path, Costs(), as_json)
    return ExitCode.OK


def _free_addresses(hosts: Sequence[str], port: int, taken: set[Address]) -> Iterator[Address]:
    """Yield free addresses of the hosts in turn, of ports from `port` on. Raises `UsageError`."""
    for number in range(port, 65_536):
        yield from ((host, number) for host in hosts if (host, number) not in taken)
    raise UsageError(f"too few ports from {port} on: they end at 65535", "a lower --port")


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise UsageError(
            f"{path} is there already", "replace a member of it by --replace, or name another"
        )


def replace_member(path: Path, name: str, address: str, as_json: bool) -> int:
    """Replace a member's machine in the file."""
    if not name or not address:
        raise UsageError(
            f"--replace names a member and its new address, not {name or address!r}",
            "give NAME=HOST:PORT, such as proxy-0-3=10.0.0.9:7000",
        )
    topology = read_topology(path)
    to = address_of(address)
    check_host(to[0])
    topology = topology.replaced(name, to, os.urandom(KEY_BYTES))
    write_topology(topology, path)
    _report_plan(topology, path, Costs(), as_json)
    return ExitCode.OK


def _report_plan(topology: Topology, path: Path, costs: Costs, as_json: bool) -> None:
    shape = topology.shape
    if as_json:
        print_json(
            {"file": path, "version": topology.version, "receivers": shape.receivers,
             "depth": shape.depth, "fan_out": shape.fan_out, "hedging": shape.hedging,
             "proxies": shape.proxies, "goodput": shape.goodput, "cost_us": shape.cost(costs),
             "level_us": costs.level, "child_us": costs.child}
        )  # fmt: skip
        return
    print(
        f"{path}: version {topology.version}, {shape.receivers:,} receivers, {shape.proxies:,}"
        f" proxies, depth {shape.depth}, fan-out {shape.fan_out}, hedging {shape.hedging}:"
        f" goodput {shape.goodput:.0%}, about {shape.cost(costs):,.0f} us to the last receiver"
        f" (a hop {costs.level:.3g} us, a child {costs.child:.3g} us)"
    )
