"""`feedhandler control`: send a request to a running gateway, over its control socket."""

from msgspec import Struct

from feedhandler.ops.status import endpoint_of
from feedhandler.rpc import ask
from feedhandler.terminal.console import ExitCode, print_json


class Options(Struct, frozen=True, kw_only=True):
    """The request and its gateway: an endpoint or a TOML file; `server` empty means all."""

    verb: str
    gateway: str | None = None
    server: str = ""
    timeout_s: float = 2.0
    as_json: bool = False


def run(options: Options) -> int:
    """Send the request, and print the result."""
    request = {"do": options.verb, "server": options.server}
    answer = ask(endpoint_of(options.gateway), request, options.timeout_s)
    if options.as_json:
        print_json(answer)
    elif answer["resumed"]:
        print(f"asked again today: {', '.join(answer['resumed'])}")
    else:
        print("nothing to resume: no server was given up for today")
    return ExitCode.OK
