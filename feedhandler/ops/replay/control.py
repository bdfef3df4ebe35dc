"""`feedhandler replay-control`: pause, resume, seek and stop a running replay."""

from typing import Any

from msgspec import Struct

from feedhandler.codecs.errors import UsageError
from feedhandler.ops.replay.verbs import SETTING
from feedhandler.replay.playing.time_spec import EXAMPLES
from feedhandler.rpc import ask
from feedhandler.terminal.console import ExitCode, print_json
from feedhandler.terminal.live import duration_text


class Options(Struct, frozen=True, kw_only=True):
    """The request and the replay's endpoint; `to` is for `seek` alone."""

    endpoint: str
    verb: str
    to: str | None = None
    timeout_s: float = 60.0
    as_json: bool = False


def run(options: Options) -> int:
    """Send the request, and print the replay's state afterwards."""
    if options.verb == "seek" and options.to is None:
        raise UsageError("seek wants a moment", EXAMPLES)
    if options.verb != "seek" and options.to is not None:
        raise UsageError(f"{options.verb} takes no moment", f"leave {options.to} out, or say seek")
    request = {"do": options.verb}
    if options.to is not None:
        request["to"] = options.to
    answer = ask(options.endpoint, request, options.timeout_s, who="replay", setting=SETTING)
    if options.as_json:
        print_json(answer)
    else:
        print(status_text(answer))
    return ExitCode.OK


def status_text(status: dict[str, Any]) -> str:
    """Format the status as one line."""
    left = status["left_ns"]
    words = [
        f"{status['playing']}: {status['state']}",
        f"at {status['position']}" if status["position"] else "nothing sent yet",
        f"{status['sent']:,} sent in {duration_text(status['elapsed_ns'])}",
        f"{status['share_done']:.0%} done" + (f", {duration_text(left)} left" if left else ""),
    ]
    if status["state"] == "playing":
        words.append(f"{status['datagrams_per_second']:,.0f}/s")
    return ", ".join(words)
