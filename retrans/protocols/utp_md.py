"""UTP-MD's protocol: requests of packets and of snapshots by message, over TCP."""

from typing import cast

from feedhandler.codecs.feed import Feed
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.protocols.setup import ClientSetup, ServerSetup
from feedhandler.retrans.reconnection import RecoveryClient
from feedhandler.retrans.server import RequestServer
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import PacketSnapshots, Snapshots


def client(setup: ClientSetup) -> RecoveryClient:
    """Return the client of a server of packets, of snapshots, or of both."""
    return cast(RecoveryClient, RequestClient(setup.feed, setup.source_id, setup.settings))


def server(setup: ServerSetup) -> RequestServer:
    """Return a server of packets, and of snapshots where there is a refresher."""
    return RequestServer(setup.feed, setup.stores, setup.settings, setup.refresher)


def snapshots(feed: Feed, settings: RecoverySettings) -> Snapshots:
    """Return the form of its snapshots: packets, to be assembled."""
    return PacketSnapshots(feed, settings)
