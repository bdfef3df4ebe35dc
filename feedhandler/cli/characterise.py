"""The command line of `characterise`; `app` says how commands work."""

from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import Json, RecordSchema, Work, feed_names, refuse_beside
from feedhandler.terminal import arguments


def _feed(text: str) -> str:
    """Make a description's path absolute: workers run in another folder."""
    return str(Path(text).absolute()) if text.endswith(".toml") else text


Captures = Annotated[
    list[str],
    typer.Argument(
        metavar="CAPTURE...", help="Captures, folders of them, patterns, s3a://bucket/key."
    ),
]
LakeOrCaptures = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CAPTURE]...", help="Captures, folders of them, patterns, s3a://bucket/key."
    ),
]
Lake = Annotated[
    Path | None, typer.Option(help="Instead of captures: all of the feed's in this lake.")
]
FeedName = Annotated[
    str,
    typer.Option(
        "--feed",
        parser=_feed,
        metavar="TEXT",
        help="A built-in feed, or a description's path.",
        autocompletion=feed_names,
    ),
]
Out = Annotated[Path, typer.Option(help="The folder that the report is written to.")]
Zone = Annotated[
    str | None, typer.Option(help="The zone of times of day; by default the exchange's.")
]
Master = Annotated[
    str,
    typer.Option(
        help="Spark's master; `none`: this process alone, without Spark; `auto`: Spark on this "
        "machine where that is there and gains more than its start costs."
    ),
]
From = Annotated[str | None, typer.Option("--from", help="From this full time on.")]
Until = Annotated[str | None, typer.Option(help="Before this full time.")]
Services = Annotated[
    list[int] | None, typer.Option("--service", help="Only this service; several.")
]
Lines = Annotated[
    list[str] | None, typer.Option("--line", metavar="GROUP:PORT", help="This line only; several.")
]
Channels = Annotated[
    Path | None,
    typer.Option(
        "--channels",
        metavar="FILE",
        help="The lines of each channel: TOML, as the gateway's configuration; else guessed.",
    ),
]
PacketsOnly = Annotated[
    bool, typer.Option("--packets-only", help="Leave messages alone: faster, fewer tables.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on while recordings are written; Ctrl-C ends it.")
]
Every = Annotated[
    int,
    typer.Option(
        parser=arguments.span_ns,
        metavar="TIME",
        help="With --follow: interval between two reads.",
        show_default="10s",
    ),
]
Once = Annotated[
    bool,
    typer.Option("--once", help="As --follow, but end once all is read: recording is over."),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Interarrival by Spark's window function: slow, the same.")
]
Arbitrated = Annotated[
    bool,
    typer.Option(
        "--arbitrated", help="Of each packet the first copy, in the order of numbers, not lines."
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option("--write-profile", help="Write what `generate --profile` needs, to this file."),
]


def characterise(
    context: typer.Context,
    feed: FeedName,
    out: Out,
    captures: LakeOrCaptures = None,
    lake: Lake = None,
    zone: Zone = None,
    master: Master = "auto",
    from_: From = None,
    until: Until = None,
    service: Services = None,
    line: Lines = None,
    channels: Channels = None,
    packets_only: PacketsOnly = False,
    exact: Exact = False,
    arbitrated: Arbitrated = False,
    write_profile: Profile = None,
    follow: Follow = False,
    every: Every = 10_000_000_000,
    once: Once = False,
    as_json: Json = False,
) -> Work:
    """Characterise a session: tables, figures and one page.

    Packets, bytes and messages by service, minute and peak second, how soon the same symbol comes
    back, what lines lack and how far apart they are. Large plain captures are cut and read side by
    side; an odd file is named, and the rest counts. Spark needs Java.

    Where packets name no service (NYSE's), the groups and ports that carry the same packets under
    the same numbers are taken for the lines of one channel, with a note; --channels names them.

    \b
    Examples:
      feedhandler characterise day.pcap --feed euronext-utp-md --out day --zone Europe/Lisbon
      feedhandler characterise 'captures/*.pcap.gz' --feed iex-deep --out day --master none
      feedhandler characterise recordings --feed iex-deep --out today --follow
    """
    from feedhandler.ops import characterise as ops

    if not (follow or once):
        refuse_beside(context, "without --follow", "every", hint="add --follow, or leave it out")
    options = ops.Options(
        captures=tuple(captures or ()),
        lake=lake,
        feed=feed,
        out=out,
        zone=zone,
        master=master,
        window=(from_, until),
        services=tuple(service or ()),
        lines=tuple(line or ()),
        packets_only=packets_only,
        exact=exact,
        arbitrated=arbitrated,
        profile=write_profile,
        follow=follow,
        every_ns=every,
        once=once,
        channels=channels,
        as_json=as_json,
    )
    if follow or once:
        from feedhandler.ops import following

        return lambda: following.follow(options)
    return lambda: ops.run(options)


def pipeline(
    captures: Captures,
    feed: FeedName,
    lake: Annotated[Path, typer.Option(help="The lake's folder; made where it is missing.")],
    records: Annotated[
        list[RecordSchema] | None,
        typer.Option(help="Normalised records that each capture is to have too; may be repeated."),
    ] = None,
    master: Master = "auto",
    as_json: Json = False,
) -> Work:
    """Decode captures into a lake of Parquet files, each capture once.

    A table for each message type, by capture, day and service; a capture's folder appears when all
    of it is there. `characterise --lake` makes its tables from the lake. Normalised records are the
    same for all feeds that have books.

    \b
    Examples:
      feedhandler pipeline 'captures/*.pcap.gz' --feed iex-deep --lake lake
      feedhandler pipeline day.pcap.zst --feed memx-memoir --lake lake --records mbo --records bbo
    """
    from feedhandler.ops import pipeline as ops

    options = ops.Options(
        captures=tuple(captures),
        feed=feed,
        lake=lake,
        records=tuple(each.value for each in records or ()),
        master=master,
        as_json=as_json,
    )
    return lambda: ops.run(options)
