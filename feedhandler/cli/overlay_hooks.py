"""`feedhandler overlay hooks` on the command line."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import Json, Work


class Role(StrEnum):
    """Hooks by what they do."""

    send = "send"
    forward = "forward"
    receive = "receive"


class Mode(StrEnum):
    """Modes of XDP."""

    native = "native"
    generic = "generic"


Device = Annotated[str, typer.Argument(metavar="DEVICE", help="The network interface.")]

hooks = typer.Typer(
    help="Programs of the kernel for unchanged programs: attach, detach, show (needs root).",
)


@hooks.command("attach")
def attach(
    role: Annotated[
        Role, typer.Argument(metavar="ROLE", help="What the hook does: send, forward or receive.")
    ],
    device: Device,
    match: Annotated[
        str,
        typer.Option(
            metavar="IP:PORT",
            help="Whose datagrams are taken: the group that the plain program sends to; at a proxy"
            " or a receiver the overlay's own address (a receiver: 0.0.0.0 for any).",
        ),
    ],
    to: Annotated[
        list[str],
        typer.Option(
            metavar="IP:PORT",
            help="Targets of copies, one an option; at a receiver the plain program's address.",
        ),
    ],
    tree: Annotated[int, typer.Option(help="The tree's number.", min=0, max=65_535)],
    key_file: Annotated[
        Path | None, typer.Option(help="A file of 32 hex digits; without it nothing is sealed.")
    ] = None,
    hold_us: Annotated[
        int, typer.Option(help="Deliver so long after sending; 0: at once.", min=0)
    ] = 0,
    messages_per_second: Annotated[
        int, typer.Option(help="Highest rate; ids a second apart are distinguished.", min=1)
    ] = 65_536,
    mode: Annotated[Mode, typer.Option(help="A receiver's mode of XDP.")] = Mode.native,
) -> Work:
    """Attach a hook to an interface. It stays until it is detached, or the interface goes. Exit
    code 2 without the privilege, or where the interface has such a hook; 70 where the kernel
    refuses.

    \b
    Examples:
      feedhandler overlay hooks attach send eth0 --match 239.1.1.1:5000 --to 10.1.0.11:6000 \\
        --to 10.1.0.12:6000 --tree 1
      feedhandler overlay hooks attach receive eth0 --match 0.0.0.0:6000 --to 239.1.1.1:5000 \\
        --tree 1
    """

    from feedhandler.ops.overlay import hooks as ops

    return lambda: ops.attach(
        ops.Options(role, device, match, to, tree, key_file, hold_us, messages_per_second, mode)
    )


@hooks.command("detach")
def detach(
    device: Annotated[
        str,
        typer.Argument(metavar="DEVICE", help="The interface, or the name that `show` gives."),
    ],
    role: Annotated[Role | None, typer.Option(help="This hook only.")] = None,
) -> Work:
    """Detach an interface's hooks. Exit code 2 where it has none.

    \b
    Example:
      feedhandler overlay hooks detach eth0
    """

    from feedhandler.ops.overlay import hooks as ops

    return lambda: ops.detach(device, role)


@hooks.command("hold")
def hold(
    device: Device,
    us: Annotated[int, typer.Option(help="Deliver so long after sending; 0: at once.", min=0)],
) -> Work:
    """Change the deadlines that a sender's hook gives messages from now on.

    \b
    Example:
      feedhandler overlay hooks hold eth0 --us 350
    """

    from feedhandler.ops.overlay import hooks as ops

    return lambda: ops.hold(device, us)


@hooks.command("show")
def show(as_json: Json = False) -> Work:
    """Show hooks, their settings and counters. Exit code 1 where a device has gone.

    \b
    Example:
      feedhandler overlay hooks show
    """

    from feedhandler.ops.overlay import hooks as ops

    return lambda: ops.show(as_json)
