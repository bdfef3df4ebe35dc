"""`feedhandler doctor`: checks of a host for what a feed gateway needs, and the remedies.

Each check is a function that returns one or more `Check`s; none changes anything on the host, and
none needs privileges. `fail` means that a gateway will not work here, or that every user of the
host can read a secret; `warn` that it will lose packets, time or comfort under load, or that its
own data are open to others.
"""

import importlib.util
import os
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import structs

from feedhandler._compiled import COMPILED_ONLY, PURE_MODE, UNITS, NotCompiledError, missing_units
from feedhandler.addresses import split_address
from feedhandler.amqp.security import ServerTls
from feedhandler.codecs import ConfigError
from feedhandler.config import (
    Config,
    LineConfig,
    loopback_config,
)
from feedhandler.config.amqp import TlsConfig
from feedhandler.descriptors import RESERVED
from feedhandler.doctor import cpu_latency, host
from feedhandler.doctor.openness import check_openness
from feedhandler.ingest.lines import Line, open_line
from feedhandler.ops.overlay import hooks as overlay_hooks
from feedhandler.terminal.checks import Check
from feedhandler.terminal.console import ExitCode, print_json, stdout_console

#: A certificate that expires sooner is warned of: time enough to have a new one issued.
CERTIFICATE_DAYS_MIN = 14
#: A core for the receive thread, one for the event loop.
CPUS_WANTED = 2
#: Descriptors beside connections and lines: files, pipes, the loop's own.
SPARE_DESCRIPTORS = RESERVED
#: Bounds of memory that are named.
LARGEST_BOUNDS = 3
#: How long a server of a line may take to accept a connection.
CONNECT_SECONDS = 3.0
#: A clock that may be off by more makes latencies of feed packets meaningless.
CLOCK_ERROR_US_MAX = 10_000


def run(
    path: Path | None,
    interface: str | None,
    as_json: bool,
    topologies: Sequence[Path] = (),
    follow_clock: bool = False,
) -> int:
    """Run all checks and print them, those of overlay `topologies` too; `FOUND` where any fails."""
    from feedhandler.gateway import open_config

    config = open_config(path)[0] if path else loopback_config()
    if interface:
        gateway = structs.replace(config.gateway, interface=interface)
        config = structs.replace(config, gateway=gateway)
    checks = list(all_checks(config, is_default=path is None, path=path))
    for topology in topologies:
        from feedhandler.doctor.overlay_members import check_topology

        checks.extend(check_topology(topology, follow_clock))
    if as_json:
        for check in checks:
            print_json(structs.asdict(check))
    else:
        _print_table(checks)
    failed = any(check.status == "fail" for check in checks)
    return ExitCode.FOUND if failed else ExitCode.OK


def all_checks(
    config: Config, is_default: bool = False, path: Path | None = None
) -> Iterator[Check]:
    """Yield every check for `config`, which is in the file `path`.

    The ports of a default configuration are not checked.
    """
    yield from check_modules()
    yield check_cpus()
    yield from check_pinned(config)
    yield from check_receive_buffer(config.receive.socket_buffer_bytes)
    lines = list(_lines(config))
    for interface in sorted({config.interface_of(line) for _, line in lines}):
        yield from check_interface(interface)
    if not is_default:
        for name, line in lines:
            yield check_join(name, line, config.interface_of(line))
        for path_of_line, line, tcp in config.tcp_lines:
            service = config.channels[int(path_of_line[1])].service
            yield check_connect(f"line {service}.{line.name}", tcp.address)
        if config.amqp.address is not None:
            yield check_port(config.amqp.address)
        if config.amqp.tls.address is not None:
            yield check_port(config.amqp.tls.address, "AMQP with TLS", "amqp.tls.listen")
            yield check_certificate(config.amqp.tls)
        if config.metrics.listen:
            yield check_port(split_address(config.metrics.listen), "metrics", "metrics.listen")
    yield check_clock()
    if config.overlay_lines:
        from feedhandler.doctor.overlay_members import check_lines

        yield from check_lines(config)
    yield check_privileges()
    yield overlay_hooks.check()
    yield check_awake(config.gateway.stay_awake)
    yield check_queues(config)
    yield from check_memory(config)
    yield from _check_journals(config)
    yield from check_openness(config, path)
    clients = config.amqp.max_connections + config.amqp.limits.connections_before_login
    # A line through the overlay or by TCP has its own socket, and the two ends of the way to the
    # receive thread.
    sockets = len(lines) + 3 * (len(config.overlay_lines) + len(config.tcp_lines))
    yield check_descriptors(clients + sockets + SPARE_DESCRIPTORS)


