"""Lists of the built-in feeds, for tests that go through all of a kind; a feed's table, kept."""

import functools
from types import ModuleType
from typing import Any

from feedhandler.codecs import Feed, list_feeds, load_feed
from feedhandler.codecs.kinds import Reject

#: Names of the feeds whose packets have a header with fields at fixed offsets.
BINARY_FEEDS = [name for name in list_feeds() if load_feed(name).description.framing == "binary"]
#: Reasons that only feeds framed by FIX give.
FIX_REASONS = frozenset({Reject.CHECKSUM, Reject.MALFORMED})
#: The binary feeds by what their packets and messages are framed like.
FAMILIES = {
    "UTP-MD": ("euronext-utp-md",),
    "XDP": ("nyse-integrated-pillar", "nyse-integrated-xdp", "nyse-openbook-ultra"),
    "MoldUDP64 and ITCH": ("nasdaq-totalview-itch", "asx-ntp-itch"),
    "SBE": ("cme-mdp3", "b3-umdf", "memx-memoir"),
    "PITCH": ("cboe-byx-pitch", "cboe-c1-options-pitch"),
    "IEX-TP": ("iex-deep", "iex-deep-plus", "iex-tops"),
    "CTA": ("siac-cqs", "siac-cts"),
    "EOBI": ("eurex-eobi",),
    "iMpact": ("ice-impact",),
    "MACH": ("miax-onyx-tom",),
    "OTC Link": ("otc-link-ats",),
}


@functools.lru_cache(maxsize=2)
def table_of(feed: Feed, twin: ModuleType) -> Any:
    """The feed's table of a twin of the scanner: the interpreted one takes 20 ms to make."""
    return feed.table_of(twin)
