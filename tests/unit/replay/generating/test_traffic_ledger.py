"""A ledger of generated traffic: sessions of any length."""

import numpy as np
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.traffic_ledger import (
    SECONDS,
    SECONDS_MAX,
    TrafficLedger,
)

SECOND_NS = 1_000_000_000


def block(second: int) -> dict[str, np.ndarray]:
    """A packet of service 102 in that second after midnight."""
    times = np.array([second * SECOND_NS], np.int64)
    return {
        "time_a_ns": times, "time_b_ns": times + 1_000, "channel": np.ones(1, np.uint8),
        "offset": np.zeros(1, np.uint32), "length": np.array([100], np.uint16),
        "messages": np.array([2], np.uint16), "lost": np.zeros(1, np.uint8),
    }  # fmt: skip


@pytest.mark.parametrize("last", [SECONDS - 1, SECONDS, 3 * SECONDS])
def test_a_session_may_last_for_days(last: int) -> None:
    ledger = TrafficLedger(0, "UTC")
    for second in (60, last):
        ledger.count(np.zeros(100, np.uint8), block(second))
    assert ledger.totals()["102"]["packets"] == ledger.packets == 4
    minutes = ledger.minutes()
    assert minutes["first"] == "00:01:00"
    assert minutes["packets"]["102"][0] == minutes["packets"]["102"][-1] == 2
    assert len(minutes["packets"]["102"]) == last // 60
    assert [peak["packets"] for peak in ledger.peaks(by_bytes=False)] == [2, 2]


def test_a_session_that_would_fill_the_memory_is_refused() -> None:
    ledger = TrafficLedger(0, "UTC")
    with pytest.raises(UsageError, match="more than 32 days"):
        ledger.count(np.zeros(100, np.uint8), block(SECONDS_MAX))