def _lines(config: Config) -> Iterator[tuple[str, LineConfig]]:
    """Yield every line that the gateway joins, with its name: of channels, refreshes, servers."""
    for channel in config.channels:
        for line in channel.lines:
            if not line.topology and line.tcp is None:
                yield f"line {channel.service}.{line.name}", line
        for refresh in channel.refresh_lines:
            if not refresh.topology:
                yield f"refresh line {channel.service}.{refresh.name}", refresh
        for answers in channel.retransmission_lines:
            yield f"retransmission line {channel.service}.{answers.name}", answers
    for server in config.servers:
        for group in server.lines:
            yield f"server {server.name}, line {group.name}", group


def check_modules() -> Iterator[Check]:
    """Check that the compiled units exist, and are used."""
    missing = missing_units()
    if 0 < len(missing) < len(UNITS):
        found = f"units missing: {', '.join(missing)}"
        yield Check("compiled modules", "fail", found, "make build")
        return
    interpreted, missing = [], []
    for name in [*PURE_MODE, *COMPILED_ONLY]:
        spec = importlib.util.find_spec(name)
        if spec is None:
            missing.append(name)
        elif not (spec.origin or "").endswith(".so"):
            interpreted.append(name)
    if missing:
        yield Check("compiled modules", "fail", f"missing: {', '.join(missing)}", "make build")
    elif interpreted:
        found = f"{len(interpreted)} run interpreted, far slower: {', '.join(interpreted)}"
        remedy = "make build"
        if os.environ.get("FEEDHANDLER_PURE"):
            remedy = "unset FEEDHANDLER_PURE"
        yield Check("compiled modules", "warn", found, remedy)
    else:
        yield Check("compiled modules", "ok", f"all {len(PURE_MODE) + len(COMPILED_ONLY)} compiled")


def _check_journals(config: Config) -> Iterator[Check]:
    """Check the folders of queues and journals, where their reader is compiled."""
    try:
        from feedhandler.doctor.journals import check_journals
    except NotCompiledError:
        return  # `check_modules` reports it
    yield from check_journals(config)


