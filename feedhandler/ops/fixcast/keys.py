"""`feedhandler fixcast keys`: keys of channels in files, given to users by a server.

No function here prints a secret: keys are named by channel, id and time.
"""

import asyncio
import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from feedhandler.addresses import split_address
from feedhandler.amqp.identity import read_password
from feedhandler.amqp.security import ClientTls, ServerTls
from feedhandler.codecs.errors import (
    ConfigError,
    FeedhandlerError,
    PeerError,
    UsageError,
    unwritable,
)
from feedhandler.fixcast.entitlement import (
    Action,
    EntitlementClient,
    EntitlementServer,
    Event,
    LoggedOut,
)
from feedhandler.fixcast.entitlement_messages import Dictionary, Grant, Withdrawal
from feedhandler.fixcast.entitlement_service import EntitlementService, entitled
from feedhandler.fixcast.entitlement_settings import (
    EntitlementConfig,
    dictionary,
    grants,
    read_config,
)
from feedhandler.fixcast.key_files import KeyFolder, new_key, shown_time
from feedhandler.fixcast.keys import FOREVER, ChannelKey, KeyRing
from feedhandler.terminal.console import ExitCode, complain, print_json, run_async, until_stopped

_SECOND = 1_000_000_000


def new(path: Path, channels: Sequence[str], hours: float, sign: bool) -> int:
    """Make the first key of channels, and signing keys where `sign` is set; print their paths."""
    folder = KeyFolder(path)
    now_ns = time.time_ns()
    for channel in channels:
        if len(ring := folder.ring(channel)):
            raise UsageError(
                f"channel {channel} has keys already", "feedhandler fixcast keys rotate"
            )
        print(folder.add(new_key(ring, now_ns, _end(now_ns, hours))))
        # All keys may have ended: receivers still have the public key of the one that signs.
        if sign and folder.signer(channel) is None:
            print(folder.new_signer(channel))
    return ExitCode.OK


def rotate(path: Path, channels: Sequence[str], in_s: float, overlap_s: float, hours: float) -> int:
    """Make the next key of channels, valid from `in_s` on; those before end `overlap_s` later.

    Raises the first channel's error where keys cannot be made; other channels have theirs.
    """
    folder = KeyFolder(path)
    now_ns = time.time_ns()
    begin_ns = now_ns + int(in_s * _SECOND)
    end_ns = begin_ns + int(overlap_s * _SECOND)
    failures: list[FeedhandlerError] = []
    for channel in channels or _channels(folder):
        try:
            folder.expire(channel, now_ns)
            ring = folder.ring(channel)
            if not len(ring):
                raise UsageError(f"channel {channel} has no key", "feedhandler fixcast keys new")
            print(folder.add(new_key(ring, begin_ns, _end(begin_ns, hours))))
            for key in ring.listed():
                if end_ns < key.until_ns:
                    folder.shorten(key, end_ns)
        except FeedhandlerError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return ExitCode.OK


def _channels(folder: KeyFolder) -> list[str]:
    """Return the channels that have keys in a folder. Raises `UsageError` where none has."""
    if channels := folder.channels():
        return channels
    raise UsageError(f"{folder.path}: there are no keys", "feedhandler fixcast keys new")


def _end(begin_ns: int, hours: float) -> int:
    return begin_ns + int(hours * 3600 * _SECOND) if hours else FOREVER


def list_keys(path: Path, as_json: bool) -> int:
    """List the keys of a folder; `FOUND` where a channel has none that is valid now."""
    folder = KeyFolder(path)
    now_ns = time.time_ns()
    found = ExitCode.OK
    for channel in _channels(folder):
        keys = folder.ring(channel).listed()
        signed = len(folder.publishers(channel))
        for key in keys:
            row = {
                "channel": channel,
                "id": key.id,
                "from": shown_time(key.from_ns),
                "until": shown_time(key.until_ns),
                "valid": key.valid(now_ns),
                "publishers": signed,
            }
            if as_json:
                print_json(row)
            else:
                state = "valid" if key.valid(now_ns) else _state(key, now_ns)
                print(f"{channel}  {key.id:>4}  {row['from']}  {row['until']:20}  {state}")
        if not any(key.valid(now_ns) for key in keys):
            complain(f"channel {channel} has no key that is valid now", "rotate")
            found = ExitCode.FOUND
    return found


def _state(key: ChannelKey, now_ns: int) -> str:
    return "coming" if key.from_ns > now_ns else "over"


def give(path: Path, channels: Sequence[str], to: Path) -> int:
    """Copy what a receiver of channels needs into another folder.

    That is keys that have not expired, and public keys; never a private key for signing.
    """
    folder, other = KeyFolder(path), KeyFolder(to)
    now_ns = time.time_ns()
    other.make()
    for channel in channels:
        keys = [key for key in folder.ring(channel).listed() if key.until_ns > now_ns]
        if not keys:
            raise UsageError(f"channel {channel} has no key to give", f"see {path}")
        other.expire(channel, now_ns)
        for key in keys:
            print(other.add(key))
        for public in folder.publishers(channel):
            print(other.add_publisher(channel, public))
    return ExitCode.OK


# -- the server -------------------------------------------------------------------------


