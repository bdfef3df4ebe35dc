"""`feedhandler keyed` on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedhandler.cli.options import Json, Work, with_login
from feedhandler.keyed.settings import Format, Full, Poison, Rule, Wrong

if TYPE_CHECKING:
    from feedhandler.amqp.identity import Login

Url = Annotated[str, typer.Argument(metavar="URL", help="The node: amqp://host:5672.")]
Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]

keyed = typer.Typer(
    help="Queues that are serial per key, parallel across keys: create, put, work, look.",
)


@keyed.command("create")
@with_login
def create(
    login: "Login",
    url: Url,
    name: Name,
    field: Annotated[
        list[str],
        typer.Option(
            help="Where the key stands: account.id, 55, properties.group-id (repeatable)."
        ),
    ],
    format: Annotated[Format, typer.Option(help="Format of messages.")] = Format.JSON,
    feed: Annotated[str, typer.Option(help="With --format feed: a built-in feed.")] = "",
    rule: Annotated[
        Rule, typer.Option(help="Keys of fields: all as one, two in any order, or each by itself.")
    ] = Rule.COMPOSITE,
    run: Annotated[int, typer.Option(help="Messages of one key at a consumer.", min=1)] = 1,
    poison: Annotated[
        Poison, typer.Option(help="Messages that failed too often: to the dead queue, or parked.")
    ] = Poison.DEAD,
    wrong: Annotated[
        Wrong, typer.Option(help="Messages without a key: rejected, or to the dead queue.")
    ] = Wrong.REJECT,
    full: Annotated[
        Full, typer.Option(help="Where there is no room: producers wait, or are rejected.")
    ] = Full.WAIT,
    timeout_ms: Annotated[
        int, typer.Option(help="Longest time a consumer may hold a message; 0: any.", min=0)
    ] = 0,
    dead: Annotated[str, typer.Option(help="The queue that dead messages go to.")] = "",
) -> Work:
    """Create a queue on a running node, which has a queues_folder. One that is there already, and
    the same, is fine; a different one is exit code 2.

    \b
    Examples:
      feedhandler keyed create amqp://127.0.0.1:5672 orders --field account
      feedhandler keyed create amqp://127.0.0.1:5672 ledger --field src --field dst --rule any
    """
    from feedhandler.keyed.definition import Definition
    from feedhandler.ops import keyed as ops

    definition = Definition(
        fields=tuple(field), format=format, feed=feed, rule=rule, run=run, poison=poison,
        wrong=wrong, full=full, timeout_ms=timeout_ms,
    )  # fmt: skip
    return lambda: ops.create(url, name, definition, dead, login)


@keyed.command("put")
@with_login
def put(
    login: "Login",
    url: Url,
    name: Name,
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A message a line; - for standard input.")
    ],
    id: Annotated[
        str, typer.Option(help="The producer's id: with it and --epoch, lines count once.")
    ] = "",
    epoch: Annotated[
        int | None,
        typer.Option(
            help="Higher than any earlier epoch of this id; the time.", min=0, max=2**63 - 1
        ),
    ] = None,
) -> Work:
    """Put the lines of a file; each counts once, its line number is its sequence. With id and
    epoch it may be run again after a crash. Exit code 1 where a line was refused.

    \b
    Examples:
      feedhandler keyed put amqp://127.0.0.1:5672 orders orders.jsonl
      feedhandler keyed put amqp://127.0.0.1:5672 orders orders.jsonl --id monday --epoch 1
    """
    from feedhandler.ops import keyed as ops

    return lambda: ops.put(url, name, path, id, epoch, login)


@keyed.command("work")
@with_login
def work(
    login: "Login",
    url: Url,
    name: Name,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The command to run for each message.")
    ],
    workers: Annotated[int, typer.Option(help="Messages handled at a time.", min=1)] = 1,
    count: Annotated[int, typer.Option(help="Stop after so many; 0: never.", min=0)] = 0,
) -> Work:
    """Run a command for each message, until Ctrl-C: the message is its standard input, the
    environment has FEEDHANDLER_TOKEN, FEEDHANDLER_FENCE and FEEDHANDLER_TRIES. Exit code 0 of the
    command: done; 65: refused for good; any other: it comes again. A command that cannot be run
    takes no message.

    \b
    Example:
      feedhandler keyed work amqp://127.0.0.1:5672 orders --workers 8 -- ./book.sh
    """
    from feedhandler.ops import keyed as ops

    return lambda: ops.work(url, name, command, workers, count, login)


def _add_read_only(operation: str, text: str) -> None:
    """Add one of the read-only commands."""

    def look(
        login: "Login",
        url: Url,
        name: Name,
        as_json: Json = False,
    ) -> Work:
        from feedhandler.ops import keyed as ops

        return lambda: ops.look(operation, url, name, login, as_json)

    look.__doc__ = f"""{text}

    \b
    Example:
      feedhandler keyed {operation} amqp://127.0.0.1:5672 orders
    """
    keyed.command(operation)(with_login(look))


_add_read_only("stat", "Figures of a queue.")
_add_read_only("list", "Undelivered messages, oldest first: key, consumer, failures.")
_add_read_only("keys", "Keys with the most messages: consumer of the first, messages behind.")
