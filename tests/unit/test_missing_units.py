"""A checkout in which some units are compiled and others are not: `make demo` makes one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import feedhandler
from feedhandler import _compiled
from feedhandler.ops import scenes as demo_scenes

PACKAGE = Path(feedhandler.__file__).parent


def without(unit: str, folder: Path) -> Path:
    """The package as it stands, but for one unit."""
    if _compiled.missing_units():
        pytest.skip("not all units are compiled")
    linked = folder / "feedhandler"
    (linked / "_units").mkdir(parents=True)
    for entry in [*PACKAGE.iterdir(), *(PACKAGE / "_units").iterdir()]:
        if entry.name not in ("_units", "__pycache__") and not entry.name.startswith(f"{unit}."):
            (linked / entry.relative_to(PACKAGE)).symlink_to(entry.resolve())
    return folder


@pytest.mark.parametrize(
    ("unit", "command"),
    [("amqp", "doctor"), ("subscribing", "demo"), ("lab", "lab --out report --clients 1")],
)
def test_a_unit_that_a_command_lacks_is_one_line_before_it_begins(
    unit: str, command: str, tmp_path: Path
) -> None:
    folder = without(unit, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("FEEDHANDLER_DEBUG", None)
    done = subprocess.run(
        [sys.executable, "-m", "feedhandler", *command.split()],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert re.search(rf"\b{unit}\b.* not compiled, but other", done.stderr)
    assert done.stderr.endswith("(run `make build`)\n")


@pytest.mark.parametrize(
    ("missing", "environment", "fault"),
    [
        ([], {}, ""),
        (["lab"], {}, ""),
        (["amqp", "ingest", "lab"], {}, "units amqp, ingest not compiled, but others are"),
        (list(_compiled.UNITS), {}, ""),
        (["amqp"], {"FEEDHANDLER_MIXED": "1"}, ""),
    ],
)
def test_only_units_that_are_needed_and_missing_beside_others_are_a_fault(
    missing: list[str],
    environment: dict[str, str],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEEDHANDLER_MIXED", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_compiled, "missing_units", lambda: missing)
    if not fault:
        _compiled.require_units(demo_scenes.UNITS)
        return
    with pytest.raises(_compiled.NotCompiledError, match=f"^{fault}$"):
        _compiled.require_units(demo_scenes.UNITS)


def test_make_demo_compiles_what_the_demo_asks_for() -> None:
    makefile = (PACKAGE.parent / "Makefile").read_text()
    (units,) = re.findall(r"^DEMO_UNITS := (.*)$", makefile, re.MULTILINE)
    assert tuple(units.split()) == demo_scenes.UNITS


def test_the_doctor_names_what_make_demo_has_not_compiled(tmp_path: Path) -> None:
    folder = without("journal", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "feedhandler", "doctor"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    found, remedy, *_ = done.stdout.splitlines()
    assert found.split("  ", 1)[0] == "fail"
    assert "units missing: journal" in found
    assert "make build" in remedy
