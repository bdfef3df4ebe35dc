"""The example of a ledger does what it says, over AMQP, crashes included."""

import subprocess
import sys
from pathlib import Path

from tests.support import places

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "keyed_ledger.py"


def test_a_ledger_behind_a_keyed_queue_is_that_of_one_worker() -> None:
    words = ["--transfers", "400", "--crashes", "1", "--port", str(places.port())]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "400 transfers by 8 workers over 1 crashes" in done.stdout
    assert "4000.00 in all; the same as by one" in done.stdout
