"""FIX: Resend Requests for messages, Market Data Requests for the state of books, over TCP."""

from feedhandler.codecs.feed import Feed
from feedhandler.retrans.fix.resend_client import ResendClient, Topic
from feedhandler.retrans.fix.snapshots import FixSnapshots
from feedhandler.retrans.fix.state_client import StateClient
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup
from feedhandler.retrans.reconnection import RecoveryClient
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import Snapshots


def topic_of(channel: ChannelNames) -> Topic:
    """Return a channel as requests and answers name it."""
    return Topic(channel.topic, (channel.target or channel.topic).encode())


def resend_client(setup: ClientSetup) -> RecoveryClient:
    """Return the client of a server of Resend Requests."""
    topics = {each.service: topic_of(each) for each in setup.retransmission}
    return ResendClient(topics, setup.settings)


def state_client(setup: ClientSetup) -> RecoveryClient:
    """Return the client of a server of Market Data Requests."""
    topics = {each.service: each.topic for each in setup.refresh}
    return StateClient(topics, setup.settings, setup.seed)


def snapshots(feed: Feed, settings: RecoverySettings) -> Snapshots:
    """Return the form in which snapshots come: states of books, each whole."""
    return FixSnapshots()
