"""What a simulated FIX exchange publishes: its channels, their addresses, what the lines lose.

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
#: Groups of line A and B, and of retransmissions; a channel's number comes behind.
GROUPS = ("239.101.5", "239.101.6")
RETRANSMISSION_GROUP = "239.101.7.1"
RETRANSMISSION_ID = "simulated"
#: What is added to `port_base` for the group of retransmissions; lines A and B: `LINE_PORTS`.
RETRANSMISSION_LINE_PORT = 2000
LINE_PORTS = (0, 1000)
#: Heartbeats go on for so long behind the last message: longer than a busy gateway may stand still.
LINGER_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FixExchangePlan:
    """What is published, for how long, and what the lines lose.

    losses       of line A and line B, as shares of the datagrams
    together     share of the datagrams that both lines lose
    hole_s       so long after the start a datagram of the first channel is lost on both lines, and
                 Resend Requests for it are not answered; None: never
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
    hole_s: float | None = None
    server_port: int | None = None
    state_port: int | None = None
    store_bytes: int = 16 << 20
    ledger: Path | None = None
    linger_s: float = LINGER_S

    def __post_init__(self) -> None:
        if self.seconds < 0 or self.linger_s < 0 or self.messages_per_s <= 0:
            raise UsageError("seconds or a rate below 0", "give a rate above 0, and seconds")


def channel_id(service: int) -> str:
    """The id of a channel, which is its topic."""
    return f"simulated-{service}"


def symbols_of(service: int) -> list[str]:
    """The securities of a channel."""
    return [f"EQ{service}{number:03d}" for number in range(1, SECURITIES + 1)]


def market_seed(seed: int, service: int) -> int:
    """The seed of a channel's market, which says all that happens there."""
    return seed * len(SERVICES) + SERVICES.index(service)


def line_address(service: int, line: int, port_base: int) -> tuple[str, int]:
    """Group and port of a channel on line A (0) or B (1)."""
    return f"{GROUPS[line]}.{service}", port_base + LINE_PORTS[line] + service


def retransmission_address(port_base: int) -> tuple[str, int]:
    """Group and port that answers to Resend Requests go to."""
    return RETRANSMISSION_GROUP, port_base + RETRANSMISSION_LINE_PORT


def definition(plan: FixExchangePlan) -> Channels:
    """The channels of a plan, as a receiver's definition has them."""
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
