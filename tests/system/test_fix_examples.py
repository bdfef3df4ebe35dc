"""The example of FIX channels does what it says: exchange, gateway and subscriber on loopback."""

import subprocess
import sys

from tests.support import free_addresses
from tests.support.checkout import CHECKOUT

EXAMPLES = CHECKOUT / "examples"


def test_books_kept_behind_two_lossy_lines_are_the_exchanges() -> None:
    words = ["--seconds", "1", "--port", str(free_addresses.port()), "--port-base"]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "fix_books.py", *words, str(free_addresses.exchange_port())],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the same as the exchange's\n")
    lost = int(done.stdout.split(" datagrams lost")[0].split()[-1].replace(",", ""))
    assert lost > 0
