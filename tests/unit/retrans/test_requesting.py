"""Every client checks and bounds the ranges that it is asked for, whatever its protocol."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.requesting import REQUESTS_MAX
from feedhandler.retrans.settings import RecoverySettings
from tests.support.retrans import FEED, NOON_NS
from tests.unit.retrans.protocols import (
    test_cboe,
    test_cme_replay,
    test_iex_tp,
    test_moldudp64,
    test_nyse_xdp,
)


class Asked(NamedTuple):
    """A protocol: what makes a client that may ask (of `RecoverySettings`), for which service, the
    first number that no packet can have (0: it is like any other), and whether the client
    has snapshots too."""

    make: Callable[..., Any]
    service: int
    beyond: int
    refreshes: bool = False


def utp(**settings: int) -> RequestClient:
    client = RequestClient(FEED, "ME", RecoverySettings(**settings))
    client.connected(NOON_NS)
    return client


PROTOCOLS = {
    "cboe-grp": Asked(test_cboe.grp, test_cboe.UNIT, 1 << 32),
    "cme-replay": Asked(test_cme_replay.client, test_cme_replay.CHANNEL, 1 << 32),
    "iex-tp": Asked(test_iex_tp.client, test_iex_tp.SERVICE, 1 << 63),
    "moldudp64": Asked(test_moldudp64.client, test_moldudp64.SERVICE, 0),
    "nyse-xdp": Asked(test_nyse_xdp.client, test_nyse_xdp.SERVICE, 1 << 32, refreshes=True),
    "utp-md": Asked(utp, 104, 0, refreshes=True),
}


@pytest.fixture(params=PROTOCOLS.values(), ids=PROTOCOLS)
def asked(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_range_that_is_empty_or_too_wide_and_an_id_under_way_are_the_callers_fault(
    asked: Asked,
) -> None:
    client = asked.make(request_packets_max=5)
    for end in (6, 7, 13):
        with pytest.raises(UsageError, match="ask for 1 to 5"):
            client.ask(Ask(1, asked.service, 7, end, 0), NOON_NS)
    assert client.ask(Ask(1, asked.service, 7, 12, 0), NOON_NS)
    with pytest.raises(UsageError, match="request 1 is under way"):
        client.ask(Ask(1, asked.service, 7, 10, 0), NOON_NS)
    assert client.counts["not_asked"] == 0


def test_requests_under_way_are_bounded(asked: Asked) -> None:
    client = asked.make()
    for number in range(1, REQUESTS_MAX + 1):
        assert client.ask(Ask(number, asked.service, number, number + 1, 0), NOON_NS)
    assert not client.ask(Ask(0, asked.service, 1, 2, 0), NOON_NS)
    assert (client.outstanding, client.counts["not_asked"]) == (REQUESTS_MAX, 1)


def test_what_no_packet_can_have_is_not_asked_for_and_snapshots_only_where_there_are(
    asked: Asked,
) -> None:
    client = asked.make()
    if asked.beyond:
        assert not client.ask(Ask(1, asked.service, asked.beyond, asked.beyond + 1, 0), NOON_NS)
    assert client.outstanding == 0
    assert client.ask_refresh(AskRefresh(2, asked.service), NOON_NS) == asked.refreshes
    assert client.counts["not_asked"] == bool(asked.beyond) + (not asked.refreshes)
