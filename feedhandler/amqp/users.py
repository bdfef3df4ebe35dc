"""Users of the embedded node: their stored passwords and certificates, and what each may receive.

What it is for: `Users` finds the user behind a name and a password, or behind a certificate;
`Entitlement` says which services and symbols a user may receive; `admit` restricts what a link asks
for to that; `Throttle` remembers which addresses have failed to log in too often.

What it promises: a password is stored as its scrypt hash only, is compared in constant time, and
takes the same time whether the user exists or not; what is not granted is denied; messages without
a symbol (`-`) are granted by that name or by `*` only.

What it leaves to others: the wire format (`sasl`), the certificate (`security`), which thread
the hash is computed in (`login`). No I/O; the time is an argument.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from feedhandler.amqp import conditions
from feedhandler.amqp.routing import AddressError, Subscription

#: Cost of a hash that `hash_password` makes: 16 MiB and some 50 ms, for each guess of a password.
SCRYPT_N = 1 << 14
SCRYPT_R = 8
SCRYPT_P = 1
SALT_BYTES = 16
HASH_BYTES = 32
#: Memory of a hash that is accepted: with more, one log-in could take the machine's memory.
SCRYPT_BYTES_MAX = 256 << 20
#: Bytes of a password; RFC 4616 has no bound, a SASL frame has.
PASSWORD_BYTES_MAX = 1024
#: Addresses whose failures are remembered; the one that failed longest ago is evicted.
THROTTLED_MAX = 4096

#: User of clients that log in by ANONYMOUS; a configured user of that name sets what it may do.
ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Entitlement:
    """Services and symbols that a user may receive.

    `services` are pairs of words with `*` for any; `symbols` are whole words, `beginnings` the part
    of `MS*` before the star, "" for all symbols.
    """

    services: tuple[tuple[str, str], ...]
    symbols: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ("",)
    #: Second words of `services` by their first one, those of `*` included; and of all of them.
    #: Patterns are matched against these, however many services there are.
    _by_feed: dict[str, frozenset[str]] = field(init=False, repr=False, compare=False)
    _of_any_feed: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seconds: dict[str, set[str]] = {}
        for feed, service in self.services:
            seconds.setdefault(feed, set()).add(service)
        anywhere = seconds.get("*", set())
        by_feed = {feed: frozenset(each | anywhere) for feed, each in seconds.items()}
        object.__setattr__(self, "_by_feed", by_feed)
        object.__setattr__(self, "_of_any_feed", frozenset().union(*by_feed.values()))

    def _of_feed(self, feed: str) -> frozenset[str]:
        """Return the granted services' second words for a first word or `*`."""
        if feed == "*":
            return self._of_any_feed
        return self._by_feed.get(feed) or self._by_feed.get("*", frozenset())

    def concerns(self, feed: str, service: str) -> bool:
        """Return whether any part of the service is granted."""
        return _granted(self._of_feed(feed), service)

    def whole(self, feed: str, service: str) -> bool:
        """Return whether the service is granted with all its symbols, messages without one
        included."""
        return "" in self.beginnings and self.concerns(feed, service)

    def allows(self, feed: str, service: str, symbol: str) -> bool:
        """Return whether messages of this symbol are granted."""
        return self.concerns(feed, service) and (
            symbol in self.symbols or symbol.startswith(self.beginnings)
        )

    def within(
        self, feed: str, service: str, named: frozenset[str] | None
    ) -> frozenset[str] | None:
        """Return the granted ones of the symbols named; None where `allows` must be asked of each.
        `named` None stands for any symbol."""
        if not self.concerns(feed, service):
            return frozenset()
        if "" in self.beginnings:
            return named
        if named is None:
            return None if self.beginnings else self.symbols
        return frozenset(
            word for word in named if word in self.symbols or word.startswith(self.beginnings)
        )

    def meets(self, pattern: tuple[str, ...]) -> bool:
        """Return whether any key could match the pattern and be granted, whatever services
        exist."""
        return any(self._grants_some(rest) for rest in self._rests(pattern))

    def _rests(self, pattern: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield what may be left of a pattern once it has matched the two words of a granted
        service."""
        if not self.services:
            return
        if pattern and pattern[0] == "#":
            yield pattern  # it is both words, and may go on
            yield from _behind(pattern, self._of_any_feed)
            yield from self._rests(pattern[1:])
        elif pattern:
            yield from _behind(pattern[1:], self._of_feed(pattern[0]))

    def _grants_some(self, rest: tuple[str, ...]) -> bool:
        """Return whether a symbol that `rest` of a pattern matches is granted; an empty rest is the
        service's own key."""
        words = [word for word in rest if word != "#"]
        if not words or words == ["*"]:
            return True
        return len(words) == 1 and (
            words[0] in self.symbols or words[0].startswith(self.beginnings)
        )

    def covers(self, pattern: tuple[str, ...]) -> bool:
        """Return whether all that the pattern could match is granted, judged by its words alone."""
        if "" in self.beginnings and ("*", "*") in self.services:
            return True
        if len(pattern) < 2 or "#" in pattern[:2]:
            return False
        feed, service, *rest = pattern
        granted = self._by_feed.get(feed) or self._by_feed.get("*", frozenset())
        if "*" not in granted and service not in granted:  # a wildcard is more than some of them
            return False
        if "" in self.beginnings:
            return True
        return len(rest) == 1 and rest[0] not in ("*", "#") and self.allows(feed, service, rest[0])


@dataclass(frozen=True, slots=True)
class QueueRights:
    """Names of the durable queues, `*` for every one, that a user may put into, get from, cancel in
    and create."""

    put: frozenset[str] = frozenset()
    get: frozenset[str] = frozenset()
    cancel: frozenset[str] = frozenset()
    create: frozenset[str] = frozenset()


#: Rights of a user without limits: every queue.
EVERY_QUEUE = QueueRights(*4 * (frozenset("*"),))
#: Entitlement of a user without limits: every service and symbol.
EVERYTHING = Entitlement((("*", "*"),))


def entitlement_of(services: Iterable[str], symbols: Iterable[str]) -> Entitlement:
    """Build an entitlement from the operator's words. Raises ValueError where one is invalid."""
    pairs = []
    for text in services:
        words = ("*", "*") if text in ("#", "*") else tuple(text.split("."))
        if len(words) != 2 or not all(words):
            raise ValueError(f"{text!r} is no service: feed.service, with * for any of either")
        if any("#" in word or (len(word) > 1 and "*" in word) for word in words):
            raise ValueError(f"{text!r}: a wildcard stands for a whole word")
        pairs.append(words)
    exact, beginnings = set(), []
    for word in symbols:
        if not word or "." in word or "#" in word or "*" in word[:-1]:
            raise ValueError(f"{word!r} is no symbol: a key's third word, or a beginning and *")
        if word.endswith("*"):
            beginnings.append(word[:-1])
        else:
            exact.add(word)
    return Entitlement(tuple(pairs), frozenset(exact), tuple(beginnings))


def _granted(services: frozenset[str], word: str) -> bool:
    """Return whether a pattern's word may be the second word of one of these services."""
    return bool(services) and (word == "*" or word in services or "*" in services)


def _behind(pattern: tuple[str, ...], services: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yield what may be left of a pattern once it has matched the second word of one of these."""
    if pattern and pattern[0] == "#":
        if services:
            yield pattern
        yield from _behind(pattern[1:], services)
    elif pattern and _granted(services, pattern[0]):
        yield pattern[1:]


@dataclass(frozen=True, slots=True)
class User:
    """One user of the node.

    `password` is a scrypt hash, `certificate` a name in the client's certificate; either may be
    empty. `connections_max` 0: no bound of the user's own.
    """

    name: str
    entitlement: Entitlement = EVERYTHING
    password: str = field(default="", repr=False)
    certificate: str = ""
    connections_max: int = 0
    queues: QueueRights = EVERY_QUEUE

    def allows(self, feed: str, service: str, symbol: str) -> bool:
        """Return whether the user may receive messages of this symbol."""
        return self.entitlement.allows(feed, service, symbol)


def admit(user: User, subscription: Subscription) -> tuple[Subscription, bool]:
    """Restrict a user's subscription to the entitlement; also return whether that took anything
    away.

    A pattern that lies wholly outside is refused, so that no client waits for messages that never
    come. Raises AddressError, naming the pattern that is not granted.
    """
    entitlement = user.entitlement
    if entitlement == EVERYTHING:
        return subscription, False
    for pattern in subscription.patterns:
        if not entitlement.meets(pattern):
            raise AddressError(
                f"user {user.name} is not entitled to {'.'.join(pattern)}",
                conditions.UNAUTHORIZED_ACCESS,
            )
    narrowed = not all(entitlement.covers(pattern) for pattern in subscription.patterns)
    return replace(subscription, entitlement=entitlement), narrowed


# -- passwords ------------------------------------------------------------------------------


def hash_password(password: str) -> str:
    """Hash a password for the configuration: scrypt with its costs and a random salt."""
    salt = os.urandom(SALT_BYTES)
    key = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P, HASH_BYTES)
    words = (base64.b64encode(each).decode() for each in (salt, key))
    return "$".join(("scrypt", str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P), *words))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int, size: int) -> bytes:
    memory = 128 * r * (n + p + 2) + (1 << 20)
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=memory, dklen=size)


def parse_hash(text: str) -> tuple[int, int, int, bytes, bytes]:
    """Parse a hash into its costs n, r, p, salt and key. Raises ValueError where it is invalid or
    costs more memory than `SCRYPT_BYTES_MAX`."""
    try:
        kind, n, r, p, salt, key = text.split("$")
        costs = int(n), int(r), int(p)
        parts = base64.b64decode(salt, validate=True), base64.b64decode(key, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError("is no hash that `feedhandler user` makes") from None
    power_of_two = costs[0] > 1 and costs[0] & (costs[0] - 1) == 0
    if kind != "scrypt" or not power_of_two or costs[1] < 1 or costs[2] < 1 or not all(parts):
        raise ValueError("is no hash that `feedhandler user` makes")
    if 128 * costs[0] * costs[1] * costs[2] > SCRYPT_BYTES_MAX:
        raise ValueError(f"costs more than {SCRYPT_BYTES_MAX >> 20} MiB a log-in")
    return *costs, *parts


def verify(password: str, text: str) -> bool:
    """Return whether the password has this hash. Slow by design; compares in constant time."""
    n, r, p, salt, key = parse_hash(text)
    return hmac.compare_digest(_scrypt(password, salt, n, r, p, len(key)), key)


class Users:
    """All users of the node. `anonymous`: clients that log in without a name are admitted."""

    def __init__(self, users: Iterable[User], anonymous: bool) -> None:
        self._by_name = {user.name: user for user in users}
        self._by_certificate = {u.certificate: u for u in self._by_name.values() if u.certificate}
        #: Keyed digests of verified passwords, so that a client that reconnects need not wait.
        self._known: dict[str, bytes] = {}
        self._secret = os.urandom(HASH_BYTES)
        self._nobody = ""
        self.passwords = any(user.password for user in self._by_name.values())
        self.certificates = bool(self._by_certificate)
        everyone = self._by_name.get(ANONYMOUS, User(ANONYMOUS))
        self.anonymous: User | None = everyone if anonymous else None

    def by_certificate(self, names: Iterable[str]) -> User | None:
        """Return the one user that the certificate's names stand for; None for none or several."""
        found = {user.name: user for name in names if (user := self._by_certificate.get(name))}
        return next(iter(found.values())) if len(found) == 1 else None

    def remembered(self, name: str, password: str) -> User | None:
        """Return the user where this password was verified before; takes microseconds."""
        known = self._known.get(name)
        if known is not None and hmac.compare_digest(known, self._digest(name, password)):
            return self._by_name[name]
        return None

    def by_password(self, name: str, password: str) -> User | None:
        """Return the user where the password is right; slow, so call it in a thread of its own.

        An unknown user costs the same time as a wrong password.
        """
        user = self._by_name.get(name)
        if not (user and user.password) or len(password.encode()) > PASSWORD_BYTES_MAX:
            verify(password[:PASSWORD_BYTES_MAX], self._decoy())
            return None
        if not verify(password, user.password):
            return None
        self._known[name] = self._digest(name, password)
        return user

    def _digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._secret, f"{name}\0{password}".encode(), "sha256")

    def _decoy(self) -> str:
        """Return a hash of no known password, with the costs of a real one, to take equal time."""
        if not self._nobody:
            hashes = (user.password for user in self._by_name.values() if user.password)
            first = next(hashes, "")
            n, r, p = parse_hash(first)[:3] if first else (SCRYPT_N, SCRYPT_R, SCRYPT_P)
            salt, key = (base64.b64encode(os.urandom(HASH_BYTES)).decode() for _ in range(2))
            self._nobody = f"scrypt${n}${r}${p}${salt}${key}"
        return self._nobody


class Throttle:
    """Failed log-ins by address: after `failures_max` in `window_ns`, log-ins are ignored until the
    window ends."""

    def __init__(self, failures_max: int, window_ns: int) -> None:
        self._failures_max = failures_max
        self._window_ns = window_ns
        self._rows: OrderedDict[str, list[int]] = OrderedDict()

    def failed(self, address: str, now_ns: int) -> None:
        """Record a failed log-in from this address."""
        row = self._rows.pop(address, None)
        if row is None or now_ns - row[0] >= self._window_ns:
            row = [now_ns, 0]
        row[1] += 1
        self._rows[address] = row
        if len(self._rows) > THROTTLED_MAX:
            self._rows.popitem(last=False)

    def shut(self, address: str, now_ns: int) -> bool:
        """Return whether log-ins from this address are ignored for now."""
        row = self._rows.get(address)
        if row is None:
            return False
        if now_ns - row[0] >= self._window_ns:
            del self._rows[address]
            return False
        return row[1] >= self._failures_max


class RateLimit:
    """Token bucket of `per_s` a second, with a burst of twice as many; 0 for no limit."""

    def __init__(self, per_s: int, now_ns: int) -> None:
        self._per_s = per_s
        self._held = 2.0 * per_s
        self._at_ns = now_ns

    def try_acquire(self, now_ns: int) -> bool:
        """Acquire a token; return whether there was one."""
        if self._per_s == 0:
            return True
        gained = (now_ns - self._at_ns) * self._per_s / 1e9
        self._held = min(2.0 * self._per_s, self._held + gained)
        self._at_ns = now_ns
        if self._held < 1.0:
            return False
        self._held -= 1.0
        return True
