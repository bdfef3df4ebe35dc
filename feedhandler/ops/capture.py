"""`feedhandler capture`: multicast lines into a capture file, with an account of what was lost."""

import queue
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from feedhandler.codecs.errors import UsageError, reason_of
from feedhandler.ingest.lines import RECEIVE_BUFFER_BYTES, Line, source_addresses
from feedhandler.recording.capture import (
    STOP_SECONDS,
    Account,
    Capturing,
    Settings,
    names,
)
from feedhandler.recording.rotation import ROTATE_BYTES_MIN, Rotation
from feedhandler.replacing import replacing
from feedhandler.terminal.arguments import CaptureLine
from feedhandler.terminal.console import ExitCode, HostFault, complain, print_json, signal_handlers
from feedhandler.terminal.live import duration_text, live_line, size_text
from feedhandler.terminal.outputs import refuse_existing, refuse_no_file

#: Interval of the progress line.
PROGRESS_S = 0.25
#: Suffix of the account's file, behind the capture's name.
ACCOUNT_SUFFIX = ".json"
#: A queue that is not empty once a signal has come.
Stopping = queue.SimpleQueue[None]


class Options(Struct, frozen=True, kw_only=True):
    """The lines to capture, the file to write, and the bounds that end it."""

    lines: tuple[CaptureLine, ...]
    out: Path
    interface: str = "127.0.0.1"
    source: str | None = None
    duration_ns: int = 0
    count: int = 0
    rotation: Rotation = Rotation()
    overwrite: bool = False
    receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES
    as_json: bool = False


def run(options: Options) -> int:
    """Capture until a bound or a signal ends it; return `FOUND` where packets were lost.

    Prints the account and writes it beside the files. Raises `UsageError`, and `HostFault` where
    the disk fails.
    """
    settings = _settings(options)
    refuse_existing(options.overwrite, _account_path(options.out))
    capturing = Capturing(settings)
    # Not an event: `wait` may hold its lock when the signal comes, and `set` would block.
    stopping: Stopping = queue.SimpleQueue()

    def on_signal(_number: int, _frame: Any) -> None:
        stopping.put(None)

    with signal_handlers(on_signal):
        capturing.start()
        print(f"capture: listening to {names(settings.lines)}", file=sys.stderr, flush=True)
        _warn_of_small_buffers(capturing.account())
        _watch(capturing, stopping, options)
        if not capturing.wait(STOP_SECONDS):
            raise HostFault(f"{options.out}: the disk does not answer", "is it still there?")
    account = capturing.close()
    _save(account, options.out)
    _print_account(account, options.as_json)
    if account.reason == "fault":
        hint = f"the files hold {account.written:,} packets and are whole"
        raise HostFault(account.fault, hint)
    return ExitCode.FOUND if account.lost else ExitCode.OK


def _settings(options: Options) -> Settings:
    refuse_no_file(options.out)
    if 0 < options.rotation.size_bytes < ROTATE_BYTES_MIN:
        raise UsageError(
            f"files of {options.rotation.size_bytes:,} bytes are too small",
            f"--rotate-size takes {ROTATE_BYTES_MIN:,} bytes or more",
        )
    if options.rotation.keep and not options.rotation:
        raise UsageError("there is one file only", "give --rotate-size or --rotate-every")
    lines = tuple(
        Line(
            each.name or f"{each.address.group}:{each.address.port}",
            each.address.group,
            each.address.port,
            each.interface or options.interface,
            options.source,
        )
        for each in options.lines
    )
    twice = {line.name for line in lines if sum(line.name == each.name for each in lines) > 1}
    if twice or len(set(lines)) < len(lines):
        named = ", ".join(sorted(twice)) or "a line"
        raise UsageError(f"{named} is given twice", "give each line once, with a name of its own")
    source_addresses(lines[0])
    return Settings(
        lines=lines,
        path=options.out,
        rotation=options.rotation,
        packets_max=options.count,
        duration_ns=options.duration_ns,
        overwrite=options.overwrite,
        receive_buffer_bytes=options.receive_buffer_bytes,
    )


