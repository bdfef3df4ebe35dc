"""`feedhandler fixcast keys` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import Ca, Json, PasswordFile, PlainOverNetwork, Work

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of keys.")]
Channels = Annotated[list[str], typer.Argument(metavar="CHANNEL...", help="Ids of channels.")]
Hours = Annotated[float, typer.Option(help="Validity of keys; 0: until rotated.", min=0)]

keys = typer.Typer(
    help="Keys of encrypted channels: make, list, rotate, give by hand or by a server.",
)


@keys.command("new")
def new(
    folder: Folder,
    channels: Channels,
    hours: Hours = 0,
    sign: Annotated[bool, typer.Option(help="Make keys for signing, too.")] = True,
) -> Work:
    """Make a channel's first key, and its keys for signing. Files are for their owner alone.

    \b
    Example:
      feedhandler fixcast keys new keys equities-1 options-1
    """

    from feedhandler.ops.fixcast import keys as ops

    return lambda: ops.new(folder, channels, hours, sign)


@keys.command("list")
def list_keys(folder: Folder, as_json: Json = False) -> Work:
    """List keys and when they are valid. Exit code 1 where a channel has none now.

    \b
    Example:
      feedhandler fixcast keys list keys
    """

    from feedhandler.ops.fixcast import keys as ops

    return lambda: ops.list_keys(folder, as_json)


@keys.command("rotate")
def rotate(
    folder: Folder,
    channels: Annotated[
        list[str] | None, typer.Argument(metavar="[CHANNEL]...", help="Ids of channels; else all.")
    ] = None,
    in_s: Annotated[float, typer.Option(help="Time until the next key begins.", min=0)] = 60,
    overlap_s: Annotated[
        float, typer.Option(help="Time after that at which earlier keys end.", min=0)
    ] = 30,
    hours: Hours = 0,
) -> Work:
    """Make the next key of channels; those before end soon after it begins, those that are over
    are removed.

    \b
    Example:
      feedhandler fixcast keys rotate keys
    """

    from feedhandler.ops.fixcast import keys as ops

    return lambda: ops.rotate(folder, channels or (), in_s, overlap_s, hours)


@keys.command("give")
def give(
    folder: Folder,
    channels: Channels,
    to: Annotated[Path, typer.Option(help="The receiver's folder.")],
) -> Work:
    """Copy what a receiver needs: keys that are not over, and public keys.

    \b
    Example:
      feedhandler fixcast keys give keys equities-1 --to ann
    """

    from feedhandler.ops.fixcast import keys as ops

    return lambda: ops.give(folder, channels, to)


@keys.command("serve")
def serve(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Users and their channels.")],
    plain: PlainOverNetwork = False,
) -> Work:
    """Give users channels and keys by a Logon over TLS, until Ctrl-C; new keys are pushed.

    \b
    Example:
      feedhandler fixcast keys serve entitlement.toml
    """

    from feedhandler.ops.fixcast import keys as ops

    return lambda: ops.serve(config, plain)


@keys.command("fetch")
def fetch(
    server: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The key server.")],
    user: Annotated[str, typer.Option(help="Our username.")],
    password_file: PasswordFile,
    to: Annotated[Path, typer.Option(help="The folder that keys go to.")],
    ca: Ca = "",
    tls: Annotated[bool, typer.Option(help="TLS; without it this machine's server only.")] = True,
    plain: PlainOverNetwork = False,
    follow: Annotated[bool, typer.Option("--follow", help="Stay connected for new keys.")] = False,
    wait_s: Annotated[float, typer.Option(help="Longest wait for keys.", min=0.1)] = 10,
) -> Work:
    """Log in at a server and write definitions and keys into a folder. Exit code 3 where the
    server refuses, 1 where no key came.

    \b
    Example:
      feedhandler fixcast keys fetch 10.1.0.5:31950 --user ann --password-file pw --to keys --follow
    """

    from feedhandler.amqp.security import ClientTls
    from feedhandler.ops.fixcast import keys as ops

    def work() -> int:
        trust = ClientTls(ca) if tls and not plain else None
        return ops.fetch(server, user, password_file, to, trust, plain, follow, wait_s)

    return work
