"""The `[recovery]` table: protocols by name, what each offers, and the numbers of a feed's servers.

A description names the protocol by which what every line lost is had again (`protocol`), and the
one of its snapshots where that is another (`snapshots`). `PROTOCOLS` has what is known of each
before any connection is made; `retrans.protocols` has its client and its server. So a configuration
is checked, and a table of feeds written, without either.

The numbers are those of the feed's servers: what a request may ask for at most, how often a
heartbeat is due, and how long a silence means a dead peer.
"""

from typing import Literal

import msgspec

from feedhandler.codecs.field_values import nearest

#: What a protocol may offer: packets by number; snapshots that are asked for; snapshots on lines of
#: their own, asked for or not. `retransmission_lines`: the packets that are asked for come by lines
#: of their own, not in the connection.
Offer = Literal["retransmission", "retransmission_lines", "snapshots", "snapshot_lines"]
Counts = Literal["packets", "messages"]
#: What a protocol may want to know of its server, beside the address: settings of `[[server]]`.
Setting = Literal["source_id", "product", "session", "password"]

#: Of these, those of snapshots.
_SNAPSHOTS: frozenset[Offer] = frozenset({"snapshots", "snapshot_lines"})

#: Most numbers in one request, and longest times, that a description may state.
REQUEST_MAX = 1 << 20
SECONDS_MAX = 3600.0


