"""`feedhandler run`: a gateway from its configuration, until it is told to finish."""

import asyncio
import errno
from pathlib import Path

from feedhandler.codecs.errors import ConfigError
from feedhandler.config import Config, load_config
from feedhandler.ops.console import run_async, stderr_console
from feedhandler.ops.feeds import open_feed


def run(path: Path) -> int:
    """Run the gateway configured in `path`; SIGINT and SIGTERM drain it."""
    config = load_config(path)
    open_feed(config.gateway.feed)
    return run_async(lambda stop: serve(config, stop), config.gateway.loop)


async def serve(config: Config, stop: asyncio.Event) -> int:
    """Run a gateway until `stop`; says on stderr when it is ready."""
    from feedhandler.gateway import Gateway

    def ready() -> None:
        lines = sum(len(channel.lines) for channel in config.channels)
        host, port = gateway.node.address
        stderr_console().print(
            f"{config.gateway.name}: ready: {len(config.channels)} channels, {lines} lines, "
            f"AMQP on {host}:{port}",
            markup=False,
        )

    try:
        gateway = Gateway(config)
        await gateway.run(ready, stop)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{config.amqp.listen}: already in use",
                "end what listens there, or change amqp.listen",
            ) from None
        raise
    return 0
