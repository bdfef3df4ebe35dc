"""`make profiles`: what each compiled module is compiled for, measured.

    python -m bench.profiles [--only LOAD ...] [--part SHARE] [--from FILE] [--out FILE] [--page]

Plays each load of `bench.profile_loads` twice, each time in a process of its own (`profiled`):
interpreted, where samples show which file used the processor, and compiled. Prints for each module
of `feedhandler._compiled.UNITS` the load in which its share is greatest, that share, and how many
times faster the load is compiled, interpreted declarations left out. A module is compiled for one
of four reasons: its share of some load reaches `SHARE_MIN`; it needs C headers; another that is
compiled uses what it declares, in C; or it extends a class of another one, and overrides what only
C calls. What has none of them is printed as not proven.

Writes the same as JSON, and with `--page` into the page's table. `--from` takes the figures of all
loads that `--only` does not name from a file that was written before.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.profile_loads import LOADS
from bench.profiled import DECLARATIONS
from feedhandler import _declarations
from feedhandler._compiled import COMPILED_ONLY, PURE_MODE, UNITS

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "docs" / "compiled.md"
DEFAULT_OUT = Path("out/profiles.json")
#: Share of a load's own time that proves a module.
SHARE_MIN = 0.01
LOAD_SECONDS_MAX = 300
BEGIN, END = "<!-- profiles: written by `make profiles` -->\n", "<!-- end of profiles -->\n"
#: What compiled modules take from each other in C, in Python files and in Cython's.
_FROM = re.compile(
    r"^\s*from (?:cython\.cimports\.)?feedhandler\.?([\w.]*) (import|cimport) (\([^)]*\)|.*)", re.M
)

Measured = Mapping[str, Mapping[str, Any]]


class LoadFailed(Exception):
    """A load that did not come to its end; the text says which, and its last lines."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a module is compiled: the load with its greatest share, that share, and the reason.

    `reason`: `profile`, `headers`, `declared` (`users` name who uses it in C), `extends`, or none.
    """

    module: str
    unit: str
    load: str
    share: float
    speed_up: float
    reason: str
    users: tuple[str, ...] = ()


def play(load: str, part: float, pure: bool) -> dict[str, Any]:
    """Play a load in a process of its own; what it says. Raises `LoadFailed`."""
    environment = {**os.environ, "FEEDHANDLER_PURE": "1" if pure else ""}
    command = [sys.executable, "-m", "bench.profiled", load, "--part", str(part)]
    try:
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment, capture_output=True, text=True,
            timeout=LOAD_SECONDS_MAX,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{load}: not done after {LOAD_SECONDS_MAX} s") from None
    if done.returncode:
        raise LoadFailed(f"{load}: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(loads: Iterable[str], part: float) -> dict[str, dict[str, Any]]:
    """Play each load interpreted and compiled; its seconds, speed-up, and the shares of files.

    A load that does not come to its end is reported, and left out.
    """
    found = {}
    for load in loads:
        try:
            pure, compiled = play(load, part, pure=True), play(load, part, pure=False)
        except LoadFailed as error:
            print(f"fault: {error}", file=sys.stderr)
            continue
        places: dict[str, float] = pure["places"]
        declarations = places.pop(DECLARATIONS, 0.0)
        own = max(sum(places.values()), 1e-9)
        speed_up = (pure["seconds"] - declarations) / max(compiled["seconds"], 1e-9)
        found[load] = {
            "interpreted_s": pure["seconds"],
            "declarations_s": declarations,
            "own_s": own,
            "compiled_s": compiled["seconds"],
            "speed_up": speed_up,
            "shares": {place: seconds / own for place, seconds in sorted(places.items())},
        }
        print(f"  {load:22} {pure['seconds']:6.1f} s, {speed_up:6.1f} times faster", flush=True)
    return found


@cache
def users_in_c() -> dict[str, tuple[str, ...]]:
    """Return of each compiled module which other ones take something from it in C."""
    found: dict[str, set[str]] = {}
    for user, source in (PURE_MODE | COMPILED_ONLY).items():
        path = CHECKOUT / source
        for file in (path, path.with_suffix(".pxd")):
            for name in _cimported(file.read_text()) if file.exists() else ():
                if name != user and name in PURE_MODE | COMPILED_ONLY:
                    found.setdefault(name, set()).add(user)
    return {name: tuple(sorted(users)) for name, users in found.items()}


@cache
def extending() -> frozenset[str]:
    """Return the modules that have subclasses of other modules' compiled classes."""
    types = _declarations.all_types(
        {name: CHECKOUT / source for name, source in (PURE_MODE | COMPILED_ONLY).items()}
    )
    found = set()
    for name, source in PURE_MODE.items():
        body = ast.parse((CHECKOUT / source).read_text()).body
        origin = _declarations.imports(body)
        bases = {
            base.id
            for node in body
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if isinstance(base, ast.Name)
        }
        modules = {base: origin.get(base, "").removeprefix("cython.cimports.") for base in bases}
        if any(base in types.get(module, ()) for base, module in modules.items()):
            found.add(name)
    return frozenset(found)


def _cimported(text: str) -> set[str]:
    """Return the modules that a source cimports something from."""
    found = set()
    for match in _FROM.finditer(text):
        if match[2] == "import" and ".cimports." not in match[0]:
            continue
        package = f"feedhandler.{match[1]}".rstrip(".")
        found |= {package, *(f"{package}.{name}" for name in re.findall(r"\w+", match[3]))}
    return found


