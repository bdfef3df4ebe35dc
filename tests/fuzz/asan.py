"""Fuzz runs under AddressSanitizer: the scanner's, the FIX codec's, that of frames in any order.

    python -m tests.fuzz.asan --count 200000 --frames 200000 --seed 1

copies the checkout's sources to a temporary folder, builds there with `FEEDHANDLER_SANITIZE=1` the
units that a fuzzer runs, and beside them the AMQP engine's C core the same way, with its
assertions. `tests.fuzz.scanner_fuzz` and `tests.fuzz.fix_fuzz` run with the first,
`tests.fuzz.sequence_fuzz`, at a node, with both; a count of 0 leaves one out. libasan is loaded
first and Python's own small-object allocator is off, so that every buffer is an allocation that the
sanitizer watches. Exit code: that of the run that failed (the sanitizer aborts it at the first bad
access).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from tests.support.checkout import CHECKOUT

ROOMS = ("codecs", "retrans", "replay", "feedhandler", "tests")
TRANSLATED = CHECKOUT / "build" / "cython"
#: The compiled units of each fuzzer.
SCANNER_UNITS = "codecs"
NODE_UNITS = "codecs,ingest,retrans,amqp"


def copy_sources(to: Path) -> None:
    """The four rooms, the tests and what builds them, without anything compiled; and the C that
    they were translated to, where that is there."""
    ignore = shutil.ignore_patterns("*.so", "*.c", "__pycache__", ".hypothesis")
    for room in ROOMS:
        shutil.copytree(CHECKOUT / room, to / room, symlinks=True, ignore=ignore)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, to / name)
    if TRANSLATED.exists():
        shutil.copytree(TRANSLATED, to / TRANSLATED.relative_to(CHECKOUT))


def library(name: str) -> str:
    """The path of one of the compiler's run-time libraries."""
    compiler = os.environ.get("CC", "gcc")
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def watched(paths: list[Path]) -> dict[str, str]:
    """The environment of a run that the sanitizer watches, with these folders on Python's path."""
    return {
        **os.environ,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        # Python frees little of what it holds when it ends: leaks are not what is looked for. What
        # is freed is kept for a while, to be recognised: the little of it counts as no growth.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:quarantine_size_mb=8",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": ":".join(map(str, paths)),
    }


def run(name: str, folder: Path, environment: dict[str, str], *arguments: str) -> int:
    """A fuzzer's exit code."""
    command = [sys.executable, "-m", f"tests.fuzz.{name}", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def build(work: Path, units: str) -> None:
    """Copy the sources to `work` and compile these units there."""
    copy_sources(work)
    environment = {**os.environ, "FEEDHANDLER_SANITIZE": "1", "FEEDHANDLER_UNITS": units}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(
        command,
        cwd=work,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def build_engine(work: Path) -> None:
    """Install the AMQP engine into `work`, its C core compiled for the sanitizer."""
    flags = "-fsanitize=address -g1 -O0 -fno-omit-frame-pointer"
    environment = {**os.environ, "CFLAGS": flags, "LDFLAGS": "-fsanitize=address"}
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    command += ["--no-cache-dir", "--no-binary", ":all:", "--target", str(work)]
    engine = f"python-qpid-proton=={metadata.version('python-qpid-proton')}"
    subprocess.run([*command, engine], env=environment, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200_000, help="packets to mutate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frames", type=int, default=200_000, help="frames in any order")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedhandler-asan-") as folder:
        work, engine = Path(folder, "sources"), Path(folder, "engine")
        work.mkdir()
        with ThreadPoolExecutor() as builders:
            builds = [builders.submit(build, work, NODE_UNITS if options.frames else SCANNER_UNITS)]
            if options.frames:
                builds.append(builders.submit(build_engine, engine))
        for each in builds:
            each.result()
        environment = {**watched([engine, work]), "FEEDHANDLER_MIXED": "1"}
        seed = ("--seed", str(options.seed))
        failed = 0
        if options.count:
            count = ("--count", str(options.count))
            failed = run("scanner_fuzz", work, environment, *count, *seed)
            failed = failed or run("fix_fuzz", work, environment, *count, *seed)
        if options.frames and not failed:
            count = ("--count", str(options.frames))
            failed = run("sequence_fuzz", work, environment, *count, *seed)
    return failed


if __name__ == "__main__":
    sys.exit(main())
