"""Decides who may log in to the embedded node, and by which mechanism on each listener.

What it is for: `Gate` alone decides for the node which mechanisms a client is offered, whether its
credentials are right, and how many connections a user and an address may have. Passwords are
checked in a thread of their own, one after the other, so that a client that guesses passwords can
exhaust neither the event loop nor the machine's memory.

    listener      EXTERNAL                     PLAIN                          ANONYMOUS
    with TLS      with a client certificate    where users have passwords     where configured
    without TLS   -                            only where configured          where configured

What it promises: a refusal takes `REFUSAL_SECONDS` whatever was wrong, and does not reveal what
was; an address that fails too often is ignored for a while, on open connections as on new ones; a
client whose credentials are not checked, because too many wait, is asked to try again, and no
single address can fill the queue; the operator sees each refusal, without a password.

What it leaves to others: bytes (`sasl`, `security`), users (`users`), connections (`connection`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from feedhandler.amqp.security import ServerTls, TlsSession
from feedhandler.amqp.serving.fair import FairPool
from feedhandler.amqp.serving.sasl import Credentials, SaslServer
from feedhandler.amqp.users import Throttle, User, Users
from feedhandler.codecs.errors import ConfigError
from feedhandler.config.amqp import AmqpConfig, LimitsConfig, hash_of

#: A refusal is answered after this time, so that the time does not reveal what was wrong.
REFUSAL_SECONDS = 1.0
#: Passwords that wait to be checked; past it, the address with most of them is refused for now.
CHECKS_MAX = 64
#: Reasons of such a refusal.
BUSY = "too many passwords wait to be checked"
SHUT = "too many log-ins of its address have failed"
#: Window in which `failed_logins` counts, and until whose end an address is then ignored.
FAILURES_NS = 60 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Decision:
    """The user that a client is, or why it is refused. `temporary`: not checked, it may try
    again."""

    user: User | None
    reason: str = ""
    temporary: bool = False


@dataclass(slots=True, eq=False)
class _Check:
    """A password that waits to be checked."""

    asked: Credentials
    decided: "asyncio.Future[Decision]"

    def decide(self, decision: Decision) -> None:
        if not self.decided.done():
            self.decided.set_result(decision)


def _nobody() -> None:
    """Do nothing: this admission has no connection."""


@dataclass(slots=True, eq=False)
class Admission:
    """One connection's log-in state: its address, its TLS and SASL sides, its user once known."""

    address: str
    tls: TlsSession | None
    sasl: SaslServer = field(init=False)
    user: User | None = None
    #: Why the connection must be closed although the log-in succeeded; empty for no reason.
    excess: str = ""
    pending: bool = False
    #: Ends the connection where it has to make room before it has logged in.
    crowd_out: Callable[[], None] = _nobody