def check_queues(config: Config) -> Check:
    """Report what may wait for slow receivers, bytes: the sum of all bounds.

    Only `max_links` links that are all behind reach it.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    amqp, most = config.amqp, config.waiting_bytes_max
    found = f"{most:,} bytes at most: {amqp.max_links:,} links of {amqp.queue_bytes:,}"
    if config.publish:
        found += f", {len(config.publish)} destinations"
    if most > memory and (behind := memory // amqp.queue_bytes) < amqp.max_links:
        found += f"; memory has room for {behind:,} links that are wholly behind"
    return Check("queues", "ok", found)


def check_memory(config: Config) -> Iterator[Check]:
    """Report the memory that clients can make the gateway use, by bounds.

    Yields nothing where the node is not compiled.
    """
    try:
        from feedhandler.doctor.memory_bounds import memory_bounds
    except NotCompiledError:
        return  # `check_modules` reports it
    bounds = sorted(memory_bounds(config), key=lambda each: each.most, reverse=True)
    largest = ", ".join(f"{bound.name} {bound.most:,}" for bound in bounds[:LARGEST_BOUNDS])
    found = f"{sum(bound.most for bound in bounds):,} bytes at most by clients: {largest}, ..."
    yield Check("memory", "ok", found)


def check_cpus() -> Check:
    """Check that the receive thread and the event loop have a core each."""
    count = len(os.sched_getaffinity(0))
    if count < CPUS_WANTED:
        remedy = "give it two cores: one receives, one publishes"
        return Check("processors", "warn", f"{count} usable", remedy)
    return Check("processors", "ok", f"{count} usable")


def check_pinned(config: Config) -> Iterator[Check]:
    """Check that this process may use the processors that threads are pinned to."""
    usable = sorted(os.sched_getaffinity(0))
    pinned = {"receive.cpu": config.receive.cpu, "overlay.cpu": config.overlay.cpu}
    for key, number in pinned.items():
        if number >= 0 and number not in usable:
            there = ", ".join(map(str, usable))
            yield Check(key, "fail", f"no processor {number} for this process", f"one of {there}")


def check_receive_buffer(wanted_bytes: int) -> Iterator[Check]:
    """Check that a socket really gets the receive buffer that is configured."""
    granted = host.granted_receive_buffer(wanted_bytes)
    found = f"{granted:,} of {wanted_bytes:,} bytes granted"
    if granted < wanted_bytes:
        remedy = f"sysctl -w net.core.rmem_max={wanted_bytes}"
        yield Check("receive buffer", "warn", found, remedy)
    else:
        yield Check("receive buffer", "ok", found)


def check_interface(interface: str) -> Iterator[Check]:
    """Check that the interface exists, is up, does multicast, and returns a datagram sent there."""
    label = f"interface {interface}"
    state = host.interface_state(interface)
    if state is None:
        remedy = f"one of: {', '.join(host.interface_names())}"
        yield Check(label, "fail", "no such interface", remedy)
        return
    if not state.is_up:
        yield Check(label, "fail", f"{state.name} is down", f"ip link set {state.name} up")
        return
    if not (state.is_multicast or state.is_loopback):
        remedy = f"ip link set {state.name} multicast on"
        yield Check(label, "fail", f"{state.name} does no multicast", remedy)
        return
    yield Check(label, "ok", f"{state.name}, {state.address or 'no IPv4 address'}, up")
    if host.strict_reverse_path(state.name) and not state.is_loopback:
        found = "strict reverse path filter: senders off this subnet are dropped"
        remedy = f"sysctl -w net.ipv4.conf.{state.name}.rp_filter=2"
        yield Check(f"{label} filter", "warn", found, remedy)
    yield _self_test(interface)


def _self_test(interface: str) -> Check:
    name = f"multicast on {interface}"
    try:
        result = host.multicast_self_test(interface)
    except ConfigError as error:
        return Check(name, "fail", error.message, error.hint)
    except OSError as error:
        remedy = f"ip route add 239.0.0.0/8 dev {interface}, or a firewall rule for it"
        return Check(name, "fail", f"sending failed: {error.strerror}", remedy)
    if result is None:
        remedy = "allow UDP to 239.0.0.0/8 and IGMP in the firewall"
        return Check(name, "fail", "a datagram sent to a joined group did not come back", remedy)
    if not result.has_kernel_stamp:
        found = "joined and received, but without a kernel time stamp"
        return Check(name, "warn", found, "latencies will include scheduling; use a newer kernel")
    return Check(name, "ok", f"joined, received after {result.elapsed_us:,} us, kernel time stamp")


def check_join(name: str, line: LineConfig, interface: str) -> Check:
    """Check that one configured line can be joined, the way the gateway will."""
    address = f"{line.group}:{line.port}" + (f" from {line.source}" if line.source else "")
    try:
        open_line(Line(line.name, line.group, line.port, interface, line.source or None)).close()
    except ConfigError as error:
        return Check(name, "fail", error.message, error.hint)
    return Check(name, "ok", f"{address} can be joined")


def check_connect(name: str, address: str) -> Check:
    """Check that a line's server takes connections; no login, which could end a gateway's own."""
    try:
        socket.create_connection(split_address(address), CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error) or "no answer"
        remedy = "is the address right, does the server run, does a firewall let it pass?"
        return Check(name, "fail", f"{address}: {reason}", remedy)
    return Check(name, "ok", f"{address} can be connected to")


def check_port(address: tuple[str, int], what: str = "AMQP", key: str = "amqp.listen") -> Check:
    """Check that the port to listen on is free; `key` names it in the configuration."""
    name = f"{what} port {address[1]}"
    try:
        host.try_listen(address)
    except OSError as error:
        found = f"{address[0]}:{address[1]}: {error.strerror or error}"
        return Check(name, "fail", found, f"end what listens there, or change {key}")
    return Check(name, "ok", "free")


def check_certificate(tls: TlsConfig) -> Check:
    """Check that the node's TLS files can be used, and for how long."""
    name = "TLS certificate"
    try:
        server = ServerTls(tls.certificate, tls.key, tls.client_ca, where="amqp.tls.")
    except ConfigError as error:
        return Check(name, "fail", error.message, error.hint)
    until_s = server.expires_s()
    if until_s is None:
        return Check(name, "ok", f"{tls.certificate} can be used")
    days = (until_s - time.time()) / 86_400
    if days <= 0:
        return Check(name, "fail", f"{tls.certificate} has expired", "have it renewed")
    found = f"{tls.certificate} expires in {days:.0f} days"
    if days < CERTIFICATE_DAYS_MIN:
        return Check(name, "warn", found, "have it renewed; the gateway reads it by itself")
    return Check(name, "ok", found)


