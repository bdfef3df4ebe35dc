"""Attach, detach and show hooks: links and maps pinned in bpffs, so that no process must stay.

Each hook has a folder `<role>-<device's index>-<namespace's inode>` of pins: `link`, which holds
the program at its device, and the maps. The hook lives until the folder is removed, even when the
process that attached it ends; a device that is removed takes the program along and leaves the pins
to `detach`.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from feedhandler.codecs.errors import HostFault, UsageError, reason_of
from feedhandler.overlay.hooks import libbpf
from feedhandler.overlay.hooks.abi import (
    ANY,
    COUNTERS,
    HEADER_BYTES,
    KEY_BYTES,
    NUMBERING,
    OUTER_BYTES,
    PAYLOAD_MAX,
    SETTINGS_BYTES,
    SLOTS_MAX,
    TARGET_BYTES,
    TARGETS_MAX,
    Address,
    Settings,
    pack_target,
    unpack_target,
)
from feedhandler.overlay.hooks.compiling import PACKAGES, object_file

BPFFS = Path("/sys/fs/bpf")
FOLDER = BPFFS / "feedhandler"
_LOOPBACK_FORWARDS = Path("/proc/sys/net/ipv4/conf/lo/forwarding")
#: bpffs's number in statfs(2).
_BPFFS_MAGIC = "cafe4a11"
_MAPS = ("settings", "targets", "numbering", "newest_epoch", "slots", "counters")
_VALUE_BYTES = {
    "settings": SETTINGS_BYTES,
    "targets": TARGET_BYTES,
    "numbering": NUMBERING.size,
    "counters": 8,
}
_NAME = re.compile(r"(send|forward|receive)-(\d+)-(\d+)")
#: The discard port (RFC 863): a datagram to it makes the kernel resolve the neighbour's address.
_DISCARD_PORT = 9
# From <linux/capability.h>.
_NET_ADMIN, _SYS_ADMIN, _PERFMON, _BPF = 12, 21, 38, 39


@dataclass(frozen=True)
class Role:
    """A role's program, and where it is attached."""

    program: str
    kind: int


ROLES = {
    "send": Role("replicate", libbpf.TCX_EGRESS),
    "forward": Role("forward", libbpf.TCX_INGRESS),
    "receive": Role("receive", libbpf.XDP),
}


@dataclass(frozen=True)
class Request:
    """A hook to attach: see `feedhandler overlay hooks attach`."""

    role: str
    device: str
    match: Address
    to: Sequence[Address]
    tree: int
    key: bytes = b""
    hold_ns: int = 0
    slots: int = 1 << 16
    mode: str = "native"


@dataclass(frozen=True)
class Hook:
    """An attached hook, as `show` returns it."""

    role: str
    device: str  #: empty where the device has gone, or is another namespace's
    folder: Path
    settings: Settings
    to: tuple[Address, ...]
    counters: dict[str, int]


def capabilities() -> int:
    """Return this process's effective capabilities, a bit each."""
    text = Path("/proc/thread-self/status").read_text()
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", text, re.MULTILINE)
    assert match is not None, "the kernel reports no capabilities"
    return int(match[1], 16)


def refusal(held: int | None = None) -> tuple[str, str] | None:
    """Return why hooks cannot be attached here, and the remedy; None where they can."""
    held = capabilities() if held is None else held
    allowed = held >> _SYS_ADMIN & 1 or (held >> _BPF & 1 and held >> _PERFMON & 1)
    if not (allowed and held >> _NET_ADMIN & 1):
        return (
            "hooks need the capabilities CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN",
            "run as root; or use overlay send, proxy and receive, which need no privilege",
        )
    try:
        libbpf.library()
    except OSError:
        return "hooks need libbpf 1.x, which is not installed", PACKAGES
    if shutil.which("clang") is None:
        return "hooks need clang to be compiled", PACKAGES
    return None


def require_privilege() -> None:
    """Raise `UsageError`, one line with the remedy, where hooks cannot be attached."""
    if (found := refusal()) is not None:
        raise UsageError(*found)


def _namespace() -> int:
    return os.stat("/proc/thread-self/ns/net").st_ino


def _index_of(device: str) -> int:
    try:
        return socket.if_nametoindex(device)
    except OSError:
        raise UsageError(f"there is no interface {device}", "ip link shows them") from None


def _mtu_of(device: str) -> int:
    """Return the device's MTU in the calling thread's namespace, which /sys may not show."""
    done = subprocess.run(
        ["ip", "-o", "link", "show", device], capture_output=True, text=True, check=False
    )
    found = re.search(r" mtu (\d+)", done.stdout)
    if found is None:
        raise HostFault(f"the MTU of {device} is not known to `ip`", "apt-get install iproute2")
    return int(found[1])


