"""Recovery: what was lost is requested, what cannot be had is healed by a snapshot.

`RecoveryManager` runs it for all channels of a gateway, `RecoveryIO` is what it has others do.
"""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.retrans.io import RecoveryChannel as RecoveryChannel
    from feedhandler.retrans.io import RecoveryIO as RecoveryIO
    from feedhandler.retrans.manager import RecoveryManager as RecoveryManager
    from feedhandler.retrans.quality import Quality as Quality
    from feedhandler.retrans.quality import QualityState as QualityState
    from feedhandler.retrans.stream_events import StreamEvent as StreamEvent
    from feedhandler.retrans.stream_events import StreamEventKind as StreamEventKind

__getattr__ = lazy_names(__name__)
