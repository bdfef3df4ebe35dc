"""`feedhandler feeds` on the command line; `app` says how commands work."""

from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from feedhandler.cli.options import Json, Work, feed_names

#: The command whose name may be left out.
_SHOW = "show"


class FeedGroup(TyperGroup):
    """Commands on feeds: where the first word is none of them, it is the name of a feed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind `feeds`; a shell that completes them leaves them as they are."""
        return super().parse_args(ctx, args if ctx.resilient_parsing else self._spelt(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command's name, the command, and the words that are its own."""
        return super().resolve_command(ctx, self._spelt(ctx, args))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete commands, and the names of feeds."""
        name = next(param for param in self.commands[_SHOW].params if param.name == "name")
        return [*super().shell_complete(ctx, incomplete), *name.shell_complete(ctx, incomplete)]

    def _spelt(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the words with `show` in front, where it was left out."""
        first = args[0] if args else ""
        if first in self.commands or first in ctx.help_option_names:
            return args
        if not first.endswith(".toml") and first not in feed_names(first):
            near = get_close_matches(first, self.commands, n=1, cutoff=0.7)
            if near:
                ctx.fail(f"no command or feed {first!r}: did you mean {near[0]}?")
        return [_SHOW, *args]


feeds = typer.Typer(
    cls=FeedGroup, subcommand_metavar="[NAME] | COMMAND [ARGS]...", rich_markup_mode=None
)


class NewFraming(StrEnum):
    """Framings of packets that a new description may begin with."""

    moldudp64 = "moldudp64"
    xdp = "xdp"
    sbe = "sbe"
    iex_tp = "iex-tp"
    pitch = "pitch"


class SchemaFraming(StrEnum):
    """Framings of SBE messages."""

    cme = "cme"
    b3 = "b3"
    memx = "memx"
    moldudp64 = "moldudp64"


Out = Annotated[
    str,
    typer.Option(
        metavar="FILE|-",
        help="The description's file, which must not be there yet; -: standard output. "
        "Default: the feed's name, in this folder.",
    ),
]


@feeds.callback()
def group() -> None:
    """List feeds, show one; check, begin or import a description.

    Without a command, `show` is meant: `feedhandler feeds` lists the built-in feeds, `feedhandler
    feeds NAME` shows one.

    \b
    Examples:
      feedhandler feeds
      feedhandler feeds iex-deep
      feedhandler feeds new venue --framing moldudp64
      feedhandler feeds check venue.toml day.pcap
    """


@feeds.command(_SHOW)
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[FEED]",
            help="A feed, or a description's path: its messages and fields.",
            autocompletion=feed_names,
        ),
    ] = None,
    as_json: Json = False,
) -> Work:
    """List feeds, or show one; `show` may be left out.

    \b
    Examples:
      feedhandler feeds
      feedhandler feeds iex-deep
    """
    from feedhandler.ops.feeds import listing as ops

    return lambda: ops.run(name, as_json)


@feeds.command("check")
def check(
    description: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A description's path, or a built-in feed.",
            autocompletion=feed_names,
        ),
    ],
    capture: Annotated[
        Path, typer.Argument(metavar="CAPTURE", help="pcap or pcapng, plain, gzip or zstd.")
    ],
    limit: Annotated[int, typer.Option(help="Stop after so many packets; 0: all.", min=0)] = 0,
    as_json: Json = False,
) -> Work:
    """Check a description against a capture.

    Of each kind of misfit the first is shown: packet, field, byte, value and expectation, with a
    dump of the bytes; then the types of messages that came, and those that did not. Exit code 1
    where something does not fit. Last comes what fits and is hardly meant, a line each: numbers
    that do not follow one another, times far from the capture's, elements cut short.

    \b
    Examples:
      feedhandler feeds check venue.toml day.pcap --limit 1000
      feedhandler feeds check venue.toml day.pcap --json | jq .misfits
    """
    from feedhandler.ops.feeds import check as ops

    return lambda: ops.run(description, capture, limit, as_json)


@feeds.command("new")
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The feed's name: lower-case words with hyphens.")
    ],
    framing: Annotated[
        NewFraming, typer.Option(help="How its packets and messages begin; sbe: as CME does.")
    ],
    out: Out = "",
) -> Work:
    """Begin a description, by its framing.

    It loads as it is: headers of packets and messages, one example message, and what comes next.

    \b
    Examples:
      feedhandler feeds new venue --framing moldudp64
      feedhandler feeds new venue --framing xdp --out feeds/venue.toml
    """
    from feedhandler.ops.feeds import beginning as ops

    return lambda: ops.run(name, framing.value, out)


@feeds.command("import")
def import_schema(
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA.xml", help="An SBE message schema.")],
    framing: Annotated[
        SchemaFraming,
        typer.Option(help="What stands in front of SBE messages: no schema says it."),
    ] = SchemaFraming.cme,
    out: Out = "",
) -> Work:
    """Make a description of an SBE schema (FIX SBE 1.0).

    What a description cannot say is listed on stderr with its line in the schema; exit code 1 then.

    \b
    Examples:
      feedhandler feeds import templates.xml --out venue.toml
      feedhandler feeds import schema.xml --framing b3
    """
    from feedhandler.ops.feeds import sbe_import as ops

    return lambda: ops.run(schema, framing.value, out)
