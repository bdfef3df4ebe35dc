"""`feedhandler queue` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import Work

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="The queue's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Limit = Annotated[int, typer.Option(help="So many items at most.", min=1)]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Items to cancel.")]
All = Annotated[bool, typer.Option("--all", help="Cancel everything that is pending.")]
Out = Annotated[Path, typer.Option(help="A file; items are added to it as JSON lines.")]
Folders = Annotated[
    list[Path] | None, typer.Option("--path", help="Another folder that has blocks (repeatable).")
]

queue = typer.Typer(help="Look into, check, empty and mend persistent queues.")


@queue.command("stat")
def stat(path: Folder, json: AsJson = False) -> Work:
    """Show what a queue holds; it may be open.

    \b
    Example:
      feedhandler queue stat /var/lib/orders
    """
    from feedhandler.ops import queue as ops

    return lambda: ops.stat(path, json)


@queue.command("list")
def list_items(path: Folder, limit: Limit = 1000, json: AsJson = False) -> Work:
    """List the pending items, oldest first; the queue may be open.

    \b
    Examples:
      feedhandler queue list /var/lib/orders --limit 20
      feedhandler queue list /var/lib/orders --json
    """
    from feedhandler.ops import queue as ops

    return lambda: ops.list_items(path, limit, json)


@queue.command("verify")
def verify(path: Folder, json: AsJson = False) -> Work:
    """Check every byte that is in use; the queue may be open. Exit code 1 where one is wrong.

    \b
    Example:
      feedhandler queue verify /var/lib/orders
    """
    from feedhandler.ops import queue as ops

    return lambda: ops.verify(path, json)


@queue.command("cancel")
def cancel(path: Folder, ids: Ids = None, everything: All = False) -> Work:
    """Cancel items of a queue that no process has open. Exit code 1 where one was not pending.

    \b
    Examples:
      feedhandler queue cancel /var/lib/orders 4711 4712
      feedhandler queue cancel /var/lib/orders --all
    """
    from feedhandler.ops import queue as ops

    return lambda: ops.cancel(path, ids or [], everything)


@queue.command("drain")
def drain(path: Folder, out: Out) -> Work:
    """Move every pending item into a file; each counts as delivered once the file has it.

    \b
    Example:
      feedhandler queue drain /var/lib/orders --out orders.jsonl
    """
    from feedhandler.ops import queue as ops

    return lambda: ops.drain(path, out)


@queue.command("repair")
def repair(path: Folder, folders: Folders = None) -> Work:
    """Mend a queue that does not open: control file, headers, tails; then recover it.

    \b
    Example:
      feedhandler queue repair /var/lib/orders --path /disk2/orders
    """
    from feedhandler.ops import queue as ops

    return lambda: ops.repair(path, folders or [])
