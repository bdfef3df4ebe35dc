"""Plan of a simulated FIX exchange: its channels, their addresses, and the losses of the lines.

`fixcast.exchange` runs a `FixExchangePlan`. A receiver's, or a gateway's, definition of the same
channels follows from the `port_base` alone.
"""

from dataclasses import dataclass
from pathlib import Path

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.channels import Address, Channel, Channels, Retransmission

FEED_NAME = "fix-marketdata"
#: The channels, by their number in routing keys.
SERVICES = (1, 2, 3)
#: Securities of a channel.
SECURITIES = 100
#: Groups of line A and B, to which a channel's number is appended; and that of retransmissions.
GROUPS = ("239.101.5", "239.101.6")
RETRANSMISSION_GROUP = "239.101.7.1"
RETRANSMISSION_ID = "simulated"
#: Port offset from `port_base` of the group of retransmissions; lines A and B: `LINE_PORTS`.
RETRANSMISSION_LINE_PORT = 2000
LINE_PORTS = (0, 1000)
#: Heartbeats continue this long after the last message: longer than a busy gateway may stall.
LINGER_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FixExchangePlan:
    """Plan of a run: what is published, for how long, and what the lines lose.

    losses       of line A and line B, as shares of the datagrams
    together     share of the datagrams that both lines lose
    gap_s       seconds after the start at which a datagram of the first channel is lost on both
                 lines, and Resend Requests for it are not answered; None: never
    server_port  of the server of Resend Requests; None: there is none
    state_port   of the server of Market Data Requests; None: there is none
    """

    seed: int = 1
    seconds: float = 0.0
    messages_per_s: float = 20_000.0
    losses: tuple[float, float] = (0.0, 0.0)
    together: float = 0.0
    spare_shared: bool = False
    interface: str = "127.0.0.1"
    port_base: int = 30_000
    host: str = "127.0.0.1"
    gap_s: float | None = None
    server_port: int | None = None
    state_port: int | None = None
    store_bytes: int = 16 << 20
    ledger: Path | None = None
    linger_s: float = LINGER_S

    def __post_init__(self) -> None:
        if self.seconds < 0 or self.linger_s < 0 or self.messages_per_s <= 0:
            raise UsageError("seconds or a rate below 0", "give a rate above 0, and seconds")


def channel_id(service: int) -> str:
    """Return the id of a channel, which is its topic."""
    return f"simulated-{service}"


def symbols_of(service: int) -> list[str]:
    """Return the securities of a channel."""
    return [f"EQ{service}{number:03d}" for number in range(1, SECURITIES + 1)]


def market_seed(seed: int, service: int) -> int:
    """Return the seed of a channel's market, which determines all that happens there."""
    return seed * len(SERVICES) + SERVICES.index(service)


def line_address(service: int, line: int, port_base: int) -> tuple[str, int]:
    """Return group and port of a channel on line A (0) or B (1)."""
    return f"{GROUPS[line]}.{service}", port_base + LINE_PORTS[line] + service


def retransmission_address(port_base: int) -> tuple[str, int]:
    """Return group and port that answers to Resend Requests go to."""
    return RETRANSMISSION_GROUP, port_base + RETRANSMISSION_LINE_PORT


def definition(plan: FixExchangePlan) -> Channels:
    """Return the channels of a plan, as a receiver's definition has them."""
    served = plan.server_port is not None
    channels = []
    for service in SERVICES:
        a, b = (
            Address(group=group, port=port)
            for group, port in (line_address(service, n, plan.port_base) for n in (0, 1))
        )
        channels.append(
            Channel(
                id=channel_id(service),
                a=a,
                b=b,
                sender="SIM",
                retransmission=RETRANSMISSION_ID if served else "",
            )
        )
    if not served:
        return Channels(tuple(channels))
    group, port = retransmission_address(plan.port_base)
    retransmission = Retransmission(
        id=RETRANSMISSION_ID,
        line=Address(group=group, port=port),
        server=f"{plan.host}:{plan.server_port}",
    )
    return Channels(tuple(channels), (retransmission,))
