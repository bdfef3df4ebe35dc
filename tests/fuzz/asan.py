"""Fuzz runs under AddressSanitizer: the scanner's, and that of frames in any order.

    python -m tests.fuzz.asan --count 200000 --frames 200000 --seed 1

copies the checkout's sources to a temporary folder, builds the unit of the codecs there with
`FEEDHANDLER_SANITIZE=1`, and runs `tests.fuzz.scanner_fuzz`. Then it builds the AMQP engine's C
core the same way, with its assertions, and runs `tests.fuzz.sequence_fuzz` in the checkout with it.
In both libasan is loaded first and Python's own small-object allocator is off, so that every buffer
is an allocation that the sanitizer watches. Exit code: that of the run that failed (the sanitizer
aborts it at the first bad access).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
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


def watched(paths: list[Path]) -> dict[str, str]:
    """The environment of a run that the sanitizer watches, with these places on Python's path."""
    return {
        **os.environ,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        # Python frees little of what it holds when it ends: leaks are not what is looked for.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": ":".join(map(str, paths)),
    }


def run(name: str, folder: Path, environment: dict[str, str], *arguments: str) -> int:
    """A fuzzer's exit code."""
    command = [sys.executable, "-m", f"tests.fuzz.{name}", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def scanner(work: Path, count: int, seed: int) -> int:
    """The scanner's run, with the codecs built in `work`."""
    copy_sources(work)
    build = {**os.environ, "FEEDHANDLER_SANITIZE": "1", "FEEDHANDLER_UNITS": BUILT}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=work, env=build, check=True, stdout=subprocess.DEVNULL)
    environment = {**watched([work]), "FEEDHANDLER_MIXED": "1"}
    return run("scanner_fuzz", work, environment, "--count", str(count), "--seed", str(seed))


def sequences(work: Path, count: int, seed: int) -> int:
    """The run of frames in any order, with the engine built in `work`."""
    flags = "-fsanitize=address -g -O1 -fno-omit-frame-pointer"
    build = {**os.environ, "CFLAGS": flags, "LDFLAGS": "-fsanitize=address"}
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    command += ["--no-cache-dir", "--no-binary", ":all:", "--target", str(work)]
    engine = f"python-qpid-proton=={metadata.version('python-qpid-proton')}"
    subprocess.run([*command, engine], env=build, check=True)
    environment = watched([work, CHECKOUT])
    arguments = ("--count", str(count), "--seed", str(seed))
    return run("sequence_fuzz", CHECKOUT, environment, *arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200_000, help="packets to mutate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frames", type=int, default=200_000, help="frames in any order")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedhandler-asan-") as folder:
        places = [Path(folder, name) for name in ("sources", "engine")]
        for place in places:
            place.mkdir()
        return scanner(places[0], options.count, options.seed) or sequences(
            places[1], options.frames, options.seed
        )


if __name__ == "__main__":
    sys.exit(main())
