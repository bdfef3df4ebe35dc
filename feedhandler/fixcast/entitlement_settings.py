"""Configuration of an entitlement server: users, channels, keys.

One TOML file:

    listen = "10.1.0.5:31950"
    keys = "keys"                  # folder of keys
    channels = "channels.toml"     # their definition
    dictionary = "FIX50SP2.xml"    # may be left out
    certificate = "server.pem"     # TLS, with its key
    certificate_key = "server.key"

    [[user]]
    name = "ann"
    password = "scrypt$..."        # as `feedhandler user` makes it
    channels = ["equities-1"]

    [types]                        # message types; none: all
    equities-1 = ["W", "X"]

Paths are relative to the file. Users and keys are read again while the server runs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from feedhandler.addresses import split_address
from feedhandler.amqp.users import User, Users, parse_hash
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.toml_text import (
    WrongKey,
    convert,
    parse_as,
    read_text,
    toml_value,
)
from feedhandler.fixcast.channels import Channels, read_channels
from feedhandler.fixcast.entitlement_messages import Dictionary, Grant
from feedhandler.fixcast.key_files import KeyFolder

#: Upper limit on users: each is checked when something changes.
USERS_MAX = 10_000
#: Upper limit on the bytes of a dictionary: it is sent in one message.
DICTIONARY_BYTES_MAX = 900_000


class EntitledUser(Struct, frozen=True, kw_only=True):
    """A user: the hash of the password, and channels by id."""

    name: Annotated[str, Meta(pattern=r"^[^\x00-\x1f=]{1,64}$")]
    password: str
    channels: tuple[str, ...] = ()


class EntitlementConfig(Struct, frozen=True, kw_only=True):
    """Content of the file."""

    listen: str
    keys: str
    channels: str
    dictionary: str = ""
    certificate: str = ""
    certificate_key: str = ""
    user: Annotated[tuple[EntitledUser, ...], Meta(min_length=1, max_length=USERS_MAX)]
    types: dict[str, tuple[str, ...]] = {}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which the server listens."""
        return split_address(self.listen)

    def users(self) -> Users:
        """Return those who may log in."""
        return Users([User(each.name, password=each.password) for each in self.user], False)

    def entitled(self) -> dict[str, tuple[str, ...]]:
        """Return channels by user."""
        return {each.name: each.channels for each in self.user}


def read_config(path: Path) -> EntitlementConfig:
    """Read the configuration in a file, with its paths made absolute.

    Raises `ConfigError` with the line that is wrong.
    """
    text = read_text(path, "give the TOML file of users and their channels")
    config = parse_as(text, str(path), "configuration of entitlement", _checked)
    folder = path.parent
    absolute = {
        name: str(folder / given)
        for name in ("keys", "channels", "dictionary", "certificate", "certificate_key")
        if (given := getattr(config, name))
    }
    return msgspec.structs.replace(config, **absolute)


def _checked(values: dict[str, Any]) -> EntitlementConfig:
    config = convert(values, EntitlementConfig)
    names: set[str] = set()
    for at, user in enumerate(config.user):
        if user.name in names:
            raise WrongKey(("user", at, "name"), f"{user.name} is there already", "name them apart")
        names.add(user.name)
        try:
            parse_hash(user.password)
        except ValueError as error:
            raise WrongKey(("user", at, "password"), str(error), "feedhandler user NAME") from None
    if bool(config.certificate) != bool(config.certificate_key):
        raise WrongKey(("certificate",), "one of two", "give certificate and certificate_key")
    try:
        split_address(config.listen)
    except ValueError as error:
        raise WrongKey(("listen",), str(error), "for example 10.1.0.5:31950") from None
    return config


def grants(config: EntitlementConfig) -> list[Grant]:
    """Return a grant for each channel. Raises `ConfigError` as the files' readers do."""
    channels = read_channels(Path(config.channels))
    folder = KeyFolder(Path(config.keys))
    for name in config.types.keys() - channels.channels.keys():
        raise ConfigError(f"types: there is no channel {name}", f"see {config.channels}")
    return [
        Grant(
            id,
            config.types.get(id, ()),
            tuple(folder.publishers(id)),
            channel_text(channels, id).encode(),
        )
        for id in channels.channels
    ]


def dictionary(config: EntitlementConfig) -> Dictionary | None:
    """Read the dictionary that users are given; None without one.

    Raises `ConfigError` where it is unreadable or too long.
    """
    if not config.dictionary:
        return None
    path = Path(config.dictionary)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "check path and rights") from None
    if not 0 < len(content) <= DICTIONARY_BYTES_MAX:
        raise ConfigError(
            f"{path}: a dictionary of {len(content)} bytes", f"1 to {DICTIONARY_BYTES_MAX}"
        )
    return Dictionary(path.stem, content)


def channel_text(channels: Channels, id: str) -> str:
    """Return the definition of one channel alone, with its retransmission group.

    That is what a user of the channel may know.
    """
    channel = channels.channels[id]
    text = _table("[[channel]]", msgspec.to_builtins(channel, builtin_types=(tuple,)))
    group = channels.retransmission_of(channel)
    if group is not None:
        text += _table("[[retransmission]]", msgspec.to_builtins(group))
    return text


def _table(head: str, values: dict[str, Any]) -> str:
    return f"{head}\n" + "".join(f"{key} = {said}\n" for key, said in _said(values))


def _said(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if value not in ("", (), [], None) or (key == "target" and value == ""):
            yield key, _inline(value)


def _inline(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {said}" for key, said in _said(value)) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inline(each) for each in value) + "]"
    return toml_value(value)
