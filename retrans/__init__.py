"""Recovery: what was lost is requested, what cannot be had is healed by a snapshot.

`RecoveryManager` runs it for all channels of a gateway, `RecoveryIO` is what it has others do.
"""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.retrans.io import RecoveryChannel, RecoveryIO
    from feedhandler.retrans.manager import RecoveryManager
    from feedhandler.retrans.quality import Quality, QualityState
    from feedhandler.retrans.stream_events import StreamEvent, StreamEventKind

__all__ = [
    "Quality",
    "QualityState",
    "RecoveryChannel",
    "RecoveryIO",
    "RecoveryManager",
    "StreamEvent",
    "StreamEventKind",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Quality": "quality",
        "QualityState": "quality",
        "RecoveryChannel": "io",
        "RecoveryIO": "io",
        "RecoveryManager": "manager",
        "StreamEvent": "stream_events",
        "StreamEventKind": "stream_events",
    },
)
