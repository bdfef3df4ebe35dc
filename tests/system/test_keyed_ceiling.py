"""The ceiling in C of one hot key: as many turns as it was asked for, each on the disk."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.programs import compiled

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_it_makes_as_many_turns_as_it_is_asked_for(tmp_path: Path) -> None:
    program = compiled("keyed_ceiling", tmp_path)
    file = tmp_path / "file"
    done = subprocess.run([program, file, "20"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["turns"], report["seconds"] > 0) == (20, True)
    assert file.stat().st_size == 8 << 20, "filled before, so that a turn does not grow it"


def test_a_wrong_word_is_answered_with_how_it_is_called(tmp_path: Path) -> None:
    program = compiled("keyed_ceiling", tmp_path)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "usage: keyed_ceiling FILE TURNS\n")