def _mount_bpffs() -> None:
    done = subprocess.run(["stat", "-f", "-c", "%t", BPFFS], capture_output=True, check=False)
    if done.stdout.strip() == _BPFFS_MAGIC.encode():
        return
    command = ["mount", "-t", "bpf", "bpf", str(BPFFS)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"no BPF file system at {BPFFS}", " ".join(command))


def _folder(role: str, device: str) -> Path:
    return FOLDER / f"{role}-{_index_of(device)}-{_namespace()}"


def _clock_offset_ns() -> int:
    """Return the offset from TAI, which the kernel's programs read, to UNIX time, ns.

    That is the leap seconds, 0 if none are set. Both clocks step and slew together, so it stays
    right until the next leap second.
    """
    seconds = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_TAI)
    return round(seconds) * 1_000_000_000


def settings_of(request: Request) -> Settings:
    """Check a request and make its settings. Raises `UsageError`."""
    if request.role not in ROLES:
        raise UsageError(f"no role {request.role}", f"one of {', '.join(ROLES)}")
    if request.mode not in libbpf.XDP_MODES:
        raise UsageError(f"no mode {request.mode}", f"one of {', '.join(libbpf.XDP_MODES)}")
    if not 1 <= len(request.to) <= (1 if request.role == "receive" else TARGETS_MAX):
        limit = "one plain address" if request.role == "receive" else f"1 to {TARGETS_MAX} targets"
        raise UsageError(f"{len(request.to)} addresses to go to", f"{limit}: --to IP:PORT")
    if request.match in request.to or len(set(request.to)) < len(request.to):
        raise UsageError("an address is there twice", "a copy would come back to the hook")
    if len(request.key) not in (0, KEY_BYTES):
        raise UsageError(f"a key of {len(request.key)} bytes", f"{KEY_BYTES} bytes")
    if request.slots & (request.slots - 1) or not 1 <= request.slots <= SLOTS_MAX:
        raise UsageError(f"{request.slots} slots", f"a power of two up to {SLOTS_MAX}")
    if request.role != "receive" and request.match[0] == ANY[0]:
        raise UsageError("datagrams to any address cannot be copied", "--match IP:PORT")
    return Settings(
        match=request.match,
        tree=request.tree,
        device=_index_of(request.device),
        plain=request.to[0] if request.role == "receive" else request.match,
        targets=len(request.to) if request.role != "receive" else 0,
        payload_max=min(PAYLOAD_MAX, _mtu_of(request.device) - OUTER_BYTES - HEADER_BYTES),
        epoch=time.time_ns(),
        hold_ns=request.hold_ns,
        clock_offset_ns=_clock_offset_ns(),
        key=request.key,
        slots=request.slots if request.role != "send" else 1,
    )


def load(role: str, settings: Settings, to: Sequence[Address], object_path: Path) -> libbpf.Loaded:
    """Load a role's program and write its maps. Raises `HostFault`."""
    try:
        loaded = libbpf.Loaded(str(object_path), ROLES[role].program, {"slots": settings.slots})
    except OSError as error:
        raise HostFault(
            f"the kernel refuses the program: {reason_of(error)}", "Linux 6.6 or later is needed"
        ) from None
    if role != "receive":
        for at, address in enumerate(to):
            loaded.map("targets")[at] = pack_target(address)
    loaded.map("settings")[0] = settings.pack()
    return loaded


def attach(request: Request, object_path: Path | None = None) -> Path:
    """Attach a hook, pin it, and return its folder. Raises `UsageError`, `HostFault`."""
    require_privilege()
    settings = settings_of(request)
    _mount_bpffs()
    if request.role != "receive":
        _let_loopback_forward()
    folder = _folder(request.role, request.device)
    loaded = load(request.role, settings, request.to, object_path or object_file())
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise UsageError(
                f"{request.device} has a hook to {request.role} already",
                f"feedhandler overlay hooks detach {request.device}",
            ) from None
        with _undone(folder):
            _attach(request, settings, loaded, folder)
    finally:
        loaded.close()
    if request.role != "receive":
        ask_neighbours(request.to)
    return folder


def _let_loopback_forward() -> None:
    """Allow loopback to forward, because the kernel's programs look routes up as if from it.

    No packet from outside comes from loopback. Raises `UsageError`.
    """
    try:
        _LOOPBACK_FORWARDS.write_text("1")
    except OSError as error:
        raise UsageError(
            f"{_LOOPBACK_FORWARDS} cannot be set: {reason_of(error)}",
            "sysctl net.ipv4.conf.lo.forwarding=1",
        ) from None