def _account_path(out: Path) -> Path:
    return out.parent / f"{out.name}{ACCOUNT_SUFFIX}"


def _is_stopped(stopping: Stopping) -> bool:
    """Wait for one interval of the progress line; return whether a signal has come."""
    try:
        stopping.get(timeout=PROGRESS_S)
    except queue.Empty:
        return False
    return True


def _watch(capturing: Capturing, stopping: Stopping, options: Options) -> None:
    """Show the progress until the capture has ended or a signal asks it to."""
    last = capturing.account()
    with live_line(f"capturing {names(last.lines)}", options.as_json) as show:
        while not capturing.ended.is_set() and not _is_stopped(stopping):
            account = capturing.account()
            spent_ns = account.ended_ns - last.ended_ns
            rate = (account.received - last.received) * 1e9 / spent_ns if spent_ns > 0 else 0.0
            show(_progress_text(account, rate), _share_done(account, options))
            last = account
    capturing.stop()


def _progress_text(account: Account, rate: float) -> str:
    spent = duration_text(account.ended_ns - account.began_ns)
    return (
        f"{spent}  {account.received:,} packets  {rate:,.0f}/s  "
        f"{account.kernel_drops + account.ring_drops:,} dropped  {size_text(account.size_bytes)}"
    )


def _share_done(account: Account, options: Options) -> float | None:
    """Return how much of the nearer bound is used; None where only a signal ends the capture."""
    shares = []
    if options.count:
        shares.append(account.written / options.count)
    if options.duration_ns:
        shares.append((account.ended_ns - account.began_ns) / options.duration_ns)
    return min(1.0, max(shares)) if shares else None


def _warn_of_small_buffers(account: Account) -> None:
    small = [
        (line.receive_buffer_bytes, line.receive_buffer_asked_bytes)
        for line in account.lines
        if line.receive_buffer_bytes < line.receive_buffer_asked_bytes
    ]
    if small:
        got, asked = small[0]
        complain(
            f"asked for receive buffers of {asked:,} bytes and got {got:,}",
            f"sysctl -w net.core.rmem_max={asked}, or run with CAP_NET_ADMIN",
        )


def _save(account: Account, out: Path) -> None:
    """Write the account beside the files; where that fails, say so and go on: it is printed too."""
    data = msgspec.json.format(msgspec.json.encode(account), indent=2) + b"\n"
    try:
        with replacing(_account_path(out)) as beside:
            beside.write_bytes(data)
    except OSError as error:
        complain(f"cannot write {_account_path(out)}: {reason_of(error)}")


def _files_text(account: Account) -> str:
    """Name the one file that was written, or count the files, those deleted by rotation apart."""
    kept = [file.name for file in account.files if not file.deleted]
    deleted = len(account.files) - len(kept)
    text = f"{len(kept):,} files"
    if len(kept) == 1:
        text = str(Path(account.path).parent / kept[0])
    return f"{text} ({deleted:,} older ones deleted)" if deleted else text


def _print_account(account: Account, as_json: bool) -> None:
    if as_json:
        print_json({**msgspec.to_builtins(account), "lost": account.lost})
        return
    seconds = (account.ended_ns - account.began_ns) / 1e9
    print(
        f"capture: {account.written:,} packets in {seconds:,.2f} s "
        f"({account.written / seconds:,.0f}/s) to {_files_text(account)}, "
        f"{size_text(account.size_bytes)}"
    )
    for line in account.lines:
        cut = f", {line.cut:,} cut" if line.cut else ""
        print(
            f"  {line.name}: {line.packets:,} received, {line.kernel_drops:,} dropped by the kernel"
            f"{cut}; receive buffer {line.receive_buffer_bytes:,} of "
            f"{line.receive_buffer_asked_bytes:,} bytes"
        )
    if account.ring_drops or account.unwritten:
        print(f"  not written: {account.ring_drops + account.unwritten:,} (the disk was too slow)")
    if account.left and account.reason == "count":
        print(f"  {account.left:,} more came while it ended")
    print(f"  lost: {account.lost:,}" if account.lost else "  nothing lost")