class RecoveryDescription(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table as written; a number that is left out is the protocol's own."""

    protocol: str = ""
    snapshots: str = ""
    request_max: int | None = None
    counts: Counts | None = None
    heartbeat_s: float | None = None
    timeout_s: float | None = None


class ProtocolFacts(msgspec.Struct, frozen=True):
    """A protocol: what it offers, and what it says of its numbers; 0: nothing.

    `counts` is what the numbers of its requests count; None: what the feed's sequence counts.
    `names_session`: a request names the session, which only the stream gives. `takes`: settings of
    a server that are sent to it; the others mean nothing to it. `apart`: numbers of snapshot lines
    mean nothing outside one snapshot, so that each line is read by itself.
    """

    name: str
    title: str
    transport: Literal["tcp", "udp"]
    offers: frozenset[Offer]
    counts: Counts | None = None
    request_max: int = 0
    heartbeat_s: float = 0.0
    timeout_s: float = 0.0
    names_session: bool = False
    takes: frozenset[Setting] = frozenset()
    apart: bool = False


class FeedRecovery(msgspec.Struct, frozen=True):
    """The checked table of a feed.

    `retransmission` and `snapshots` are the protocols that offer each at request, None where none
    does; `snapshot_lines`: snapshots come by lines of their own; `retransmission_lines`: so do
    packets that are asked for; `form`: the protocol that says how snapshots look. `request_max` is
    in `counts`; it and the times are 0 where neither the description nor the protocol says
    anything.
    """

    retransmission: ProtocolFacts | None
    snapshots: ProtocolFacts | None
    snapshot_lines: bool
    counts: Counts
    request_max: int
    heartbeat_s: float
    timeout_s: float
    retransmission_lines: bool = False
    form: ProtocolFacts | None = None

    @property
    def apart(self) -> bool:
        """Whether each snapshot line is read by itself."""
        return self.form is not None and self.form.apart

    @property
    def loops(self) -> bool:
        """Whether snapshot lines loop, and nothing is asked for."""
        return self.snapshot_lines and self.snapshots is None

    @property
    def snapshots_by_lines(self) -> bool:
        """Whether snapshots that are asked for come by lines, and not in the connection."""
        return self.apart and not self.loops


class WrongRecovery(Exception):
    """A fault of the table: the `key` at fault, and the `reason`."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


def _facts(
    name: str,
    title: str,
    transport: Literal["tcp", "udp"],
    *offers: Offer,
    counts: Counts | None = None,
    request_max: int = 0,
    heartbeat_s: float = 0.0,
    timeout_s: float = 0.0,
    names_session: bool = False,
    takes: tuple[Setting, ...] = (),
    apart: bool = False,
) -> ProtocolFacts:
    return ProtocolFacts(
        name,
        title,
        transport,
        frozenset(offers),
        counts,
        request_max,
        heartbeat_s,
        timeout_s,
        names_session,
        frozenset(takes),
        apart,
    )


#: Each protocol by its name in descriptions.
PROTOCOLS: dict[str, ProtocolFacts] = {
    facts.name: facts
    for facts in (
        _facts(
            "utp-md", "UTP-MD requests", "tcp",
            "retransmission", "snapshots", "snapshot_lines", counts="packets",
            takes=("source_id",),
        ),
        _facts("fix-resend", "FIX Resend Requests", "tcp", "retransmission", counts="messages"),
        _facts("fix-market-data", "FIX Market Data Requests", "tcp", "snapshots"),
        # A request's count is a u16; an answer is one datagram, so more comes of more requests.
        _facts(
            "moldudp64", "MoldUDP64 requests", "udp",
            "retransmission", counts="messages", request_max=65_534, names_session=True,
        ),
        # A server gives so many messages for a request over UDP.
        _facts(
            "iex-tp", "IEX-TP gap fill", "udp",
            "retransmission", counts="messages", request_max=1_000, names_session=True,
        ),
        # The server sends a heartbeat once a minute.
        _facts(
            "nyse-xdp", "NYSE XDP requests", "tcp",
            "retransmission", "retransmission_lines", "snapshots", "snapshot_lines",
            counts="messages", heartbeat_s=60.0, timeout_s=150.0,
            takes=("source_id", "product"), apart=True,
        ),
        # A request's count is a u16. Servers want a heartbeat every five seconds at least.
        _facts(
            "cboe-grp", "Cboe gap requests", "tcp", "retransmission", "retransmission_lines",
            counts="messages", request_max=65_535, heartbeat_s=1.0, timeout_s=5.0,
            takes=("source_id", "session", "password"),
        ),
        _facts(
            "cboe-spin", "Cboe spins", "tcp", "snapshots", heartbeat_s=1.0, timeout_s=5.0,
            takes=("source_id", "session", "password"),
        ),
        # A request names at most so many packets, of the last 24 hours.
        _facts(
            "cme-replay", "CME TCP replay", "tcp", "retransmission",
            counts="packets", request_max=2_000, takes=("source_id", "password"),
        ),
        _facts("cme-snapshots", "CME market recovery", "udp", "snapshot_lines", apart=True),
        # SoupBinTCP's heartbeats, and its silence that means a dead peer.
        _facts(
            "glimpse", "GLIMPSE snapshots", "tcp", "snapshots", heartbeat_s=1.0, timeout_s=15.0,
            takes=("source_id", "session", "password"),
        ),
    )
}  # fmt: skip


def checked(spec: RecoveryDescription, feed_counts: Counts) -> FeedRecovery:
    """Return the table with its protocols; `feed_counts` is what the feed's sequence counts.

    Raises `WrongRecovery` for a name that is not known, a protocol that does not offer what it is
    named for, and numbers out of range.
    """
    main = _named("protocol", spec.protocol)
    own = _named("snapshots", spec.snapshots)
    if main is None and own is None:
        raise WrongRecovery("protocol", "missing: name a protocol, or one of `snapshots`")
    if main is not None and "retransmission" not in main.offers:
        raise WrongRecovery("protocol", f"{main.name} has snapshots alone: name it in `snapshots`")
    snapshots = own or main
    if own is not None and not own.offers & _SNAPSHOTS:
        raise WrongRecovery("snapshots", f"{own.name} has no snapshots")
    counts = spec.counts or (main.counts if main else None) or feed_counts
    if main is not None and main.counts and counts != main.counts:
        raise WrongRecovery("counts", f"requests of {main.name} count {main.counts}")
    return FeedRecovery(
        main,
        snapshots if snapshots and "snapshots" in snapshots.offers else None,
        snapshots is not None and "snapshot_lines" in snapshots.offers,
        counts,
        *_numbers(spec, main or own),
        main is not None and "retransmission_lines" in main.offers,
        snapshots if snapshots and snapshots.offers & _SNAPSHOTS else None,
    )


def _named(key: str, name: str) -> ProtocolFacts | None:
    if name and name not in PROTOCOLS:
        near = nearest(name, PROTOCOLS)
        raise WrongRecovery(key, f"{name!r} is no protocol of these: {', '.join(PROTOCOLS)}{near}")
    return PROTOCOLS[name] if name else None


def _numbers(spec: RecoveryDescription, facts: ProtocolFacts | None) -> tuple[int, float, float]:
    """Return `request_max`, `heartbeat_s` and `timeout_s` as stated, else the protocol's own."""
    assert facts is not None
    most = facts.request_max or REQUEST_MAX
    request_max = facts.request_max if spec.request_max is None else spec.request_max
    if spec.request_max is not None and not 1 <= request_max <= most:
        raise WrongRecovery("request_max", f"{request_max} is not within 1..{most}")
    times = []
    for key in ("heartbeat_s", "timeout_s"):
        stated, usual = getattr(spec, key), getattr(facts, key)
        if stated is not None and not 0 < stated <= SECONDS_MAX:
            raise WrongRecovery(key, f"{stated} is not above 0 and at most {SECONDS_MAX:g}")
        times.append(usual if stated is None else stated)
    if times[0] and times[1] and times[0] > times[1]:
        raise WrongRecovery("heartbeat_s", "must not be longer than timeout_s")
    return request_max, times[0], times[1]
