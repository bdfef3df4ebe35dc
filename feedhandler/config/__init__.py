"""The gateway's configuration: one frozen object from one TOML file, and each table's settings."""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.config.amqp import AmqpConfig
    from feedhandler.config.file import (
        HISTORY_BYTES_MIN,
        ChannelConfig,
        Config,
        ControlConfig,
        GatewaySettings,
        LineConfig,
        OverlayConfig,
        ReceiveConfig,
        RefreshLineConfig,
        RetransmissionLineConfig,
        ServerConfig,
        ServerLineConfig,
        StatsConfig,
        described,
        load_config,
        loopback_config,
        loopback_lines,
        loopback_refresh_lines,
        parse_config,
    )

__all__ = [
    "HISTORY_BYTES_MIN",
    "AmqpConfig",
    "ChannelConfig",
    "Config",
    "ControlConfig",
    "GatewaySettings",
    "LineConfig",
    "OverlayConfig",
    "ReceiveConfig",
    "RefreshLineConfig",
    "RetransmissionLineConfig",
    "ServerConfig",
    "ServerLineConfig",
    "StatsConfig",
    "described",
    "load_config",
    "loopback_config",
    "loopback_lines",
    "loopback_refresh_lines",
    "parse_config",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AmqpConfig": "amqp",
        "ChannelConfig": "file",
        "Config": "file",
        "ControlConfig": "file",
        "GatewaySettings": "file",
        "HISTORY_BYTES_MIN": "file",
        "LineConfig": "file",
        "OverlayConfig": "file",
        "ReceiveConfig": "file",
        "RefreshLineConfig": "file",
        "RetransmissionLineConfig": "file",
        "ServerConfig": "file",
        "ServerLineConfig": "file",
        "StatsConfig": "file",
        "described": "file",
        "load_config": "file",
        "loopback_config": "file",
        "loopback_lines": "file",
        "loopback_refresh_lines": "file",
        "parse_config": "file",
    },
)
