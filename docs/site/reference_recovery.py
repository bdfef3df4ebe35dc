"""`docs/recovery.md`, written from the code: the state machine of recovery, reasons, settings.

The diagram and the rules come from the table of `retrans/states.py`, so they show the machine that
runs. What an input means is the first line of the method that takes it, what a setting means is
the docstring beneath its field.
"""

import ast
import inspect
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from markdown_table import table
from msgspec import Struct

from feedhandler._compiled import PURE_MODE, source_of
from feedhandler.retrans import failover, states
from feedhandler.retrans.protocol import RefreshReject, RetransReject
from feedhandler.retrans.reactions import REFRESH, RETRANSMISSION, RefreshReply, Reply
from feedhandler.retrans.recovery import COUNTS, Recovery
from feedhandler.retrans.settings import RECOVERY_BOUNDS, RecoverySettings
from feedhandler.retrans.states import TABLE, Action, Input, State

_HEAD = """\
# Recovery

Written by `make docs` from `retrans/states.py`, `retrans/reactions.py` and `retrans/settings.py`.

Each channel has a state machine of its own: what one channel loses touches no other. A packet that
is missing on both lines is fetched from the retransmission server (RTS). What cannot be had within
`recovery_wait_us` is announced lost, the live stream goes on, and a snapshot from the refresh
server (RFS) heals it.
"""

_RULES_HEAD = """\
## Rules

What is done about each input in each state, and where that may lead, if not back to the same
state. A dot: nothing changes.
"""

_REASONS_HEAD = """\
## Reject reasons

Each has a reaction of its own. A range that is abandoned is announced lost as soon as nothing
before it may still come, and then healed by a snapshot where a refresh server is configured. The
operator is alerted once a trading day, and again after `feedhandler control resume-requests`.
"""

_FAILOVER_HEAD = """\
## A primary and a secondary server

A `[[server]]` with `secondary = "host:port"` is two servers, of one protocol and with the same
credentials; both connections are kept. Recovery asks one server and hears nothing of a change but
that answers come later. Below, a state before a slash is the next one where the other server, that
of which the input does not speak, is there; behind it where it is not. A dot: nothing changes.

| state | is |
|---|---|
| PRIMARY | the primary is asked |
| SECONDARY | the secondary is asked, the primary is not there |
| RETURNING | the secondary is asked, the primary has not been there again for `failback_us` |

An end is silent that has not answered a request for half of the request's time-out. What one
refuses as not permitted, too many today, no longer available or not its service is asked of the
other once, and so is a snapshot that is refused or fails.
"""

_SETTINGS_HEAD = """\
## Settings

Times in microseconds; the bounds are checked at the start.
"""


def recovery() -> str:
    """Return the text of `docs/recovery.md`."""
    return "\n".join(
        (
            _HEAD,
            "## States\n\n```text\n" + _prose(states) + "\n```\n",
            "```mermaid\n" + diagram() + "```\n",
            _RULES_HEAD,
            _rules(),
            table(("input", "means"), ((_code(each), _means(each)) for each in Input)),
            table(("action", "what is done"), ((_code(each), each.value) for each in Action)),
            _REASONS_HEAD,
            _reasons("retransmission", RetransReject, RETRANSMISSION),
            _reasons("refresh", RefreshReject, REFRESH),
            _FAILOVER_HEAD,
            _failover(),
            _SETTINGS_HEAD,
            _settings(),
            "## Counters of a channel's recovery\n",
            table(("counter", "counts"), ((f"`{name}`", what) for name, what in COUNTS.items())),
        )
    )


def diagram() -> str:
    """Return the table as a Mermaid state diagram: the arrows between states, with their inputs."""
    lines = ["stateDiagram-v2\n", f"    [*] --> {State.IN_SYNC.name}\n"]
    for state in State:
        for after in State:
            inputs = [event.name for event in Input if after in TABLE[state][event].next]
            if inputs and after is not state:
                lines.append(f"    {state.name} --> {after.name}: {', '.join(inputs)}\n")
    return "".join(lines)


def _prose(module: object) -> str:
    """Return a module's docstring without its first line."""
    return inspect.getdoc(module).partition("\n")[2].strip()  # type: ignore[union-attr]


def _rules() -> str:
    rows = []
    for event in Input:
        cells = []
        for state in State:
            rule = TABLE[state][event]
            leads = ", ".join(after.name for after in rule.next if rule.next != (state,))
            done = "·" if rule.action is Action.NOTHING else rule.action.name
            cells.append(f"{done} → {leads}" if leads else done)
        rows.append((_code(event), *cells))
    return table(("input", *(state.name for state in State)), rows)


def _failover() -> str:
    rows = []
    for event in failover.Input:
        cells = []
        for state in failover.State:
            names = ["·" if each is state else each.name for each in failover.TABLE[state][event]]
            cells.append(names[0] if names[0] == names[1] else " / ".join(names))
        rows.append((event.name, *cells))
    return table(("input", *(state.name for state in failover.State)), rows)


def _code(member: Input | Action) -> str:
    return f"`{member.name}`"


def _means(event: Input) -> str:
    """Return the first paragraph of the docstring of the method that takes the input."""
    text = inspect.getdoc(getattr(Recovery, event.name.lower())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _reasons(
    server: str, reasons: type[IntEnum], replies: Mapping[int, Reply] | Mapping[int, RefreshReply]
) -> str:
    rows = [
        (str(reason.value), _member_docs(reasons)[reason.name], replies[reason].reaction.value)
        for reason in reasons
        if reason in replies
    ]
    return table(("", f"the {server} server says", "what is done"), rows)


def _settings() -> str:
    meanings = _member_docs(RecoverySettings)
    rows = []
    for name, (least, most) in RECOVERY_BOUNDS.items():
        default = getattr(RecoverySettings(), name)
        rows.append((f"`{name}`", f"{default:,}", f"{least:,} to {most:,}", meanings[name]))
    return table(("key", "default", "bounds", "meaning"), rows)


def _member_docs(scope: type[IntEnum] | type[Struct]) -> dict[str, str]:
    """Return the docstring beneath each field of a class, on one line, by field."""
    module = scope.__module__
    source = Path(source_of(module) if module in PURE_MODE else inspect.getfile(scope)).read_text()
    (tree,) = (
        each
        for each in ast.parse(source).body
        if isinstance(each, ast.ClassDef) and each.name == scope.__name__
    )
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        target = (
            field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", None)
        )
        if isinstance(target, ast.Name) and isinstance(text, ast.Expr):
            found[target.id] = " ".join(ast.literal_eval(text.value).split())
    return found
