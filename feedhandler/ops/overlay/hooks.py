"""`feedhandler overlay hooks`: attach, detach and show programs of the kernel."""

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feedhandler.addresses import split_address
from feedhandler.codecs.errors import UsageError, reason_of
from feedhandler.overlay.hooks import attaching
from feedhandler.overlay.hooks.abi import KEY_BYTES, Address, slots_for
from feedhandler.overlay.hooks.attaching import Hook, Request
from feedhandler.terminal.checks import Check
from feedhandler.terminal.console import ExitCode, print_json

#: The remedy for each counter above 0.
REMEDIES = {
    "violations": "ids came in another order than slots allow: more --messages-per-second",
    "forged": "another key, or a sender that is not the tree's",
    "malformed": "another tree, or no overlay datagram at all",
    "too_long": "left unreplicated: shorter messages, or a larger MTU",
    "fragments": "left unreplicated: messages of one datagram each",
    "segmented": "left unreplicated: have the program not use UDP_SEGMENT",
    "options": "left unreplicated: IP options",
    "no_neighbour": "not sent: no route to a target, or no answer there",
    "failed": "the kernel had no memory for a copy",
}


@dataclass(frozen=True)
class Options:
    """The options of the command line, not yet parsed."""

    role: str
    device: str
    match: str
    to: Sequence[str]
    tree: int
    key_file: Path | None = None
    hold_us: int = 0
    messages_per_second: int = 1 << 16
    mode: str = "native"


def address(text: str) -> Address:
    """Parse `IPv4:port`. Raises `UsageError`."""
    try:
        host, port = split_address(text)
    except ValueError as error:
        raise UsageError(str(error), "such as 10.1.0.5:6000") from None
    parts = host.split(".")
    if len(parts) != 4 or not all(
        re.fullmatch(r"\d{1,3}", part) and int(part) < 256 for part in parts
    ):
        raise UsageError(f"{host} is no IPv4 address", "such as 10.1.0.5:6000")
    if port == 0:
        raise UsageError(f"{text} has no port", "such as 10.1.0.5:6000")
    return ".".join(str(int(part)) for part in parts), port


def read_key(path: Path) -> bytes:
    """Read a key of 32 hex digits from a file that is closed to others. Raises `UsageError`."""
    try:
        text = path.read_text().strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "not text"
        raise UsageError(f"{path}: {reason}", "a file of 32 hex digits") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{path} is open to others", f"chmod 600 {path}")
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}", text):
        raise UsageError(f"{path} has no key", "32 hex digits: openssl rand -hex 16")
    return bytes.fromhex(text)


def attach(options: Options) -> int:
    """Attach a hook and print where its pins are."""
    attaching.require_privilege()
    request = Request(
        role=options.role,
        device=options.device,
        match=address(options.match),
        to=tuple(address(each) for each in options.to),
        tree=options.tree,
        key=read_key(options.key_file) if options.key_file else b"",
        hold_ns=options.hold_us * 1_000,
        slots=slots_for(options.messages_per_second),
        mode=options.mode,
    )
    print(attaching.attach(request))
    return ExitCode.OK


def detach(device: str, role: str | None) -> int:
    """Detach a device's hooks and print their names."""
    for each in attaching.detach(device, role):
        print(f"{device}: {each} detached")
    return ExitCode.OK


def hold(device: str, hold_us: int) -> int:
    """Change how long after sending messages are to be delivered."""
    attaching.require_privilege()
    attaching.set_hold(attaching.folder_of(device, "send"), hold_us * 1_000)
    return ExitCode.OK


def show(as_json: bool) -> int:
    """Show every hook with its counters; `FOUND` where one's device has gone."""
    hooks = attaching.show()
    for hook in hooks:
        if as_json:
            print_json(_row(hook))
        else:
            _print(hook)
    if not hooks and not as_json:
        print("no hooks")
    return ExitCode.OK if all(hook.device for hook in hooks) else ExitCode.FOUND


def _row(hook: Hook) -> dict[str, object]:
    settings = hook.settings
    return {
        "role": hook.role,
        "device": hook.device,
        "folder": str(hook.folder),
        "match": _shown(settings.match),
        "to": [_shown(each) for each in hook.to],
        "tree": settings.tree,
        "sealed": bool(settings.key),
        "hold_us": settings.hold_ns // 1_000,
        "payload_max": settings.payload_max,
        "slots": settings.slots,
        **hook.counters,
    }


def _print(hook: Hook) -> None:
    settings = hook.settings
    targets = ", ".join(_shown(each) for each in hook.to)
    sealed = "sealed" if settings.key else "not sealed"
    print(
        f"{hook.device or hook.folder.name}: {hook.role} {_shown(settings.match)} -> {targets},"
        f" tree {settings.tree}, {sealed}"
    )
    if not hook.device:
        print(
            "  its device has gone or is in another namespace"
            f" -> feedhandler overlay hooks detach {hook.folder.name}"
        )
    for name, number in hook.counters.items():
        if number:
            remedy = f"  -> {REMEDIES[name]}" if name in REMEDIES else ""
            print(f"  {name:<13}{number:>16,}{remedy}")


def _shown(address: Address) -> str:
    host, port = address
    return f"{'any' if host == '0.0.0.0' else host}:{port}"


def check() -> Check:
    """Check for `feedhandler doctor` whether hooks can be attached here, which nothing requires."""
    found = attaching.refusal()
    if found is None:
        return Check("overlay hooks", "ok", "can be attached")
    return Check("overlay hooks", "ok", f"{found[0]}; only `overlay hooks` needs that")
