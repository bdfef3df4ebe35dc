"""`feedhandler config check|show`: check a file, and print the configuration in force."""

from pathlib import Path

from feedhandler.config import load_config, loopback_config
from feedhandler.config.show import to_toml
from feedhandler.terminal.console import ExitCode


def check(path: Path) -> int:
    """Check a configuration and print `ok`.

    Raises `ConfigError` with the file, line and key that is wrong, that asks for what the feed does
    not have, or that names a file which cannot be used.
    """
    from feedhandler.gateway import check_named, open_config

    config, feed = open_config(path)
    check_named(config, feed, path)
    lines = sum(len(channel.lines) for channel in config.channels)
    print(f"{path}: ok: feed {config.gateway.feed}, {len(config.channels)} channels, {lines} lines")
    return ExitCode.OK


def show(path: Path | None, comments: bool) -> int:
    """Print the configuration in force, defaults included; without a file, a whole example."""
    config = load_config(path) if path else loopback_config(listen="127.0.0.1:5672")
    print(to_toml(config, comments), end="")
    return ExitCode.OK
