"""The command line of `capture` and `replay-control`; `app` says how commands work."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from feedhandler.cli.options import Json, Overwrite, Work
from feedhandler.terminal import arguments

Interface = Annotated[str, typer.Option(help="Where to listen: a name or an address.")]
Out = Annotated[
    Path,
    typer.Option(
        help="The file: .pcap or .pcapng, as it is or with .gz or .zst behind.", metavar="FILE"
    ),
]
Groups = Annotated[
    list[arguments.CaptureLine] | None,
    typer.Option(
        parser=arguments.capture_line, metavar="GROUP:PORT", help="A group; several times."
    ),
]
Lines = Annotated[
    list[arguments.CaptureLine] | None,
    typer.Option(
        parser=arguments.capture_line,
        metavar="NAME=GROUP:PORT@INTERFACE",
        help="A group with a name, and an interface of its own; several times.",
    ),
]
Source = Annotated[str | None, typer.Option(help="Only from this sender: a source-specific join.")]


class ReplayVerb(StrEnum):
    """Commands to a running replay."""

    status = "status"
    pause = "pause"
    resume = "resume"
    seek = "seek"
    stop = "stop"


def _time(help_text: str) -> Any:
    return typer.Option(parser=arguments.span_ns, metavar="TIME", help=help_text)


def _size(help_text: str, default: str) -> Any:
    return typer.Option(
        parser=arguments.size_bytes, metavar="SIZE", help=help_text, show_default=default
    )


def capture(
    out: Out,
    group: Groups = None,
    line: Lines = None,
    interface: Interface = "127.0.0.1",
    source: Source = None,
    duration: Annotated[int, _time("End after 90s, 15min, 1h; 0: Ctrl-C ends it.")] = 0,
    count: Annotated[int, typer.Option(help="End after so many packets; 0: never.", min=0)] = 0,
    rotate_size: Annotated[int, _size("Another file at this size: 100mb; 0: never.", "0")] = 0,
    rotate_every: Annotated[int, _time("Another file after so long: 15min; 0: never.")] = 0,
    rotate_keep: Annotated[
        int, typer.Option(help="Keep the newest so many files; 0: all.", min=0)
    ] = 0,
    buffer: Annotated[int, _size("Each socket's receive buffer, in bytes.", "16mib")] = 16 << 20,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> Work:
    """Record multicast groups to a file, and say what was lost.

    Every datagram with its kernel receive stamp in nanoseconds. Beside the file, FILE.json is the
    account: what came on each line, what the kernel dropped, the buffers asked for and got. Exit
    code 1 says that something was lost.

    \b
    Examples:
      feedhandler capture --group 239.1.1.1:5001 --interface eth1 --out day.pcap
      feedhandler capture --line A=239.1.1.1:5001@eth1 --line B=239.1.2.1:5002@eth2 --out ab.pcapng
      feedhandler capture --group 239.1.1.1:5001 --out day.pcap.zst --rotate-every 15min
    """
    from feedhandler.ops import capture as ops
    from feedhandler.recording.rotation import Rotation

    lines = (*(group or ()), *(line or ()))
    if not lines:
        raise typer.BadParameter("nothing to capture: give --group or --line")
    options = ops.Options(
        lines=lines,
        out=out,
        interface=interface,
        source=source,
        duration_ns=duration,
        count=count,
        rotation=Rotation(rotate_size, rotate_every, rotate_keep),
        overwrite=overwrite,
        receive_buffer_bytes=buffer,
        as_json=as_json,
    )
    return lambda: ops.run(options)


def replay_control(
    endpoint: Annotated[
        str, typer.Argument(metavar="CONTROL-ENDPOINT", help="The replay's --control.")
    ],
    verb: Annotated[
        ReplayVerb,
        typer.Argument(metavar="VERB", help="status, pause, resume, seek or stop."),
    ],
    to: Annotated[
        str | None,
        typer.Argument(
            metavar="[T]", help="For seek: 09:30, +90s or 2026-11-20T09:30:00Z, as recorded."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the answer.", min=0.01, max=3600)
    ] = 60.0,
    as_json: Json = False,
) -> Work:
    """Pause, resume, move or stop a running replay, and print its state then.

    The replay has to be started with --control. Exit code 3 says that none answers there, or that
    it refused, as a seek to beyond the end.

    \b
    Examples:
      feedhandler replay-control ipc:///tmp/replay pause
      feedhandler replay-control ipc:///tmp/replay seek 09:30
      feedhandler replay-control tcp://127.0.0.1:5573 status --json
    """
    from feedhandler.ops.replay import control as ops

    options = ops.Options(
        endpoint=endpoint, verb=verb.value, to=to, timeout_s=timeout, as_json=as_json
    )
    return lambda: ops.run(options)