@contextlib.contextmanager
def _undone(folder: Path) -> Iterator[None]:
    """Leave no pins behind where attaching fails."""
    try:
        yield
    except BaseException:
        _remove(folder)
        raise


def _attach(request: Request, settings: Settings, loaded: libbpf.Loaded, folder: Path) -> None:
    role = ROLES[request.role]
    flags = libbpf.XDP_MODES[request.mode] if role.kind == libbpf.XDP else 0
    try:
        for name in _MAPS:
            libbpf.pin(loaded.map(name).descriptor, str(folder / name))
        descriptor = libbpf.link(loaded.program, settings.device, role.kind, flags)
    except OSError as error:
        native = " or --mode generic" if role.kind == libbpf.XDP else ""
        raise HostFault(
            f"{request.device} takes no hook to {request.role}: {reason_of(error)}",
            f"Linux 6.6 or later{native}",
        ) from None
    try:
        libbpf.pin(descriptor, str(folder / "link"))
    finally:
        os.close(descriptor)


def ask_neighbours(targets: Sequence[Address]) -> None:
    """Make the kernel resolve link addresses, so that the first message finds them known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for host, _ in targets:
            # The counter `no_neighbour` shows unreachable ones.
            with contextlib.suppress(OSError):
                asking.sendto(b"", (host, _DISCARD_PORT))


def _remove(folder: Path) -> None:
    """Detach and unpin everything.

    The link goes first, so that the program never runs without its maps' names. After unpinning
    alone the kernel would detach it some time later.
    """
    if (folder / "link").exists():
        libbpf.detach(str(folder / "link"))
    for name in ("link", *_MAPS):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def detach(device: str, role: str | None = None) -> list[str]:
    """Detach a device's hooks, or one; return their roles.

    `device` may also be the name of a folder that a removed device left behind. Raises
    `UsageError`.
    """
    require_privilege()
    if _NAME.fullmatch(device) and (FOLDER / device).is_dir():
        found = [FOLDER / device]
    else:
        ending = f"-{_index_of(device)}-{_namespace()}"
        found = [each for each in _folders() if each.name.endswith(ending)]
    found = [each for each in found if role in (None, each.name.partition("-")[0])]
    if not found:
        raise UsageError(f"{device} has no hook", "feedhandler overlay hooks show")
    for each in found:
        _remove(each)
    return [each.name.partition("-")[0] for each in found]


def _folders() -> list[Path]:
    return sorted(each for each in FOLDER.glob("*") if _NAME.fullmatch(each.name))


@contextlib.contextmanager
def opened(folder: Path, name: str) -> Iterator[libbpf.Map]:
    """Open a pinned map of a hook while the context lasts."""
    descriptor = libbpf.pinned(str(folder / name))
    try:
        yield libbpf.Map(descriptor, _VALUE_BYTES[name])
    finally:
        os.close(descriptor)


def change(folder: Path, changed: Callable[[Settings], Settings]) -> None:
    """Change a running hook's settings."""
    with opened(folder, "settings") as settings:
        settings[0] = changed(Settings.unpack(settings[0])).pack()


def set_hold(folder: Path, hold_ns: int) -> None:
    """Set the hold: later messages carry the deadline sent + `hold_ns`; 0 for none."""
    change(folder, lambda settings: replace(settings, hold_ns=hold_ns))


def folder_of(device: str, role: str) -> Path:
    """Return the folder of a device's hook. Raises `UsageError` where it has none."""
    folder = _folder(role, device)
    if not folder.is_dir():
        raise UsageError(f"{device} has no hook to {role}", "feedhandler overlay hooks attach")
    return folder


def read(folder: Path) -> Hook:
    """Read a hook's settings, targets and counters."""
    match = _NAME.fullmatch(folder.name)
    assert match is not None, folder
    with opened(folder, "settings") as values:
        settings = Settings.unpack(values[0])
    with opened(folder, "targets") as values:
        to = tuple(unpack_target(values[at]) for at in range(settings.targets))
    with opened(folder, "counters") as values:
        counters = dict(zip(COUNTERS, values.sums(len(COUNTERS)), strict=True))
    device = ""
    if int(match[3]) == _namespace():
        with contextlib.suppress(OSError):
            device = socket.if_indextoname(int(match[2]))
    return Hook(match[1], device, folder, settings, to or (settings.plain,), counters)


def show() -> list[Hook]:
    """Read every hook that is pinned here."""
    require_privilege()
    return [read(folder) for folder in _folders()]
