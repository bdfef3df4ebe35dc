"""The servers of each channel, and the verbs that recovery has others carry out.

`GatewayCore` has these verbs, in the gateway and in the simulation.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from feedhandler.retrans.actions import Ask, AskRefresh


@dataclass(frozen=True, slots=True)
class RecoveryChannel:
    """One channel: its service, and the servers by name that can get back what it lost.

    `refresh`: snapshots can be had, on refresh lines or from `refresh_server`. `reference`: it
    carries the reference data that must be there before anything else.
    """

    service: int
    retransmission: str = ""
    refresh: bool = False
    refresh_server: str = ""
    reference: bool = False


class RecoveryIO(Protocol):
    """I/O of the recovery manager. `channel_index` is a channel's index."""

    def ask(self, server: str, request: Ask, now_ns: int) -> bool:
        """Send a retransmission request; return False where it cannot be sent."""
        ...

    def cancel(self, server: str, request_id: int) -> None:
        """Forget a request."""

    def ask_refresh(self, server: str, request: AskRefresh, now_ns: int) -> None:
        """Send a refresh request."""

    def fill(self, channel_index: int, data: bytes, epoch: int) -> bool:
        """Give the arbiter a packet that was missing; return False where there is no room."""
        ...

    def give_up(self, channel_index: int, until: int, epoch: int) -> None:
        """Have the arbiter announce what is missing below `until`."""

    def disprove(self, channel_index: int, number: int, epoch: int) -> None:
        """Inform the arbiter that `number` was not sent yet, as the server says."""

    def quality(self, channel_index: int, body: bytes, links: Any = None) -> None:
        """Send a quality message to the service's subscribers, or only to `links`."""

    def withhold(self, channel_index: int, link: Any) -> None:
        """Withhold the service from the link until it is admitted."""

    def admit(self, channel_index: int, link: Any) -> None:
        """Admit the link to the service from here on."""

    def block(
        self,
        channel_index: int,
        begin: bytes,
        packets: list[bytes],
        last: int,
        end: bytes,
        links: Any,
    ) -> None:
        """Send a snapshot block, to `links` or (None) to all that the service concerns."""

    def close_stream(self, channel_index: int) -> None:
        """From now on packets go to the store only."""

    def open_stream(
        self, channel_index: int, packets: list[tuple[int, int, bytes]], following: int
    ) -> None:
        """Publish these stored packets, then live ones again; `following` or later is next."""

    def renumber(self, channel_index: int) -> None:
        """Begin a new sequence epoch; everything of the old one was published."""

    def next_sequence(self, channel_index: int) -> int:
        """Return the number after the last packet published; 0 before any."""

    def is_here(self, link: Any) -> bool:
        """Return whether the link is still attached."""

    def alert(self, text: str, now_ns: int) -> None:
        """Inform the operator."""
