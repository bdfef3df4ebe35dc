"""The runner of `make steady`: every other run is beside busy processors, a failure ends it."""

import sys
from pathlib import Path

import pytest

from tests import steady


def test_the_first_failure_ends_it_and_its_log_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = f"{sys.executable} -c"
    assert steady.main(["--runs=2", f"--logs={tmp_path}", f"--again={python} 'print(1)'"]) == 0
    assert steady.main(["--runs=2", f"--logs={tmp_path}", f"--again={python} 'exit(3)'"]) == 1
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    logs = [str(tmp_path / name) for name in ("run-01.log", "run-02-busy.log")]
    assert [(words[1], words[2], words[-1]) for words in told] == [
        ("1:", "passed", logs[0]), ("2:", "passed", logs[1]), ("1:", "failed", logs[0]),
    ]  # fmt: skip
    assert (tmp_path / "run-02-busy.log").read_text() == "1\n"
