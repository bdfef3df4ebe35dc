"""The scanner's fuzz run under AddressSanitizer.

    python -m tests.fuzz.asan --count 200000 --seed 1

copies the checkout's sources to a temporary folder, builds the unit of the codecs there with
`FEEDHANDLER_SANITIZE=1`, and runs `tests.fuzz.scanner_fuzz` with libasan loaded first and Python's
own small-object allocator off, so that every buffer is an allocation that the sanitizer watches.
Exit code: that of the run (the sanitizer aborts it at the first bad access).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("codecs", "retrans", "replay", "feedhandler", "tests")
BUILT = "codecs"


def copy_sources(to: Path) -> None:
    """The four rooms, the tests and what builds them, without anything compiled."""
    ignore = shutil.ignore_patterns("*.so", "*.c", "__pycache__", ".hypothesis")
    for room in ROOMS:
        shutil.copytree(CHECKOUT / room, to / room, symlinks=True, ignore=ignore)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, to / name)


def library(name: str) -> str:
    """The path of one of the compiler's run-time libraries."""
    compiler = os.environ.get("CC", "gcc")
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200_000, help="packets to mutate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedhandler-asan-") as folder:
        work = Path(folder)
        copy_sources(work)
        build = {**os.environ, "FEEDHANDLER_SANITIZE": "1", "FEEDHANDLER_UNITS": BUILT}
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=work, env=build, check=True, stdout=subprocess.DEVNULL)
        watched = {
            **os.environ,
            "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
            # Python frees little of what it holds when it ends: leaks are not what is looked for.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "PYTHONMALLOC": "malloc",
            "FEEDHANDLER_MIXED": "1",
            "PYTHONPATH": str(work),
        }
        command = [sys.executable, "-m", "tests.fuzz.scanner_fuzz"]
        command += ["--count", str(options.count), "--seed", str(options.seed)]
        return subprocess.run(command, cwd=work, env=watched, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
