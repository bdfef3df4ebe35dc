"""The gateway's configuration: one frozen object from one TOML file, and each table's settings."""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.config.amqp import AmqpConfig as AmqpConfig
    from feedhandler.config.amqp import UserConfig as UserConfig
    from feedhandler.config.file import HISTORY_BYTES_MIN as HISTORY_BYTES_MIN
    from feedhandler.config.file import ChannelConfig as ChannelConfig
    from feedhandler.config.file import Config as Config
    from feedhandler.config.file import ControlConfig as ControlConfig
    from feedhandler.config.file import GatewaySettings as GatewaySettings
    from feedhandler.config.file import LineConfig as LineConfig
    from feedhandler.config.file import OverlayConfig as OverlayConfig
    from feedhandler.config.file import ReceiveConfig as ReceiveConfig
    from feedhandler.config.file import RefreshLineConfig as RefreshLineConfig
    from feedhandler.config.file import RetransmissionLineConfig as RetransmissionLineConfig
    from feedhandler.config.file import ServerConfig as ServerConfig
    from feedhandler.config.file import ServerLineConfig as ServerLineConfig
    from feedhandler.config.file import StatsConfig as StatsConfig
    from feedhandler.config.file import described as described
    from feedhandler.config.file import load_config as load_config
    from feedhandler.config.file import loopback_config as loopback_config
    from feedhandler.config.file import loopback_lines as loopback_lines
    from feedhandler.config.file import loopback_refresh_lines as loopback_refresh_lines
    from feedhandler.config.file import parse_config as parse_config

__getattr__ = lazy_names(__name__)
