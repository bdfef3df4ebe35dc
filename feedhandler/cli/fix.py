"""`feedhandler fix` on the command line."""

from typing import Annotated

import typer

from feedhandler.cli.options import Json, Work

fix = typer.Typer(help="FIX messages: look at them, say what is wrong.")


@fix.command()
def check(
    source: Annotated[str, typer.Argument(metavar="FILE|-", help="Messages; -: standard input.")],
    dictionary: Annotated[
        str, typer.Option(help="fix50sp2, fix44, or a file: TOML, or QuickFIX XML.")
    ] = "fix50sp2",
    transport: Annotated[
        str | None, typer.Option(help="The dictionary of header and session: FIXT11.xml.")
    ] = None,
    separator: Annotated[str, typer.Option(help="What stands for SOH, as | in logs.")] = "",
    bad: Annotated[bool, typer.Option("--bad", help="Only messages that are wrong.")] = False,
    as_json: Json = False,
) -> Work:
    """Print messages as readable fields; of a wrong one where and why.

    \b
    Examples:
      feedhandler fix check session.log --separator '|'
      feedhandler fix check - --dictionary FIX50SP2.xml --transport FIXT11.xml --bad < messages
    """
    from feedhandler.ops import fix as ops

    return lambda: ops.check(source, dictionary, transport, separator, bad, as_json)


@fix.callback()
def group() -> None:
    """Inspect and check FIX messages."""
