"""Who comes in at the embedded node: what each listener asks of a client, and who decides.

What it is for: `Gate` is the node's one place where it is decided which mechanisms a client is
offered, whether what it says of itself is right, and how many connections a user and an address
may have. Passwords are checked in a thread of their own, one after the other, so that neither the
event loop nor the machine's memory is anybody's who guesses.

    listener      EXTERNAL                     PLAIN                          ANONYMOUS
    with TLS      with a client certificate    where users have passwords     where configured
    without TLS   -                            only where configured          where configured

What it promises: a refusal takes `REFUSAL_SECONDS` whatever was wrong, and says nothing of what
was; who fails too often is not heard for a while, on connections that are there as on new ones; who
is not looked at, for too many wait, is told to come again, and no address has the queue to itself;
the operator hears of each refusal, without a password in it.

What it leaves to others: bytes (`sasl`, `security`), users (`users`), connections (`connection`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from feedhandler.amqp.security import ServerTls, TlsSession
from feedhandler.amqp.serving.fair import FairPool
from feedhandler.amqp.serving.sasl import Credentials, SaslServer
from feedhandler.amqp.users import Throttle, User, Users, parse_hash
from feedhandler.codecs.errors import ConfigError
from feedhandler.config.amqp import HASH_BYTES_MAX, AmqpConfig, LimitsConfig

#: A refusal is answered after so long: what was wrong cannot be told by the time it took.
REFUSAL_SECONDS = 1.0
#: Passwords that wait to be checked; beyond, who has most of them is told to come again.
CHECKS_MAX = 64
#: Why somebody is told that.
BUSY = "too many passwords wait to be checked"
SHUT = "too many log-ins of its address have failed"
#: In which `failed_logins` counts, and for which nothing more is heard.
FAILURES_NS = 60 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Decision:
    """Who a client is, or why it is nobody. `temporary`: it was not looked at, for that reason."""

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
    """There is nobody who could go."""


@dataclass(slots=True, eq=False)
class Admission:
    """One connection's way in: who it is, once that is known."""

    address: str
    tls: TlsSession | None
    sasl: SaslServer = field(init=False)
    user: User | None = None
    #: Why the connection is to be closed although the log-in was right.
    excess: str = ""
    pending: bool = False
    #: Has the connection end where it has to make room before it has logged in.
    crowd_out: Callable[[], None] = _nobody


class Gate:
    """The node's door. Without `config` everybody may come in and have everything.

    `certificates` is the TLS listener's side. Raises ConfigError for files that cannot be used.
    """

    def __init__(
        self, config: AmqpConfig | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.limits = LimitsConfig() if config is None else config.limits
        self.plain_without_tls = config is not None and config.plain_without_tls
        self.certificates = None if config is None else _certificates(config, tell)
        self.users = Users(
            []
            if config is None
            else [_user_of(config, place) for place in range(len(config.users))],
            config is None or config.lets_anonymous,
        )
        self.tls_address = None if config is None else config.tls.address
        self._throttle = Throttle(self.limits.failed_logins, FAILURES_NS)
        self._checker: ThreadPoolExecutor | None = None
        self._checking = False
        self._checks: FairPool[_Check] = FairPool(CHECKS_MAX)
        #: Those who have not logged in yet.
        self.strangers: FairPool[Admission] = FairPool(self.limits.connections_before_login)
        self.by_user: Counter[str] = Counter()
        self.by_address: Counter[str] = Counter()

    # -- connections ------------------------------------------------------------------------

    def full(self, address: str) -> bool:
        """Whether this address has as many connections as one may have."""
        bound = self.limits.connections_per_address
        return bound > 0 and self.by_address[address] >= bound

    def shut(self, address: str) -> bool:
        """Whether nobody is heard from this address, for it has failed too often."""
        return self.limits.failed_logins > 0 and self._throttle.shut(address, time.monotonic_ns())

    def room_for(self, address: str) -> bool:
        """Whether one more of this address may come as far as the log-in; somebody of an address
        that has more there may have to go for it."""
        taken, out = self.strangers.room_for(address)
        if out is not None:
            out.crowd_out()
        return taken

    def enter(self, address: str, encrypted: bool) -> Admission:
        """A client has connected from this address, to the listener with TLS or the other one."""
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
        """The connection is gone."""
        self.strangers.remove(admission.address, admission)
        admission.crowd_out = _nobody
        _less(self.by_address, admission.address)
        if admission.user is not None and not admission.excess:
            _less(self.by_user, admission.user.name)

    def _mechanisms(self, admission: Admission) -> tuple[str, ...]:
        """What this client may choose from, the strongest first."""
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
        """The client is this user; `full`: as many clients as the node takes have logged in."""
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
        """The log-in was refused."""
        self._throttle.failed(admission.address, time.monotonic_ns())

    def at_once(self, admission: Admission, asked: Credentials) -> Decision | None:
        """Who the client is, or why it is nobody; None where a password has to be checked."""
        if self.shut(admission.address):
            return Decision(None, SHUT, temporary=True)
        if asked.mechanism == "ANONYMOUS":
            return Decision(self.users.anonymous, "nobody may come in without a name")
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
        """The user with this name and password, or why it is nobody."""
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
        """Have the next password checked, beside the loop, if none is."""
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
        """No more passwords are checked."""
        if self._checker is not None:
            self._checker.shutdown(wait=False, cancel_futures=True)
            self._checker = None


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


def _certificates(config: AmqpConfig, tell: Callable[[str], None] | None) -> ServerTls | None:
    tls = config.tls
    if not tls.listen:
        return None
    required = tls.client_certificate == "required"
    return ServerTls(tls.certificate, tls.key, tls.client_ca, required, "amqp.tls.", tell)


def _user_of(config: AmqpConfig, place: int) -> User:
    """A user with the hash from wherever it is. Raises ConfigError."""
    told = config.users[place]
    password = told.password
    if told.password_file:
        where = f"amqp.users[{place}].password_file: {told.password_file}"
        try:
            with Path(told.password_file).open("rb") as file:
                password = file.read(HASH_BYTES_MAX).decode().strip()
            parse_hash(password)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"{where}: {reason}", "a file with the hash on its one line"
            ) from None
        except ValueError:
            raise ConfigError(f"{where}: holds no hash", "`feedhandler user` makes one") from None
    return told.user(password, config.limits.connections_per_user)
