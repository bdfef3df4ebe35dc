"""The examples of keyed queues do what they say, over AMQP."""

import subprocess
import sys

from tests.support import free_addresses
from tests.support.checkout import CHECKOUT

EXAMPLES = CHECKOUT / "examples"


def run(name: str, *words: str) -> str:
    """Run an example, require the exit code 0, and return what it prints."""
    command = [sys.executable, EXAMPLES / name, *words, "--port", str(free_addresses.port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_ledger_behind_a_keyed_queue_is_that_of_one_worker() -> None:
    output = run("keyed_ledger.py", "--transfers", "400", "--crashes", "1")
    assert "400 transfers by 8 workers over 1 crashes" in output
    assert "4000.00 in all; the same as by one" in output


def test_books_kept_by_eight_workers_are_those_of_one() -> None:
    output = run("keyed_books.py", "--seconds", "0.02", "--rate", "2mbps").split()
    books = output.index("books")
    assert output[books - 1] == output[output.index("of", books) - 1]