def check_clock() -> Check:
    """Check that the clock is synchronised, and fine enough for nanosecond stamps."""
    resolution_ns = round(time.clock_getres(time.CLOCK_REALTIME) * 1e9)
    clock = host.clock_state()
    if clock is None:
        found = f"resolution {resolution_ns} ns; the kernel does not report whether it is steered"
        return Check("clock", "warn", found, "see whether chronyd or ptp4l runs on the host")
    if not clock.is_synchronised:
        found = f"not synchronised, resolution {resolution_ns} ns"
        return Check("clock", "warn", found, "run chronyd, or ptp4l with phc2sys")
    found = f"synchronised to within {clock.error_us_max:,} us, resolution {resolution_ns} ns"
    if clock.error_us_max > CLOCK_ERROR_US_MAX:
        return Check("clock", "warn", found, "a nearer time server, or PTP")
    return Check("clock", "ok", found)


def check_privileges() -> Check:
    """Report whether receive buffers may exceed net.core.rmem_max, which is not required."""
    if host.has_net_admin():
        return Check("privileges", "ok", "CAP_NET_ADMIN: receive buffers may exceed rmem_max")
    return Check("privileges", "ok", "no CAP_NET_ADMIN; not needed where rmem_max suffices")


def check_awake(wanted: bool) -> Check:
    """Check that idle processors can be kept from halting, where that is asked for."""
    fault = cpu_latency.fault()
    if wanted and fault:
        return Check("idle processors", "warn", fault, cpu_latency.AWAKE_HINT)
    if wanted:
        return Check("idle processors", "ok", "kept awake while the gateway runs")
    found = "may halt; gateway.stay_awake makes wake-ups quicker"
    return Check("idle processors", "ok", fault or found)


def check_descriptors(wanted: int) -> Check:
    """Check that there are enough descriptors for every line and connection."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"limit {limit:,}, wanted {wanted:,}"
    if limit != resource.RLIM_INFINITY and limit < wanted:
        where = "ulimit -n" if hard == resource.RLIM_INFINITY or hard >= wanted else "LimitNOFILE="
        return Check("file descriptors", "warn", found, f"{where} {wanted}")
    return Check("file descriptors", "ok", found)


def _print_table(checks: list[Check]) -> None:
    console = stdout_console()
    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        colour = colours[check.status]
        console.print(f"[{colour}]{check.status:<4}[/]  {check.name:<{width}}  ", end="")
        console.print(check.found, markup=False, soft_wrap=True)
        if check.remedy:
            console.print(f"      {'':<{width}}  -> {check.remedy}", markup=False, soft_wrap=True)
