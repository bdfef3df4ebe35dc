"""A market-data gateway: two multicast lines in, one ordered AMQP 1.0 stream out."""

import os as _os

if _os.environ.get("FEEDHANDLER_PURE"):
    from feedhandler._compiled import prefer_interpreted as _prefer_interpreted

    _prefer_interpreted()
