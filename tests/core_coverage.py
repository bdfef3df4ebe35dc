"""Branch coverage of the sans-IO cores, interpreted.

    python -m tests.core_coverage [PREFIX ...]

runs the unit tests and a hundred seeds of the recovery simulation under `coverage`, with
`FEEDHANDLER_PURE=1` (compiled code is not traced), and prints a row for each core of
`docs/rooms.md`, or for those whose path begins with a PREFIX. Exit code: the tests'.
"""

import os
import re
import subprocess
import sys

from tests.support import rooms
from tests.support.checkout import CHECKOUT

DATA = CHECKOUT / "build" / "coverage"
SEEDS = "100"
TESTS = ("tests/unit", "tests/simulation/test_recovery_seeds.py")
#: What a module says at its import that has C headers, and so takes only compiled ones beside it.
NEEDS_COMPILED = re.compile(r"^ERROR (\S+) - ValueError: .* size changed", re.M)


def cores() -> list[str]:
    """The paths of the modules that the table of rooms calls cores, those in Python."""
    tree = rooms.read_tree(CHECKOUT)
    table = rooms.read_table((CHECKOUT / "docs" / "rooms.md").read_text())
    paths = [path for module in rooms.cores(tree, table) for path in tree.files[module]]
    return [str(path.relative_to(CHECKOUT)) for path in paths if path.suffix == ".py"]


def left_out(options: list[str], environment: dict[str, str]) -> list[str]:
    """Return the tests that cannot be imported without compiled modules; print them."""
    collect = [sys.executable, *options, "--collect-only", *TESTS]
    wide = {**environment, "COLUMNS": "1000"}
    said = subprocess.run(collect, cwd=CHECKOUT, env=wide, capture_output=True, text=True).stdout
    found = NEEDS_COMPILED.findall(said)
    print(f"left out, for they need compiled modules: {', '.join(found)}", flush=True)
    return found


def main(prefixes: list[str]) -> int:
    """Run and report; answers with the tests' exit code."""
    chosen = [core for core in cores() if core.startswith(tuple(prefixes) or "")]
    DATA.parent.mkdir(exist_ok=True)
    tool = [sys.executable, "-m", "coverage"]
    data = f"--data-file={DATA}"
    environment = {
        **os.environ,
        "FEEDHANDLER_PURE": "1",
        "SEEDS": os.environ.get("SEEDS", SEEDS),
        "PYTHONPATH": str(CHECKOUT),
    }
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0"]
    tests = [*TESTS, *(f"--ignore={path}" for path in left_out(options, environment))]
    run = [*tool, "run", "--branch", data, f"--include={','.join(chosen)}"]
    done = subprocess.run([*run, *options, *tests], cwd=CHECKOUT, env=environment)
    subprocess.run([*tool, "report", data, "--show-missing"], cwd=CHECKOUT, env=environment)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