class Gate:
    """Access control of the node. Without `config` every client is admitted and may have
    everything.

    `certificates` is the TLS listener's side; `report` gets lines for the operator. Raises
    ConfigError for files that cannot be used.
    """

    def __init__(
        self, config: AmqpConfig | None = None, report: Callable[[str], None] | None = None
    ) -> None:
        self.limits = LimitsConfig() if config is None else config.limits
        self.plain_without_tls = config is not None and config.plain_without_tls
        self.certificates = None if config is None else _certificates(config, report)
        self.users = Users(
            []
            if config is None
            else [_user_of(config, index) for index in range(len(config.users))],
            config is None or config.lets_anonymous,
        )
        self.tls_address = None if config is None else config.tls.address
        self._throttle = Throttle(self.limits.failed_logins, FAILURES_NS)
        self._checker: ThreadPoolExecutor | None = None
        self._checking = False
        self._checks: FairPool[_Check] = FairPool(CHECKS_MAX)
        #: Connections that have not logged in yet.
        self.strangers: FairPool[Admission] = FairPool(self.limits.connections_before_login)
        self.by_user: Counter[str] = Counter()
        self.by_address: Counter[str] = Counter()

    # -- connections ------------------------------------------------------------------------

    def full(self, address: str) -> bool:
        """Return whether this address has as many connections as one address may have."""
        bound = self.limits.connections_per_address
        return bound > 0 and self.by_address[address] >= bound

    def shut(self, address: str) -> bool:
        """Return whether clients of this address are refused because too many log-ins failed."""
        return self.limits.failed_logins > 0 and self._throttle.shut(address, time.monotonic_ns())

    def room_for(self, address: str) -> bool:
        """Return whether one more of this address may begin to log in. May end the newest
        unauthenticated connection of the address that has most, to make room."""
        taken, out = self.strangers.room_for(address)
        if out is not None:
            out.crowd_out()
        return taken

    def enter(self, address: str, encrypted: bool) -> Admission:
        """Register a client that connected from this address; `encrypted`: to the TLS listener."""
        tls = None
        if encrypted:
            assert self.certificates is not None
            tls = self.certificates.session()
        admission = Admission(address, tls)
        admission.sasl = SaslServer(
            lambda: self._mechanisms(admission), self.users.anonymous is not None
        )
        self.by_address[address] += 1
        self.strangers.add(address, admission)
        return admission

    def leave(self, admission: Admission) -> None:
        """Forget a connection that has ended."""
        self.strangers.remove(admission.address, admission)
        admission.crowd_out = _nobody
        _less(self.by_address, admission.address)
        if admission.user is not None and not admission.excess:
            _less(self.by_user, admission.user.name)

    def _mechanisms(self, admission: Admission) -> tuple[str, ...]:
        """Return the SASL mechanisms to offer this client, the strongest first."""
        found = []
        if admission.tls is not None and self.users.certificates and admission.tls.peer_names:
            found.append("EXTERNAL")
        if self.users.passwords and (admission.tls is not None or self.plain_without_tls):
            found.append("PLAIN")
        if self.users.anonymous is not None:
            found.append("ANONYMOUS")
        return tuple(found)

    # -- deciding ---------------------------------------------------------------------------

    def welcome(self, admission: Admission, user: User, full: bool = False) -> None:
        """Record that the client has logged in as this user. Sets `admission.excess` where the node
        is `full` or the user has too many connections."""
        admission.user = user
        self.strangers.remove(admission.address, admission)
        if full:
            admission.excess = "the node has as many connections as it takes"
            return
        bound = user.connections_max or self.limits.connections_per_user
        if bound and self.by_user[user.name] >= bound:
            admission.excess = f"user {user.name} has {bound} connections already"
        else:
            self.by_user[user.name] += 1

    def failed(self, admission: Admission) -> None:
        """Record that the log-in was refused."""
        self._throttle.failed(admission.address, time.monotonic_ns())

    def at_once(self, admission: Admission, asked: Credentials) -> Decision | None:
        """Decide what needs no password check; None where a password has to be checked
        (`check`)."""
        if self.shut(admission.address):
            return Decision(None, SHUT, temporary=True)
        if asked.mechanism == "ANONYMOUS":
            return Decision(self.users.anonymous, "anonymous clients are not admitted")
        if asked.mechanism == "EXTERNAL":
            assert admission.tls is not None
            names = admission.tls.peer_names
            user = self.users.by_certificate(names)
            if user is not None and asked.name not in ("", user.name, *names):
                return Decision(None, "the certificate is another user's")
            return Decision(user, f"no user has the certificate of {', '.join(names)}")
        if known := self.users.remembered(asked.name, asked.password):
            return Decision(known)
        return None

    async def check(self, address: str, asked: Credentials) -> Decision:
        """Check a name and a password in the checking thread; refuse for now where too many
        wait."""
        taken, gone = self._checks.room_for(address)
        if gone is not None:
            gone.decide(Decision(None, BUSY, temporary=True))
        if not taken:
            return Decision(None, BUSY, temporary=True)
        check = _Check(asked, asyncio.get_running_loop().create_future())
        self._checks.add(address, check)
        self._check_next()
        try:
            decision = await check.decided
        finally:
            self._checks.remove(address, check)
        if self.shut(address):
            return Decision(None, SHUT, temporary=True)
        return decision

    def _check_next(self) -> None:
        """Start the next password check in the executor, unless one is running."""
        if self._checking or (check := self._checks.pop()) is None:
            return
        if self._checker is None:
            self._checker = ThreadPoolExecutor(1, "password")
        self._checking = True
        asked, loop = check.asked, asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._checker, self.users.by_password, asked.name, asked.password
        )

        def checked(future: "asyncio.Future[User | None]") -> None:
            self._checking = False
            if future.cancelled():
                return
            user = None if future.exception() else future.result()
            check.decide(Decision(user, "wrong user or password"))
            self._check_next()

        future.add_done_callback(checked)

    def close(self) -> None:
        """Stop the thread that checks passwords; checks that wait are cancelled."""
        if self._checker is not None:
            self._checker.shutdown(wait=False, cancel_futures=True)
            self._checker = None


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


def _certificates(config: AmqpConfig, report: Callable[[str], None] | None) -> ServerTls | None:
    tls = config.tls
    if not tls.listen:
        return None
    required = tls.client_certificate == "required"
    return ServerTls(tls.certificate, tls.key, tls.client_ca, required, "amqp.tls.", report)


def _user_of(config: AmqpConfig, index: int) -> User:
    """Build a user with the hash from the configuration or its file. Raises ConfigError."""
    named = config.users[index]
    try:
        password = hash_of(named)
    except ConfigError as error:
        where = f"amqp.users[{index}].password_file"
        raise ConfigError(f"{where}: {error.message}", error.hint) from None
    return named.user(password, config.limits.connections_per_user)
