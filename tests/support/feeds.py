"""Which built-in feeds there are, for tests that go through all of a kind."""

from feedhandler.codecs import list_feeds, load_feed
from feedhandler.codecs.kinds import Reject

#: Names of the feeds whose packets have a header with fields at fixed places.
BINARY_FEEDS = [name for name in list_feeds() if load_feed(name).description.framing == "binary"]
#: Reasons that only feeds framed by FIX give.
FIX_REASONS = frozenset({Reject.CHECKSUM, Reject.MALFORMED})
