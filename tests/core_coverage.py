"""Branch coverage of the sans-IO cores, interpreted.

    python -m tests.core_coverage [PREFIX ...]

runs the unit tests and a hundred seeds of the recovery simulation under `coverage`, with
`FEEDHANDLER_PURE=1` (compiled code is not traced), and prints a row for each core of
`docs/rooms.md`, or for those whose path begins with a PREFIX. Exit code: the tests'.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import rooms

CHECKOUT = Path(__file__).resolve().parent.parent
DATA = CHECKOUT / "build" / "coverage"
SEEDS = "100"
TESTS = ("tests/unit", "tests/simulation/test_recovery_seeds.py")
#: They need the receive thread, whose compiled module takes only compiled ones beside it.
LEFT_OUT = (
    "tests/unit/test_cli_run.py",
    "tests/unit/test_cli_status.py",
    "tests/unit/test_docs_reference.py",
)


def cores() -> list[str]:
    """The paths of the modules that the table of rooms calls cores, those in Python."""
    tree = rooms.read_tree(CHECKOUT)
    table = rooms.read_table((CHECKOUT / "docs" / "rooms.md").read_text())
    paths = [path for module in rooms.cores(tree, table) for path in tree.files[module]]
    return [str(path.relative_to(CHECKOUT)) for path in paths if path.suffix == ".py"]


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
    tests = [*TESTS, *(f"--ignore={path}" for path in LEFT_OUT)]
    run = [*tool, "run", "--branch", data, f"--include={','.join(chosen)}"]
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0"]
    done = subprocess.run([*run, *options, *tests], cwd=CHECKOUT, env=environment)
    subprocess.run([*tool, "report", data, "--show-missing"], cwd=CHECKOUT, env=environment)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