class _Source:
    """The configuration and the key folder, read again while the server runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.config = read_config(path)
        self._folder = KeyFolder(Path(self.config.keys))
        self.rings = {each.channel: KeyRing(each.channel) for each in grants(self.config)}
        self.refresh()

    def refresh(self) -> None:
        """Add the folder's keys to the rings, and drop those that have expired.

        Raises the last channel's error where keys cannot be read; other channels' are added.
        """
        now_ns = time.time_ns()
        failure: FeedhandlerError | None = None
        for channel, ring in self.rings.items():
            ring.expire(now_ns)
            try:
                for key in self._folder.ring(channel).listed():
                    if key.until_ns > now_ns:
                        ring.add(key)
            except FeedhandlerError as error:
                failure = error
        if failure is not None:
            raise failure

    def changed(self) -> EntitlementConfig | None:
        """Read the configuration again; return it where it has changed, else None.

        Raises `UsageError` where a user is to have a channel that is not there.
        """
        config = read_config(self._path)
        if config == self.config:
            return None
        for user in config.user:
            for channel in user.channels:
                if channel not in self.rings:
                    raise UsageError(
                        f"user {user.name}: there is no channel {channel}", f"see {config.channels}"
                    )
        self.config = config
        return config


def serve(path: Path, plain: bool) -> int:
    """Run the server that gives users what they are entitled to, until it is stopped."""
    source = _Source(path)
    config = source.config
    tls = (
        ServerTls(config.certificate, config.certificate_key).context
        if config.certificate
        else None
    )
    server = EntitlementServer(
        dict(config.entitled()), grants(config), source.rings.values(), None, dictionary(config)
    )
    said: set[str] = set()

    async def main(stop: asyncio.Event) -> int:
        service = EntitlementService(server, config.users())

        def look() -> Iterable[Action]:
            """Apply the present keys and users; report an error once, and keep the old ones."""
            faults: dict[str, str] = {}
            try:
                source.refresh()
            except FeedhandlerError as error:
                faults[error.message] = error.hint
            try:
                changed = source.changed()
                if changed is not None:
                    service.use(changed.users())
                    yield from _follow(server, changed)
            except FeedhandlerError as error:
                faults[error.message] = error.hint
            for message in faults.keys() - said:
                complain(message, faults[message])
            said.clear()
            said.update(faults)

        service.look = look
        await service.start(*config.address, tls, plain)
        print("listening at {}:{}".format(*service.address), flush=True)
        try:
            await stop.wait()
        finally:
            await service.close()
        return ExitCode.OK

    return run_async(main)


def _follow(server: EntitlementServer, config: EntitlementConfig) -> Iterable[Action]:
    """Entitle users as the configuration says now; dismiss those who are gone."""
    now_ns = time.time_ns()
    entitled_now = config.entitled()
    for name in server.users - entitled_now.keys():
        yield from server.dismiss(name, now_ns)
    for name, channels in entitled_now.items():
        yield from server.entitle(name, channels, now_ns)


# -- the user ---------------------------------------------------------------------------


def fetch(
    server: str,
    user: str,
    password_file: str,
    to: Path,
    tls: ClientTls | None,
    plain: bool,
    follow: bool,
    wait_s: float,
) -> int:
    """Log in, and write what is given into a folder; with `follow` until it is stopped."""
    try:
        host, port = split_address(server)
    except ValueError:
        raise UsageError(f"{server} is no address", "host:port") from None
    client = EntitlementClient(user, read_password(password_file, "password file"))
    context = tls.context if tls else None
    keep = _Keeper(to)

    async def main(stop: asyncio.Event) -> int:
        on_event = functools.partial(keep.write, stop=None if follow else stop)
        session = entitled(host, port, client, on_event, context, plain)
        await until_stopped(session, stop, None if follow else wait_s)
        return keep.code(stopped=stop.is_set())

    return run_async(main)


class _Keeper:
    """A writer of what is given into a folder, which knows when it is complete."""

    def __init__(self, to: Path) -> None:
        self._folder = KeyFolder(to)
        self._to = to
        self._granted: set[str] = set()
        self._keyed: set[str] = set()
        self._refused: str | None = None
        self._folder.make()

    def write(self, event: Event, stop: asyncio.Event | None) -> None:
        """Write what is given; set `stop` once every granted channel has a key."""
        match event:
            case ChannelKey():
                self._keyed.add(event.channel)
                # A channel has room for few keys, and `--follow` is given them for ever.
                self._folder.expire(event.channel, time.time_ns())
                print(self._folder.keep(event), flush=True)
            case Grant():
                self._granted.add(event.channel)
                for public in event.publishers:
                    print(self._folder.add_publisher(event.channel, public), flush=True)
                if event.definition:
                    self._write(f"{event.channel}.toml", event.definition)
            case Dictionary():
                self._write("dictionary.xml", event.content)
            case Withdrawal():
                self._granted.discard(event.channel)
                complain(f"channel {event.channel} is withdrawn: no further key will come")
            case LoggedOut():
                self._refused = event.text
        if stop is not None and self._granted and self._granted <= self._keyed:
            stop.set()

    def code(self, stopped: bool) -> int:
        """Return the exit code. Raises `PeerError` where the server has ended the session."""
        if self._refused is not None:
            raise PeerError(f"logged out: {self._refused or 'no reason given'}", "see the server")
        if stopped:
            return ExitCode.OK
        lacking = ", ".join(sorted(self._granted - self._keyed)) or "any channel"
        complain(f"no key came for {lacking}")
        return ExitCode.FOUND

    def _write(self, name: str, content: bytes) -> None:
        if "/" in name or not name.isprintable():
            raise ConfigError(f"{name!r} is no file's name", "see the server")
        path = self._to / name
        try:
            path.write_bytes(content)
        except OSError as error:
            raise unwritable(path, error) from error
        print(path, flush=True)
