"""The runner of `make steady`: every other run is beside busy processors, a failure ends it."""

import sys
from pathlib import Path

import pytest

from tests import steady


def test_the_first_failure_ends_it_and_its_log_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = f"{sys.executable} -c"
    monkeypatch.setattr(steady, "commit", lambda: "")
    assert steady.main(["--runs=2", f"--logs={tmp_path}", f"--again={python} 'print(1)'"]) == 0
    assert steady.main(["--runs=2", f"--logs={tmp_path}", f"--again={python} 'exit(3)'"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if ": " in line]
    logs = [str(tmp_path / name) for name in ("run-01.log", "run-02-busy.log")]
    assert [(words[1], words[2], words[-1]) for words in rows] == [
        ("1:", "passed", logs[0]), ("2:", "passed", logs[1]), ("1:", "failed", logs[0]),
    ]  # fmt: skip
    assert (tmp_path / "run-02-busy.log").read_text() == "1\n"


def test_a_command_of_one_s_own_runs_once_a_processor_beside_every_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside.py"
    beside.write_text(
        "import os, pathlib, signal\n"
        f"mark = pathlib.Path({str(tmp_path)!r}, f'{{os.getpid()}}.beside')\n"
        "mark.touch()\n"
        "signal.pause()\n"
    )
    waits = tmp_path / "waits.py"
    waits.write_text(
        "import os, pathlib, sys, time\n"
        "end = time.monotonic() + 30\n"
        "def count(): return len(list(pathlib.Path(sys.argv[1]).glob('*.beside')))\n"
        "while count() < int(sys.argv[2]) and time.monotonic() < end: time.sleep(0.01)\n"
        "sys.exit(count() != int(sys.argv[2]))\n"
    )
    monkeypatch.setattr(steady, "commit", lambda: "")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    python = sys.executable
    given = [f"--logs={tmp_path}", f"--beside={python} {beside}"]
    assert steady.main(["--runs=1", f"--again={python} {waits} {tmp_path} 0", *given]) == 0
    assert not list(tmp_path.glob("*.beside"))
    assert steady.run(2, [python, str(waits), str(tmp_path), "3"], [python, str(beside)], tmp_path)
    for mark in tmp_path.glob("*.beside"):
        assert not Path("/proc", mark.stem).exists(), "it goes on behind its run"


def test_a_row_goes_on_where_it_was_stopped_and_begins_anew_behind_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(count: int, code: str, of: str = "abc") -> list[str]:
        monkeypatch.setattr(steady, "commit", lambda: of)
        again = f"--again={sys.executable} -c {code}"
        steady.main([f"--runs={count}", f"--logs={tmp_path}", again])
        lines = capsys.readouterr().out.splitlines()
        return [" ".join(line.split()[1:3]) for line in lines if line.startswith("run ")]

    assert runs(2, "'1'") == ["1: passed", "2: passed"]
    assert runs(3, "'1'") == ["3: passed"]
    assert runs(1, "'1'", "other") == ["1: passed"]
    assert runs(3, "'1'") == ["1: passed", "2: passed", "3: passed"]
    assert runs(4, "'exit(1)'") == ["4: failed"]
    assert runs(2, "'1'") == ["1: passed", "2: passed"]
    assert runs(1, "'1'", "") == ["1: passed"]
    assert runs(1, "'1'", "") == ["1: passed"], "it is not known whether that was the same"
