"""Skips and failures of tests that need something this machine may not have; see `conftest`."""

import os

import pytest


def absent(what: str, reason: str) -> None:
    """Skip the running test for want of `what`, or fail it where `what` is required."""
    required = os.environ.get("FEEDHANDLER_REQUIRE", "").split(",")
    if what in required:
        pytest.fail(f"{what} required by FEEDHANDLER_REQUIRE, but {reason}")
    pytest.skip(reason)


def long_where(what: str, lasts: str) -> pytest.MarkDecorator:
    """Mark a test that runs only where `what` is required, as the gate does, for it `lasts`."""
    required = os.environ.get("FEEDHANDLER_REQUIRE", "").split(",")
    return pytest.mark.skipif(
        what not in required, reason=f"takes {lasts}: FEEDHANDLER_REQUIRE={what}, as in .ci/run"
    )
