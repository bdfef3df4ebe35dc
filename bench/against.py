"""`python -m bench --against COMMIT`: this tree and another commit of it, bench by bench, in turns.

Machines are noisy, and what is measured an hour apart differs by more than a change does. So the
other commit is checked out and compiled beside this tree, and each turn runs every bench once here
and once there. A figure's ratio is taken turn by turn: above 1 is better than the other commit,
whichever way the figure counts. Printed is the median of those ratios, with the lowest and the
highest; a figure is `slower` or `faster` where the median is off by more than `NOISE_SHARE`.

Figures that only one of the trees has, that are not above 0 in every turn, or whose name does not
say which way they count, are listed apart. A figure is no fault; a bench that fails in either tree
is one.
"""

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
DEFAULT_TURNS = 5
#: What two runs of one tree differ by where nothing else runs.
NOISE_SHARE = 0.05
#: Which way a figure counts, by its name; the first that fits. A bar is no figure, nor is a list.
_IGNORED = re.compile(r"(^|_)bars?($|_)|^problems$|^(quick|cores|processors|seconds|packets)$")
_MORE_IS_BETTER = re.compile(
    r"(^|_)(per_s|per_second|a_second|times)$|(^|_)rates?(_|$)|^times_\w+$|^product$"
)
_LESS_IS_BETTER = re.compile(r"(^|_)(ns|us|ms|s|bytes|p50|p90|p99|max)$")


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of both trees. `ratios` of the turns, above 1 where this tree is the better one."""

    name: str
    ours: float
    theirs: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of the turns' ratios."""
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """`slower`, `faster`, or `same`."""
        if abs(self.ratio - 1) <= NOISE_SHARE:
            return "same"
        return "slower" if self.ratio < 1 else "faster"


def figures_of(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a bench's result, each under its path; no bars, lists or core counts."""
    for key, value in found.items():
        if _IGNORED.search(key):
            continue
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from figures_of(value, f"{path} / ")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, float(value)


def direction(path: str) -> int:
    """Return 1 where more is better, -1 where less is, 0 where no part of the name says so."""
    for part in reversed(path.split(" / ")):
        if _MORE_IS_BETTER.search(part):
            return 1
        if _LESS_IS_BETTER.search(part):
            return -1
    return 0


def compare(
    turns: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> tuple[list[Compared], list[str]]:
    """Return the figures of both trees in each turn (ours, theirs), and the names of the others."""
    sides = [[dict(figures_of(side)) for side in turn] for turn in turns]
    names = list(dict.fromkeys(name for turn in sides for side in turn for name in side))
    compared, others = [], []
    for name in names:
        pairs = [(ours.get(name), theirs.get(name)) for ours, theirs in sides]
        known = [(ours, theirs) for ours, theirs in pairs if min(ours or 0, theirs or 0) > 0]
        way = direction(name)
        if not way or len(known) < len(pairs):
            others.append(name)
            continue
        compared.append(
            Compared(
                name,
                statistics.median(ours for ours, _ in known),
                statistics.median(theirs for _, theirs in known),
                tuple((ours / theirs) ** way for ours, theirs in known),
            )
        )
    return compared, others


def commit_of(name: str) -> str:
    """Return the full hash of a commit. Raises `LookupError` where there is none of that name."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
        cwd=CHECKOUT, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise LookupError(f"there is no commit {name}; `git log --oneline` shows those there are")
    return done.stdout.strip()


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield the commit's tree in a folder of its own, compiled; gone after the block."""
    with tempfile.TemporaryDirectory(prefix="feedhandler-against-") as folder:
        tree = Path(folder, "tree")
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit],
            cwd=CHECKOUT, check=True,
        )  # fmt: skip
        try:
            print(f"compiling {commit[:12]} ...", flush=True)
            command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
            environment = {**os.environ, "PYTHONPATH": str(tree)}
            done = subprocess.run(
                [*command, "--parallel", str(os.cpu_count() or 1)], cwd=tree, env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"{commit[:12]} does not compile:\n{done.stdout[-2_000:]}")
            yield tree
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)], cwd=CHECKOUT, check=True
            )


def measured(tree: Path, name: str, quick: bool) -> dict[str, Any]:
    """Return one bench's figures, run in a tree; its faults among its `problems`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "bench.json")
        command = [sys.executable, "-m", "bench", "--only", name, "--out", str(out)]
        done = subprocess.run(
            command + ["--quick"] * quick, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if not out.exists():
            return {"problems": [f"no result: {done.stdout[-500:].strip()}"]}
        found: dict[str, Any] = json.loads(out.read_text())[name]
        return found


def report_lines(compared: Sequence[Compared], others: Sequence[str]) -> Iterator[str]:
    """Yield the lines of one bench's comparison."""
    width = max((len(each.name) for each in compared), default=0)
    for each in compared:
        yield (
            f"  {each.name:{width}}  {each.ours:>14,.6g}  {each.theirs:>14,.6g}  "
            f"{each.ratio:6.3f} ({min(each.ratios):.3f} to {max(each.ratios):.3f})  {each.verdict}"
        )
    if others:
        yield f"  not compared: {', '.join(others)}"


def run(commit: str, names: Sequence[str], turns: int, quick: bool) -> dict[str, Any]:
    """Compare the named benches; the result of each, faults under `problems`."""
    found: dict[str, Any] = {"commit": commit, "turns": turns, "problems": []}
    with checked_out(commit) as tree:
        for name in names:
            print(f"{name}: here, there, ratio (lowest to highest of {turns} turns)", flush=True)
            pairs = [
                (measured(CHECKOUT, name, quick), measured(tree, name, quick)) for _ in range(turns)
            ]
            found["problems"] += [
                f"{name} {where}: {problem}"
                for pair in pairs
                for where, side in zip(("here", "there"), pair, strict=True)
                for problem in side.get("problems", ())
            ]
            compared, others = compare(pairs)
            print(*report_lines(compared, others), sep="\n", flush=True)
            found[name] = {
                each.name: {
                    "ours": each.ours, "theirs": each.theirs, "ratios": each.ratios,
                    "verdict": each.verdict,
                }
                for each in compared
            }  # fmt: skip
    return found
