"""`feedhandler replay-control`: pause, resume, seek and stop a running replay."""

from typing import Any

from msgspec import Struct

from feedhandler.codecs.errors import UsageError
from feedhandler.ops.console import ExitCode, print_json
from feedhandler.ops.live import duration_text
from feedhandler.ops.replay_verbs import SETTING
from feedhandler.replay.playing.time_spec import EXAMPLES
from feedhandler.rpc import ask


class Options(Struct, frozen=True, kw_only=True):
    """The request and the replay's endpoint; `to` is for `seek` alone."""

    endpoint: str
    verb: str
    to: str | None = None
    timeout_s: float = 60.0
    as_json: bool = False


def run(options: Options) -> int:
    """Send the request, and print the replay's state afterwards."""
    if (options.verb == "seek") != (options.to is not None):
        said = "seek wants a moment" if options.to is None else f"{options.verb} takes no moment"
        raise UsageError(said, EXAMPLES)
    request = {"do": options.verb}
    if options.to is not None:
        request["to"] = options.to
    told = ask(options.endpoint, request, options.timeout_s, who="replay", setting=SETTING)
    if options.as_json:
        print_json(told)
    else:
        print(status_text(told))
    return ExitCode.OK


def status_text(told: dict[str, Any]) -> str:
    """Format the status as one line."""
    left = told["left_ns"]
    words = [
        f"{told['playing']}: {told['state']}",
        f"at {told['position']}" if told["position"] else "nothing sent yet",
        f"{told['sent']:,} sent in {duration_text(told['elapsed_ns'])}",
        f"{told['share_done']:.0%} done" + (f", {duration_text(left)} left" if left else ""),
    ]
    if told["state"] == "playing":
        words.append(f"{told['datagrams_per_second']:,.0f}/s")
    return ", ".join(words)
