"""Figures of the source, to stand beside ours. us, shares from 0 to 1; medians unless it says else.

None is where the source's text has lost the number.
"""

from typing import NamedTuple


class Row1(NamedTuple):
    """A row of Table 1."""

    receivers: int
    depth: int
    fan_out: int | None
    latency_us: float


class Fair(NamedTuple):
    """A row of Table 3 or 4, with H = 2."""

    receivers: int
    depth: int
    fairness: float
    latency_us: float


TABLE_1 = (
    Row1(10, 1, 10, 66),
    Row1(10, 2, None, 88),
    Row1(100, 1, 100, 351),
    Row1(100, 2, 10, 139),
    Row1(100, 3, 5, 141),
    Row1(1000, 2, 32, 282),
    Row1(1000, 3, 10, 217),
    Row1(1000, 4, 6, 226),
)
#: The lost fan-out of Table 1: the integer root of 10 that gives two hops.
FAN_OUT_LOST = 3
TABLE_2 = {
    "ideal": (0.25, 0.25, 0.25, 0.25),
    "held": (0.25, 0.2497, 0.2466, 0.2536),
    "direct unicast": (0.4979, 0.5021, 0.0, 0.0),
    "tree": (0.5695, 0.4239, 0.0040, 0.0025),
}
TABLE_3 = (Fair(100, 2, 0.92, 175), Fair(1000, 3, 0.84, 238))
TABLE_4 = (Fair(100, 2, 0.78, 169), Fair(1000, 3, 0.75, 245))
#: What the text of section 9.5 says of 1,000 receivers, beside Table 3's 0.84.
FAIRNESS_TEXT = 0.93
#: Figure 7: medians. The transit gateway is the provider's own, quoted and not simulated.
FIGURE_7 = {"tree": 129.0, "transit gateway": 228.0, "direct unicast": 254.0}
#: Figure 8c: 99th percentile of the delivery window, by H.
FIGURE_8C = {0: 350.0, 1: 150.0, 2: 120.0}
#: Figure 10: the median stays below this up to 5,000 receivers.
FIGURE_10_MAX = 350.0
#: Figure 11c: mean hold with hedging.
FIGURE_11C = 60.0
#: Section 6: of 100 receivers' reports at once.
INCAST_DROPPED = 0.20
#: Section 8: from the 0th to the 90th percentile of the way to an enclave and back, when pinned.
ENCLAVE_SPREAD_US = 5.4
