"""A gateway put together and run, and what a feed must have for one.

`Gateway` is a gateway with its sockets, threads and clock, `GatewayCore` the same without them.
"""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.gateway.capabilities import (
        CAPABILITIES,
        Capability,
        capabilities_of,
        misfit_of,
        open_config,
    )
    from feedhandler.gateway.core import GatewayCore, GatewayIO
    from feedhandler.gateway.process import STOP_SECONDS, Gateway

__all__ = [
    "CAPABILITIES",
    "STOP_SECONDS",
    "Capability",
    "Gateway",
    "GatewayCore",
    "GatewayIO",
    "capabilities_of",
    "misfit_of",
    "open_config",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CAPABILITIES": "capabilities",
        "Capability": "capabilities",
        "Gateway": "process",
        "GatewayCore": "core",
        "GatewayIO": "core",
        "STOP_SECONDS": "process",
        "capabilities_of": "capabilities",
        "misfit_of": "capabilities",
        "open_config": "capabilities",
    },
)
