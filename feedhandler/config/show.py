"""A configuration written as TOML, for `feedhandler config show`.

The text loads to an equal object, except for a password in the URL of a `[[publish]]` table and a
user's hash, which are masked; `password_env` and `password_file` are kept.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from feedhandler.codecs.toml_text import toml_value
from feedhandler.config import Config, described
from feedhandler.config.amqp import MASK, AmqpConfig, UserConfig
from feedhandler.config.observing import MetricsConfig
from feedhandler.config.publishing import PublishConfig
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.keyed.definition import Definition

#: The sections, one table each, in the order in which they are written.
_MANY = ("servers", "channels", "publish", "queues")
#: Tables whose tuples are lists of words, not further tables.
_LISTS = UserConfig | MetricsConfig | DurableQueueConfig | Definition
SECTIONS = tuple(name for name in Config.__struct_fields__ if name not in _MANY)


def to_toml(config: Config, comments: bool = False) -> str:
    """Write the effective configuration as TOML, defaults included.

    With `comments`, each setting's meaning stands above it.
    """
    parts = []
    for section in SECTIONS:
        parts.append(_table_text(f"[{section}]", getattr(config, section), comments))
        if section == "amqp":
            parts.extend(_node_tables(config.amqp, comments))
    for number, destination in enumerate(config.publish):
        parts.append(_table_text("[[publish]]", destination, comments and number == 0))
    for number, queue in enumerate(config.queues):
        parts.append(_table_text("[[queue]]", queue, comments and number == 0))
        if queue.key is not None:
            parts.append(_table_text("[queue.key]", queue.key, comments))
    for number, server in enumerate(config.servers):
        parts.append(_table_text("[[server]]", server, comments and number == 0))
        for index, group in enumerate(server.lines):
            explain = comments and number == 0 and index == 0
            parts.append(_table_text("[[server.line]]", group, explain))
    for number, channel in enumerate(config.channels):
        explain = comments and number == 0
        parts.append(_table_text("[[channel]]", channel, explain))
        for key, lines in (
            ("line", channel.lines),
            ("refresh_line", channel.refresh_lines),
            ("retransmission_line", channel.retransmission_lines),
        ):
            for position, line in enumerate(lines):
                parts.append(_table_text(f"[[channel.{key}]]", line, explain and position == 0))
                if line.tcp is not None:
                    parts.append(_table_text(f"[channel.{key}.tcp]", line.tcp, explain))
    return "\n".join(parts)


def _node_tables(amqp: AmqpConfig, comments: bool) -> Iterator[str]:
    """Yield the tables within `[amqp]`."""
    yield _table_text("[amqp.tls]", amqp.tls, comments)
    yield _table_text("[amqp.limits]", amqp.limits, comments)
    for number, user in enumerate(amqp.users):
        yield _table_text("[[amqp.users]]", user, comments and number == 0)


def _table_text(header: str, table: Struct, comments: bool) -> str:
    lines = [header]
    fields = msgspec.structs.fields(type(table))
    for item, (_, description) in zip(fields, described(type(table)), strict=True):
        value = getattr(table, item.name)
        if isinstance(value, Struct | None) or (
            isinstance(value, tuple) and not isinstance(table, _LISTS)
        ):
            continue
        if isinstance(table, PublishConfig) and item.name == "to":
            value = table.shown_to
        if isinstance(table, UserConfig) and item.name == "password" and value:
            value = MASK
        if comments and description:
            lines.append(f"# {description}")
        lines.append(f"{item.encode_name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"