def verdicts(measured: Measured) -> list[Verdict]:
    """Return why each module is compiled, in the order of the table of units."""
    judged: dict[str, Verdict] = {}
    for unit, names in UNITS.items():
        for name in names:
            module = f"feedhandler.{name}"
            source = PURE_MODE.get(module, "")
            share, load = max(
                ((each["shares"].get(source, 0.0), load) for load, each in measured.items()),
                default=(0.0, ""),
            )
            reason = "profile" if share >= SHARE_MIN else ""
            if module in COMPILED_ONLY:
                reason = "headers"
            if not reason and module in extending():
                reason = "extends"
            speed_up = measured[load]["speed_up"] if load else 0.0
            judged[module] = Verdict(name, unit, load, share, speed_up, reason)
    _judge_declared(judged)
    return list(judged.values())


def _judge_declared(judged: dict[str, Verdict]) -> None:
    """Judge what others that have a reason use in C as declared, and then what those use."""
    while True:
        found = {}
        for module, verdict in judged.items():
            users = [user for user in users_in_c().get(module, ()) if judged[user].reason]
            if users and not verdict.reason:
                names = tuple(user.removeprefix("feedhandler.") for user in users)
                found[module] = Verdict(
                    verdict.module, verdict.unit, verdict.load, verdict.share, verdict.speed_up,
                    "declared", names,
                )  # fmt: skip
        if not found:
            return
        judged.update(found)


def of_reason(found: Sequence[Verdict], reason: str) -> list[Verdict]:
    """Return the verdicts with this reason."""
    return [verdict for verdict in found if verdict.reason == reason]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of markdown."""
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in (head, *rows))
    return "".join([first, "|---" * len(head), "|\n", *others])


def report(found: Sequence[Verdict], measured: Measured) -> str:
    """Return the tables, as markdown: a row for each module, and one for each load."""
    head = ["module", "unit", "load", "share", "load is faster"]

    def cells(verdict: Verdict) -> list[str]:
        seen = [verdict.load, f"{verdict.share:.1%}", f"{verdict.speed_up:.1f} times"]
        return [f"`{verdict.module}`", verdict.unit, *(seen if verdict.share else ["-"] * 3)]

    parts = [
        f"**Proven by a profile** ({len(of_reason(found, 'profile'))} modules).\n",
        _table(head, map(cells, of_reason(found, "profile"))),
        f"**Used in C by others** ({len(of_reason(found, 'declared'))}): below"
        f" {SHARE_MIN:.0%} of every load, and what they declare is used in C.\n",
        _table(
            ["module", "unit", "load", "share", "declared types used by"],
            (
                [*cells(verdict)[:4], ", ".join(f"`{user}`" for user in verdict.users)]
                for verdict in of_reason(found, "declared")
            ),
        ),
        f"**Need C headers** ({len(of_reason(found, 'headers'))}): there is no interpreted form to"
        " profile.\n",
        _table(
            ["module", "unit"],
            ([f"`{each.module}`", each.unit] for each in of_reason(found, "headers")),
        ),
    ]
    if extends := of_reason(found, "extends"):
        parts += [
            f"**Extend compiled classes** ({len(extends)}): they override methods that only C"
            " calls.\n",
            _table(head, map(cells, extends)),
        ]
    if unproven := of_reason(found, ""):
        parts += [
            f"**Not proven** ({len(unproven)}): below {SHARE_MIN:.0%} of every load, and not"
            " used in C.\n",
            _table(head, map(cells, unproven)),
        ]
    parts += ["**The loads.**\n", _loads(measured)]
    return "\n".join(parts)


def _loads(measured: Measured) -> str:
    """Return a table of the loads: their processor time, and who used it."""

    def most(shares: Mapping[str, float]) -> str:
        first = sorted(shares, key=lambda place: -shares[place])[:3]
        return ", ".join(f"`{place}` {shares[place]:.0%}" for place in first)

    return _table(
        ["load", "interpreted", "compiled", "faster", "most of it in"],
        (
            [
                load, f"{each['interpreted_s'] - each['declarations_s']:.1f} s",
                f"{each['compiled_s']:.2f} s", f"{each['speed_up']:.1f} times",
                most(each["shares"]),
            ]
            for load, each in measured.items()
        ),
    )  # fmt: skip


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the page's marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    """Measure, print, write; 1 where a load did not come to its end."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.profiles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=LOADS, default=[], metavar="LOAD")
    parser.add_argument("--part", type=float, default=1.0, help="of each load's usual size")
    parser.add_argument(
        "--from", dest="before", type=Path, help="figures that were measured before"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(CHECKOUT)}")
    arguments = parser.parse_args()
    known: dict[str, Any] = {}
    if arguments.before:
        known = json.loads(arguments.before.read_text())["loads"]
    wanted = arguments.only or [load for load in LOADS if load not in known]
    known |= measure(wanted, arguments.part)
    measured = {load: known[load] for load in LOADS if load in known}
    found = verdicts(measured)
    text = report(found, measured)
    print(text)
    if arguments.page:
        put_into(PAGE, text)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    modules = {each.module: _as_json(each) for each in found}
    arguments.out.write_text(json.dumps({"modules": modules, "loads": measured}, indent=1))
    print(f"written: {arguments.out}")
    return 0 if set(wanted) <= set(measured) else 1


def _as_json(verdict: Verdict) -> dict[str, Any]:
    """Return a module's verdict, JSON-ready."""
    return {
        "unit": verdict.unit, "load": verdict.load, "share": verdict.share,
        "speed_up": verdict.speed_up, "reason": verdict.reason, "users": list(verdict.users),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
