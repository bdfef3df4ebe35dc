"""Commands whose disk is full: one line with the remedy, exit code 70, nothing in part left behind.

A limit on the size of files stands for the full disk: any file ends there.
"""

import contextlib
import errno
import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedhandler.characterise import lake, report
from feedhandler.characterise.cluster import DiskFault, disk_fault_or
from feedhandler.cli.app import chosen
from feedhandler.codecs.errors import HostFault, UsageError, unwritable
from feedhandler.ops import pipeline
from feedhandler.terminal.console import ExitCode, run_guarded

FILE_BYTES_MAX = 2_000
REMEDY = "(larger than the file system or the shell's `ulimit -f` allows)"
SESSION = "generate --rate 2mbps --duration 1s --seed 3"
FEED = "--feed euronext-utp-md --master none"


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Meanwhile no file gets longer than `FILE_BYTES_MAX`.

    Nor is the bytecode of what is imported then written: Python would keep half of it.
    """
    before, wrote_none = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = wrote_none


def run(words: str) -> int:
    return run_guarded(lambda: chosen(words.split())())


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture that is larger than a file may be."""
    path = tmp_path_factory.mktemp("session") / "session.pcap"
    assert run(f"{SESSION} --out {path}") == ExitCode.OK
    assert path.stat().st_size > 50 * FILE_BYTES_MAX
    return path


@pytest.mark.parametrize(
    "words",
    [
        f"{SESSION} --out OUT/made.pcap",
        f"{SESSION} --out OUT/made.pcap.gz",
        f"{SESSION} --out OUT/made.pcap.zst",
        "replay SESSION --as-recorded --speed max --write OUT/made.pcap",
        "replay SESSION --as-recorded --speed max --write OUT/made.pcap.gz",
        "replay SESSION --as-recorded --speed max --write OUT/made.pcap.zst",
        f"characterise SESSION {FEED} --out OUT",
        f"characterise SESSION {FEED} --out OUT --write-profile OUT/profile.json",
        f"characterise SESSION {FEED} --out OUT --once",
        f"pipeline SESSION {FEED} --lake OUT",
    ],
)
def test_a_full_disk_is_one_line_with_its_remedy_and_leaves_nothing_in_part(
    session: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
) -> None:
    if "--write-profile" in words or "--once" in words:
        # The other way to characterise draws its figures.
        monkeypatch.setattr(report, "available", lambda: False)
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    out = tmp_path / "out"
    out.mkdir()
    with full_disk():
        code = run(words.replace("SESSION", str(session)).replace("OUT", str(out)))
        gc.collect()
    lines = [each for each in capsys.readouterr().err.splitlines() if "about" not in each]
    assert code == ExitCode.BUG, lines
    assert not unraisable, "a file that is closed once more as it is collected"
    assert len(lines) == 1
    assert "file too large" in lines[0]
    assert str(out) in lines[0]
    assert lines[0].endswith(REMEDY)
    left = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in left if path.stat().st_size >= FILE_BYTES_MAX], left
    assert not [path for path in left if path.name.endswith((".new", ".part"))], left


def test_so_is_a_full_disk_under_the_standard_output(
    session: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with full_disk(), (tmp_path / "decoded").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        code = run(f"decode {session} --json")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            out.close()
    assert code == ExitCode.BUG
    assert capsys.readouterr().err == f"feedhandler: file too large {REMEDY}\n"


def test_what_a_worker_could_not_write_is_sent_and_raised_here(tmp_path: Path) -> None:
    def write(path: Path) -> int:
        return path.write_bytes(bytes(2 * FILE_BYTES_MAX))

    with full_disk():
        fault = disk_fault_or(write, tmp_path / "slice")
    assert fault == DiskFault(errno.EFBIG, "")
    assert disk_fault_or(len, b"abc") == 3
    with pytest.raises(FileNotFoundError):
        disk_fault_or(write, tmp_path / "nowhere" / "slice")

    class Context:
        """Of Spark's context what the mapper uses; a value is sent as bytes."""

        def parallelize(self, values: list[Path], count: int) -> "Context":
            self.values = values
            return self

        def map(self, function: object) -> "Context":
            self.function = function
            return self

        def collect(self) -> list[object]:
            with full_disk():
                return [self.function(each) for each in self.values]  # type: ignore[operator]

    mapper = pipeline.spark_mapper(Context())
    assert list(mapper(len, [b"ab", b"c"])) == [2, 1]
    with pytest.raises(OSError, match="File too large") as raised:
        mapper(write, [tmp_path / "slice"])
    assert raised.value.errno == errno.EFBIG
    with pytest.raises(UsageError, match=r"Spark ended the job: .*by zero"):
        mapper(lambda value: 1 // value, [0])


@pytest.mark.parametrize(
    ("number", "kind", "reason"),
    [
        (errno.ENOSPC, HostFault, "cannot write x: no space left on device (make room there,"),
        (errno.EDQUOT, HostFault, "cannot write x: disk quota exceeded (the quota is used up:"),
        (errno.EIO, HostFault, "cannot write x: input/output error (see to the disk)"),
        (errno.EACCES, UsageError, "cannot write x: permission denied (check --out)"),
        (errno.EROFS, UsageError, "cannot write x: read-only file system (check --out)"),
    ],
)
def test_a_disk_is_the_hosts_fault_and_a_path_the_callers(
    number: int, kind: type[Exception], reason: str
) -> None:
    error = unwritable("x", OSError(number, os.strerror(number)), "check --out")
    assert type(error) is kind
    assert str(error).startswith(reason)


def test_a_lake_that_may_not_be_written_says_so(
    session: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(lake, "_make_durable", refuse)
    assert run(f"pipeline {session} {FEED} --lake {tmp_path}/lake") == ExitCode.USAGE
    line = f"cannot write to {tmp_path}/lake: read-only file system (check --lake)"
    assert capsys.readouterr().err == f"feedhandler: {line}\n"
    assert not list((tmp_path / "lake").iterdir())
