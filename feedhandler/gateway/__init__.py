"""A gateway put together and run, and what a feed must have for one.

`Gateway` is a gateway with its sockets, threads and clock, `GatewayCore` the same without them.
"""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.gateway.capabilities import CAPABILITIES as CAPABILITIES
    from feedhandler.gateway.capabilities import Capability as Capability
    from feedhandler.gateway.capabilities import capabilities_of as capabilities_of
    from feedhandler.gateway.capabilities import misfit_of as misfit_of
    from feedhandler.gateway.capabilities import open_config as open_config
    from feedhandler.gateway.core import GatewayCore as GatewayCore
    from feedhandler.gateway.core import GatewayIO as GatewayIO
    from feedhandler.gateway.named_files import check_named as check_named
    from feedhandler.gateway.process import STOP_SECONDS as STOP_SECONDS
    from feedhandler.gateway.process import Gateway as Gateway

__getattr__ = lazy_names(__name__)
