"""What every test may need: where the real captures lie, and what must not be skipped.

`FEEDHANDLER_REQUIRE` is a comma list of `captures`, `brokers`, `spark`: a test that would skip
for want of one of them fails instead. `FEEDHANDLER_CAPTURES` names the captures folder; without
it a folder `shared/captures` beside the checkout is used where there is one.
"""

import os
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
