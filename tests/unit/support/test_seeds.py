"""Seeds of random tests: the same each time, others from test to test, and as they are asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import seeds
from tests.support.checkout import CHECKOUT
from tests.support.seeds import rerun, seed_of

RANDOM_TEST = """
def test_one(seed):
    assert 0 < seed <= 1 << 32
    raise AssertionError(f"drew {seed}")
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEED", "FRESH", *seeds.BESIDE):
        monkeypatch.delenv(name, raising=False)


def test_the_seed_follows_from_the_tests_name() -> None:
    first = [seed_of(f"test_{number}") for number in range(100)]
    assert [seed_of(f"test_{number}") for number in range(100)] == first
    assert len({*first}) == 100


def test_a_chosen_seed_is_that_one_and_fresh_ones_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESH", "1")
    assert len({seed_of("test") for _ in range(20)}) > 10
    monkeypatch.setenv("SEED", "42")
    assert seed_of("test") == 42


def test_a_rerun_repeats_what_the_course_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDS", "3")
    assert rerun("a.py::test[x y]", 7) == "ROUNDS=3 SEED=7 python -m pytest 'a.py::test[x y]'"


def test_a_test_that_fails_tells_its_seed_and_how_to_run_it_again(tmp_path: Path) -> None:
    """In a session of its own, with the suite's own fixture."""
    path = tmp_path / "test_drawing.py"
    path.write_text(RANDOM_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider",
         "-m", "random", "--rootdir", str(tmp_path), str(path)],
        env={**os.environ, "SEED": "1234", "PYTHONPATH": str(CHECKOUT)},
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert "SEED=1234 python -m pytest 'test_drawing.py::test_one'" in done.stdout
    assert "drew 1234" in done.stdout
    assert done.returncode == 1
