"""The operator's settings of recovery, with the reasons for their defaults."""

from typing import Annotated

import msgspec

from feedhandler.codecs.toml_text import check_bounds, setting


class RecoverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of retransmission and refresh; times in microseconds, sizes as named."""

    request_packets_max: Annotated[
        int, setting("widest range of one retransmission request, in sequence numbers")
    ] = 1000
    """widest range of one retransmission request, in sequence numbers; exchanges refuse wider
    ones (NYSE: 1,000)"""

    outstanding_max: Annotated[
        int, setting("requests under way at one server at most, over all channels")
    ] = 16
    """most requests under way at one server, over all channels; answers come one after another
    on one connection, so more would only queue there"""

    requests_per_s: Annotated[
        int, setting("requests to one server in any second at most; 0: no limit")
    ] = 1000
    """requests to one server in a second, over all channels, of which a tenth may go at once; 0: no
    limit. They never wait longer than `recovery_wait_us` for their turn"""

    requests_per_day: Annotated[
        int, setting("requests to one server in a trading day at most; 0: no limit")
    ] = 0
    """most requests to one server in a trading day; 0: no limit. A little below the server's own
    quota (NYSE: 5,000), so that the server never has to refuse"""

    request_gather_us: Annotated[
        int, setting("after a request, further ones of the channel are gathered for this long")
    ] = 2000
    """a run reported within so long of a channel's last request waits for the rest of that time, so
    that runs which follow one another closely leave together: each write and each answer costs a
    server and us more than what is in it"""

    request_timeout_us: Annotated[
        int, setting("a request without an answer or a further packet for this long failed")
    ] = 200_000
    """how long a request may go without an answer or a further packet of it; many times a server's
    usual answer, so that a slow answer is not asked for twice"""

    retries: Annotated[
        int, setting("how often a range is asked for again before it is abandoned")
    ] = 2
    """how often a range is asked for again before it is abandoned"""

    backoff_us: Annotated[
        int, setting("wait before a range is asked for again; doubles each time, with jitter")
    ] = 20_000
    """wait before a range is asked for again; doubles each time, and is jittered by half, so that
    receivers that lost the same packet do not ask in step"""

    recovery_wait_us: Annotated[
        int, setting("longest that a gap holds the live stream back, beyond gap_wait_us")
    ] = 500_000
    """longest that a gap holds the live stream back, beyond `gap_wait_us`; what is missing then is
    announced lost. A server that cannot be reached is waited for so long, once"""

    refresh_timeout_us: Annotated[
        int, setting("a refresh without progress for this long failed")
    ] = 10_000_000
    """how long a refresh may go without a sign of progress, or take in all once its snapshot has
    begun; a snapshot of a busy service is some thousand packets"""

    refresh_clock_us: Annotated[
        int, setting("how far the refresh server's clock may be behind the live lines'")
    ] = 10_000
    """how far the clock of the refresh server may be behind that of the live lines; a snapshot
    sent, by its header, before the live packets that it says it holds is of another sequence
    epoch"""

    refresh_tries: Annotated[
        int, setting("refresh requests made before a service is left stale for a while")
    ] = 3
    """how many refresh requests are made before a service is left stale for a while"""

    refresh_backoff_us: Annotated[
        int, setting("wait before a refresh is asked for again; doubles, with jitter")
    ] = 1_000_000
    """wait before a refresh is asked for again when a snapshot failed or was too old; doubles each
    time, jittered. Also the least time between refreshes that only newly attached links want"""

    refresh_retry_us: Annotated[
        int, setting("how long a stale service waits before it tries a refresh again")
    ] = 60_000_000
    """how long a stale service waits before it tries a refresh again; cyclic snapshots that come by
    themselves heal it sooner"""

    snapshot_bytes_max: Annotated[int, setting("inflated bytes of one snapshot at most")] = 32 << 20
    """most inflated bytes of one snapshot, some hundred thousand messages; a larger one fails
    and is counted. A snapshot block, this and `store_bytes`, waits as a whole in a link's
    `amqp.queue_bytes`"""

    inflated_bytes_max: Annotated[
        int, setting("bytes that one compressed packet may inflate to at most")
    ] = 65_535
    """most bytes that one compressed packet may inflate to; guards against a lying packet"""

    store_bytes: Annotated[
        int, setting("published packets kept per channel, for the catch-up after a snapshot")
    ] = 16 << 20
    """published packets kept for each channel, for the catch-up after a snapshot; some seconds of
    a busy service. Part of a block, as `snapshot_bytes_max` says"""

    heartbeat_us: Annotated[int, setting("how often a heartbeat is sent to a server")] = 1_000_000
    """how often a heartbeat is sent to a server"""

    dead_us: Annotated[int, setting("a connection on which nothing came for this long is dead")] = (
        5_000_000
    )
    """a connection on which nothing came for so long is dead; several heartbeats"""

    reconnect_us: Annotated[
        int, setting("first wait before connecting again; doubles each time, with jitter")
    ] = 100_000
    """first wait before connecting again; doubles each time, jittered"""

    reconnect_max_us: Annotated[int, setting("longest wait before connecting again")] = 1_000_000
    """longest wait before connecting again"""

    failback_us: Annotated[
        int, setting("a primary connected again for this long is asked in place of the secondary")
    ] = 30_000_000
    """how long a primary server must have been connected again before it is asked in place of the
    secondary; one that comes and goes is not worth it"""

    def __post_init__(self) -> None:
        """Check the bounds; raises ValueError (msgspec turns it into its own error)."""
        check_bounds(self, RECOVERY_BOUNDS)
        for shorter, longer in (("heartbeat_us", "dead_us"), ("reconnect_us", "reconnect_max_us")):
            if getattr(self, shorter) > getattr(self, longer):
                raise ValueError(f"{shorter} must not be longer than {longer}")


#: Each field of `RecoverySettings`: its least and greatest value.
RECOVERY_BOUNDS: dict[str, tuple[int, int]] = {
    "request_packets_max": (1, 1 << 20),
    "outstanding_max": (1, 4096),
    "requests_per_s": (0, 1_000_000),
    "requests_per_day": (0, 1 << 32),
    "request_gather_us": (0, 1_000_000),
    "request_timeout_us": (1_000, 60_000_000),
    "retries": (0, 100),
    "backoff_us": (100, 60_000_000),
    "recovery_wait_us": (0, 60_000_000),
    "refresh_timeout_us": (1_000, 3_600_000_000),
    "refresh_clock_us": (0, 60_000_000),
    "refresh_tries": (1, 100),
    "refresh_backoff_us": (1_000, 3_600_000_000),
    "refresh_retry_us": (1_000, 86_400_000_000),
    "snapshot_bytes_max": (1 << 10, 1 << 32),
    "inflated_bytes_max": (1 << 10, 1 << 24),
    "store_bytes": (1 << 16, 1 << 36),
    "heartbeat_us": (1_000, 3_600_000_000),
    "dead_us": (1_000, 3_600_000_000),
    "reconnect_us": (1_000, 3_600_000_000),
    "reconnect_max_us": (1_000, 3_600_000_000),
    "failback_us": (1_000, 3_600_000_000),
}


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a retransmission or refresh server; times in microseconds, sizes as named."""

    request_packets_max: int = 1000
    """widest range of one request, in sequence numbers; wider ones are over the threshold"""

    requests_per_day: int = 0
    """most requests of each kind from one SourceID in a trading day; 0: no limit (NYSE: 5,000)"""

    window_bytes: int = 64 << 20
    """packets kept of each service; older ones are no longer available"""

    source_ids: tuple[str, ...] = ()
    """who may ask; empty: everyone"""

    clients_max: int = 256
    """most connections at once; further ones are closed"""

    refresh_over_tcp: bool = False
    """whether a snapshot asked for is sent over the connection as well"""

    output_bytes_max: int = 16 << 20
    """most bytes that wait for a client that reads slowly; beyond, it is closed"""

    chunk_bytes: int = 64 << 10
    """longest part of an answer written in one go, so that clients take turns"""

    heartbeat_us: int = 1_000_000
    """how often a heartbeat is sent to a client"""

    dead_us: int = 5_000_000
    """a client from which nothing came for so long is dead (NYSE: 5 s), and so is one that takes
    nothing for so long; several heartbeats"""

    def __post_init__(self) -> None:
        """Check the bounds; raises ValueError (msgspec turns it into its own error)."""
        check_bounds(self, SERVER_BOUNDS)
        if self.heartbeat_us > self.dead_us:
            raise ValueError("heartbeat_us must not be longer than dead_us")


#: Each field of `ServerSettings` that has bounds: its least and greatest value.
SERVER_BOUNDS: dict[str, tuple[int, int]] = {
    "request_packets_max": (1, 1 << 20),
    "requests_per_day": (0, 1 << 32),
    "window_bytes": (1 << 12, 1 << 36),
    "clients_max": (1, 65_536),
    "output_bytes_max": (1 << 16, 1 << 32),
    "chunk_bytes": (1 << 11, 1 << 24),
    "heartbeat_us": (1_000, 3_600_000_000),
    "dead_us": (1_000, 3_600_000_000),
}
