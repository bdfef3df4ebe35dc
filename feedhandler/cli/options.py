"""Options that several commands have in common, with their words for `--help`."""

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from feedhandler.codecs.errors import UsageError
from feedhandler.terminal import arguments

#: What a command answers with: the work, which answers with the exit code.
Work = Callable[[], int]


class RecordSchema(StrEnum):
    """Kinds of normalised records."""

    MBO = "mbo"
    BBO = "bbo"
    MBP10 = "mbp10"
    TRADES = "trades"
    STATUS = "status"
    DEFINITION = "definition"


Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same session.", min=0)]


def feed_names(incomplete: str) -> list[str]:
    """Return the built-in feeds with this prefix, for the shell's completion."""
    from feedhandler.codecs import list_feeds

    return [name for name in list_feeds() if name.startswith(incomplete)]


FeedName = Annotated[
    str,
    typer.Option(
        "--feed", help="A built-in feed, or a description's path.", autocompletion=feed_names
    ),
]


def share(default_help: str) -> Any:
    """Declare an option that is a share: 5% or 0.05."""
    return typer.Option(parser=arguments.share, metavar="SHARE", help=default_help)


Loss = Annotated[float, share("Loss on each line, independent.")]
LossA = Annotated[float | None, share("Loss on line A alone.")]
LossB = Annotated[float | None, share("Loss on line B alone.")]
SpareShared = Annotated[
    bool, typer.Option("--spare-shared", help="Never lose on B what was lost on A.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace files that are there already.")
]
Interface = Annotated[str, typer.Option(help="Where to send: a name or an address.")]
MessageRate = Annotated[
    float,
    typer.Option(
        parser=arguments.messages_per_second,
        metavar="RATE",
        help="Messages a second, all services together: 20000 or 20kmps.",
    ),
]
ControlEndpoint = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONTROL-ENDPOINT]",
        help="A gateway's control.bind, or its TOML file; tcp://127.0.0.1:5572 without one.",
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.01, max=600)]
User = Annotated[str, typer.Option(help="Our username, unless the URL has it.")]
PasswordEnv = Annotated[str, typer.Option(help="The environment variable that has the password.")]
PasswordFile = Annotated[str, typer.Option(help="The file that has the password.")]
Ca = Annotated[str, typer.Option(help="A file of CAs whose servers are believed; the system's.")]
Certificate = Annotated[str, typer.Option(help="Our certificate, a file in PEM.")]
Key = Annotated[str, typer.Option(help="The certificate's key, a file in PEM.")]
PlainOverNetwork = Annotated[
    bool,
    typer.Option("--plain-over-network", help="Send the password without TLS to another machine."),
]


def _login(
    user: User = "",
    password_env: PasswordEnv = "",
    password_file: PasswordFile = "",
    ca: Ca = "",
    certificate: Certificate = "",
    key: Key = "",
    plain_over_network: PlainOverNetwork = False,
) -> Any:
    from feedhandler.amqp.identity import Login

    return Login(user, "", password_env, password_file, ca, certificate, key, plain_over_network)


def with_login(command: Callable[..., Work]) -> Callable[..., Work]:
    """Give a command that takes a `login` the options that make one."""
    whole, options = inspect.signature(command), inspect.signature(_login).parameters
    own = [each for name, each in whole.parameters.items() if name != "login"]
    signature = whole.replace(parameters=[*own, *options.values()])

    @functools.wraps(command)
    def called(**given: Any) -> Work:
        return command(login=_login(**{name: given.pop(name) for name in options}), **given)

    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return called


def refuse_beside(
    context: typer.Context,
    option: str,
    *others: str,
    hint: str = "leave it out",
) -> None:
    """Refuse options that say nothing beside this one, instead of passing over them."""
    for other in others:
        if is_given(context, other):
            raise UsageError(f"--{other.replace('_', '-')} says nothing {option}", hint)


def is_given(context: typer.Context, option: str) -> bool:
    """Return whether an option is on the command line, be it with its default's value."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"
