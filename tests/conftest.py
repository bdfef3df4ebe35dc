"""What every test may need: where the real captures lie, and what must not be skipped.

`FEEDHANDLER_REQUIRE` is a comma list of `captures`, `brokers`, `spark`: a test that would skip
for want of one of them fails instead. `FEEDHANDLER_CAPTURES` names the captures folder; without
it a folder `shared/captures` beside the checkout is used where there is one.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


def absent(what: str, reason: str) -> None:
    """Skip the running test for want of `what`, or fail it where `what` is required."""
    required = os.environ.get("FEEDHANDLER_REQUIRE", "").split(",")
    if what in required:
        pytest.fail(f"{what} required by FEEDHANDLER_REQUIRE, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real captures (`iex/`, `nyse/`)."""
    folder = Path(os.environ.get("FEEDHANDLER_CAPTURES", CHECKOUT.parent / "shared" / "captures"))
    if not folder.is_dir():
        absent("captures", f"no captures at {folder}; set FEEDHANDLER_CAPTURES to their folder")
    return folder


@pytest.fixture(scope="session")
def rabbitmq_script() -> Path:
    """What starts RabbitMQ 3.10, as Debian's `rabbitmq-server` installs it."""
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    if not script.exists() or shutil.which("epmd") is None:
        absent("brokers", f"no RabbitMQ at {script}; install rabbitmq-server")
    return script


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """No test leaves a signal to somebody else than it found: the next test would not hear it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    assert after == before, "a signal's handler was left behind"
