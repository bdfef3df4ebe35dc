"""A checkout in which some units are compiled and others are not, or do not fit one another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import feedhandler
from feedhandler import _compiled

PACKAGE = Path(feedhandler.__file__).parent


@pytest.fixture
def without_amqp(tmp_path: Path) -> Path:
    """The package as it stands, but for one unit."""
    if _compiled.missing_units():
        pytest.skip("not all units are compiled")
    linked = tmp_path / "feedhandler"
    (linked / "_units").mkdir(parents=True)
    for entry in [*PACKAGE.iterdir(), *(PACKAGE / "_units").iterdir()]:
        here = linked / entry.relative_to(PACKAGE)
        if entry.name not in ("_units", "__pycache__") and not entry.name.startswith("amqp."):
            here.symlink_to(entry.resolve())
    return tmp_path


@pytest.mark.parametrize("command", ["demo", "doctor", "--help"])
def test_a_unit_that_is_missing_beside_others_is_one_line_before_anything_begins(
    without_amqp: Path, command: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(without_amqp)}
    environment.pop("FEEDHANDLER_DEBUG", None)
    done = subprocess.run(
        [sys.executable, "-m", "feedhandler", command],
        cwd=without_amqp, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "amqp" in done.stderr
    assert "(run `make build`)" in done.stderr


@pytest.mark.parametrize(
    ("missing", "environment", "fault"),
    [
        ([], {}, ""),
        (["lab"], {}, "unit lab not compiled, but others are"),
        (["amqp", "lab"], {}, "units amqp, lab not compiled, but others are"),
        (list(_compiled.UNITS), {}, ""),
        (["lab"], {"FEEDHANDLER_MIXED": "1"}, ""),
    ],
)
def test_some_units_without_the_others_are_a_fault_all_or_none_is_not(
    missing: list[str],
    environment: dict[str, str],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEEDHANDLER_MIXED", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_compiled, "missing_units", lambda: missing)
    assert _compiled.mixed_fault() == fault
