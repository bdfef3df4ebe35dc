"""The example of normalised records does what it says."""

import subprocess
import sys

import pytest

from tests.support import free_addresses
from tests.support.checkout import CHECKOUT

EXAMPLE = CHECKOUT / "examples" / "venue_records.py"


def test_a_program_that_knows_no_venue_reads_all() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    words = [
        "--feed",
        "memx-memoir",
        "--seconds",
        "1",
        "--port",
        str(free_addresses.port()),
        "--port-base",
    ]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *words, str(free_addresses.exchange_port())],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *table, last = done.stdout.splitlines()
    assert last.endswith("records, the same by Databento's own library")
    assert int(last.split()[0].replace(",", "")) > 1000
    assert [line.split()[0] for line in table[2:]] == ["AAAB", "AAAC", "AAAD", "AAAE", "AAAF"]
