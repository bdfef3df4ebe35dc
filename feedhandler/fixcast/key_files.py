"""Key files: the keys of channels in a folder, readable by their owner alone.

    equities-1.7.key    one key of a channel: id, secret, from and until when it is valid
    equities-1.sign     the publisher's private key for signing the channel
    equities-1.pub      its public key, which receivers may have

The first two have mode 0600; a file that group or others may read is refused. Each is a TOML file
that is replaced atomically. Secrets are never printed.
"""

import os
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from feedhandler.codecs.errors import ConfigError, UsageError, unwritable
from feedhandler.codecs.toml_text import (
    KeyLines,
    WrongKey,
    convert,
    parse_toml,
    path_text,
    read_text,
)
from feedhandler.fixcast.crypto import PrivateKey, private_key, public_bytes
from feedhandler.fixcast.keys import FOREVER, KEYS_MAX, SECRET_BYTES, ChannelKey, KeyRing
from feedhandler.private_files import FILE_MODE, make_folder, openness
from feedhandler.replacing import replacing

_SECOND = 1_000_000_000
_CHANNEL = re.compile(r"[A-Za-z0-9_.@-]{1,64}\Z")
_KEY_NAME = re.compile(r"([A-Za-z0-9_.@-]{1,64})\.(\d{1,10})\.key\Z")

_Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class _KeyText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    channel: str
    id: int
    secret: _Hex
    from_ns: Annotated[int, Meta(ge=0)] = 0
    until_ns: Annotated[int, Meta(ge=0)] = FOREVER


class _SignText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    channel: str
    private: _Hex


class _PublicText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    channel: str
    public: _Hex


_Said = TypeVar("_Said", _KeyText, _SignText, _PublicText)


