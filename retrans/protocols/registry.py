"""The registry of recovery protocols: each name of `codecs.recovery.PROTOCOLS` and its parts.

To add a protocol: its facts in `codecs.recovery`, a module here with its client and its server, a
line in `REGISTRY`, and its name in codecs/FORMAT.md.
"""

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.recovery import PROTOCOLS, ProtocolFacts
from feedhandler.retrans.protocols import (
    cboe_grp,
    cboe_spin,
    cme_replay,
    cme_replay_server,
    cme_snapshots,
    fix,
    glimpse,
    glimpse_server,
    iex_tp,
    moldudp64,
    nyse_refresh,
    nyse_xdp,
    nyse_xdp_server,
    utp_md,
)
from feedhandler.retrans.protocols.setup import Protocol
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import Snapshots

REGISTRY: dict[str, Protocol] = {
    each.facts.name: each
    for each in (
        Protocol(PROTOCOLS["utp-md"], utp_md.client, utp_md.server, utp_md.snapshots),
        Protocol(PROTOCOLS["moldudp64"], moldudp64.MoldClient, moldudp64.MoldServer),
        Protocol(PROTOCOLS["iex-tp"], iex_tp.GapFillClient, iex_tp.GapFillServer),
        Protocol(
            PROTOCOLS["nyse-xdp"],
            nyse_xdp.XdpClient,
            nyse_xdp_server.XdpServer,
            nyse_refresh.XdpSnapshots,
        ),
        Protocol(PROTOCOLS["cboe-grp"], cboe_grp.GrpClient, cboe_grp.GrpServer),
        Protocol(
            PROTOCOLS["cboe-spin"],
            cboe_spin.SpinClient,
            cboe_spin.SpinServer,
            cboe_spin.SpinSnapshots,
        ),
        Protocol(PROTOCOLS["cme-replay"], cme_replay.ReplayClient, cme_replay_server.ReplayServer),
        Protocol(PROTOCOLS["cme-snapshots"], None, None, cme_snapshots.LoopSnapshots),
        Protocol(
            PROTOCOLS["glimpse"],
            glimpse.GlimpseClient,
            glimpse_server.GlimpseServer,
            glimpse.GlimpseSnapshots,
        ),
        Protocol(PROTOCOLS["fix-resend"], fix.resend_client, None),
        Protocol(PROTOCOLS["fix-market-data"], fix.state_client, None, fix.snapshots),
    )
}


def protocol_of(facts: ProtocolFacts) -> Protocol:
    """Return the parts of a protocol."""
    return REGISTRY[facts.name]


def snapshots_of(feed: Feed, settings: RecoverySettings) -> Snapshots:
    """Return the form of a feed's snapshots; that of packets where it has none."""
    recovery = feed.recovery
    facts = recovery.form if recovery else None
    make = protocol_of(facts).snapshots if facts else None
    return (make or utp_md.snapshots)(feed, settings)