def shown_time(at_ns: int) -> str:
    """Return a time, ns since 1970, as files and tables show it."""
    if at_ns >= FOREVER:
        return "never"
    return datetime.fromtimestamp(at_ns // _SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KeyFolder:
    """The keys in a folder. Errors name the file and the fault, without the file's content."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Create the folder where it does not exist."""
        try:
            make_folder(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def channels(self) -> list[str]:
        """Return the channels that have keys here. Raises `ConfigError` where the folder is
        missing."""
        try:
            names = [_KEY_NAME.match(each.name) for each in self.path.iterdir()]
        except OSError:
            raise ConfigError(
                f"{self.path}: no folder of keys", "make one: feedhandler fixcast keys new"
            ) from None
        return sorted({name[1] for name in names if name})

    def touched_ns(self) -> int:
        """Return when a file in the folder was last made, replaced or removed, ns since 1970.

        By the clock of the file system; 0 where the folder cannot be read.
        """
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def ring(self, channel: str) -> KeyRing:
        """Read a channel's keys. Raises `ConfigError` where one is unreadable or open to others."""
        named = (_KEY_NAME.match(each.name) for each in sorted(self.path.glob("*.key")))
        ring = KeyRing(channel)
        for name in named:
            if name and name[1] == channel:
                ring.add(self._read_key(self.path / name[0], channel, int(name[2])))
        return ring

    def add(self, key: ChannelKey) -> Path:
        """Write a key, and return its file; the same key's file is left as it is.

        Raises `UsageError` where another key has its id.
        """
        path = self.path / f"{_checked(key.channel)}.{key.id}.key"
        if path.exists():
            if self._read_key(path, key.channel, key.id) != key:
                raise UsageError(f"{path}: another key has this id", "ids are used once")
            return path
        return self._write_key(path, key)

    def keep(self, key: ChannelKey) -> Path:
        """Write a key as `add`; one that is known may get an earlier end."""
        path = self.path / f"{_checked(key.channel)}.{key.id}.key"
        if not path.exists():
            return self.add(key)
        ring = KeyRing(key.channel, [self._read_key(path, key.channel, key.id)])
        return self._write_key(path, key) if ring.add(key) else path

    def shorten(self, key: ChannelKey, until_ns: int) -> Path:
        """Bring a key's end forward; remove one that has not begun by then."""
        path = self.path / f"{_checked(key.channel)}.{key.id}.key"
        if until_ns <= key.from_ns:
            path.unlink(missing_ok=True)
            return path
        return self.keep(replace(key, until_ns=until_ns))

    def signer(self, channel: str) -> PrivateKey | None:
        """Return the private key for signing a channel; None where there is none."""
        path = self.path / f"{_checked(channel)}.sign"
        if not path.exists():
            return None
        _check_private(path)
        content = _read(path, _SignText)
        return private_key(bytes.fromhex(content.private))

    def new_signer(self, channel: str) -> Path:
        """Create the keys for signing a channel; return the file of the public one.

        Raises `UsageError` where the channel has such keys.
        """
        path = self.path / f"{_checked(channel)}.sign"
        if path.exists():
            raise UsageError(f"{path}: the channel can be signed already", "remove it first")
        made = private_key()
        seed = made.private_bytes_raw().hex()
        self._write(path, [f'channel = "{channel}"', f'private = "{seed}"'], FILE_MODE)
        return self.add_publisher(channel, public_bytes(made))

    def add_publisher(self, channel: str, public: bytes) -> Path:
        """Write a publisher's public key, and return its file."""
        path = self.path / f"{_checked(channel)}.pub"
        number = 2
        while path.exists() and _read(path, _PublicText).public != public.hex():
            path = self.path / f"{channel}.{number}.pub"
            number += 1
        if path.exists():
            return path
        return self._write(path, [f'channel = "{channel}"', f'public = "{public.hex()}"'], 0o644)

    def publishers(self, channel: str) -> list[bytes]:
        """Return the public keys of those who may sign a channel."""
        found = [_read(path, _PublicText) for path in sorted(self.path.glob("*.pub"))]
        return [bytes.fromhex(each.public) for each in found if each.channel == channel]

    def expire(self, channel: str, now_ns: int) -> list[Path]:
        """Remove the files of a channel's expired keys, and return their paths."""
        gone = [key for key in self.ring(channel).listed() if key.until_ns <= now_ns]
        paths = [self.path / f"{channel}.{key.id}.key" for key in gone]
        for path in paths:
            path.unlink(missing_ok=True)
        return paths

    def _read_key(self, path: Path, channel: str, id: int) -> ChannelKey:
        _check_private(path)
        content = _read(path, _KeyText)
        if (content.channel, content.id) != (channel, id):
            raise ConfigError(
                f"{path}: is key {content.id} of {content.channel}", "name it by these"
            )
        try:
            secret = bytes.fromhex(content.secret)
            return ChannelKey(channel, id, secret, content.from_ns, content.until_ns)
        except UsageError as error:
            raise ConfigError(f"{path}: {error.message}", error.hint) from None

    def _write_key(self, path: Path, key: ChannelKey) -> Path:
        lines = [
            f"# valid from {shown_time(key.from_ns)} until {shown_time(key.until_ns)}",
            f'channel = "{key.channel}"',
            f"id = {key.id}",
            f'secret = "{key.secret.hex()}"',
            f"from_ns = {key.from_ns}",
            f"until_ns = {key.until_ns}",
        ]
        return self._write(path, lines, FILE_MODE)

    def _write(self, path: Path, lines: list[str], mode: int) -> Path:
        """Replace a file atomically and durably."""
        try:
            make_folder(self.path)
            with replacing(path, mode, sync=True) as beside:
                beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        except OSError as error:
            raise unwritable(path, error) from error
        return path


def new_key(ring: KeyRing, from_ns: int, until_ns: int) -> ChannelKey:
    """Return a channel's next key, with the id above all others and a random secret.

    Raises `UsageError` where the channel has no room for another.
    """
    if len(ring) >= KEYS_MAX:
        raise UsageError(
            f"channel {ring.channel} has {KEYS_MAX} keys", "wait until one of them has expired"
        )
    id = max((key.id for key in ring.listed()), default=0) + 1
    return ChannelKey(ring.channel, id, os.urandom(SECRET_BYTES), from_ns, until_ns)


def _checked(channel: str) -> str:
    if not _CHANNEL.match(channel):
        raise UsageError(f"{channel!r} is no channel id", "letters, digits and _.@- , 64 at most")
    return channel


def _check_private(path: Path) -> None:
    if whom := openness(path):
        raise ConfigError(f"{path}: open to {whom}", "chmod 600 it, and make a new key")


def _read(path: Path, kind: type[_Said]) -> _Said:
    """Read a file. Errors give the line, never the value."""
    text = read_text(path, "check path and rights")
    try:
        return convert(parse_toml(text, str(path), "key file"), kind)
    except WrongKey as error:
        line, key = KeyLines(text)[error.path], path_text(error.path)
        raise ConfigError(f"{path}:{line}: {key or 'the file'} is wrong", "make it anew") from None
    except ConfigError:
        raise ConfigError(f"{path}: is no key file", "make it anew") from None
