"""Books that follow channels (`feedhandler/fixcast/market_data_service.py`), without sockets."""

from typing import Any

from feedhandler.fixcast.channels import CHANNELS_MAX
from feedhandler.fixcast.market_data_service import MarketDataConnection
from feedhandler.fixcast.reception import Joined


def test_all_channels_of_a_definition_may_want_their_states_at_once() -> None:
    events: list[Any] = []
    connection = MarketDataConnection("127.0.0.1", 1, on_event=events.append)
    for number in range(CHANNELS_MAX):
        following = connection.follow(f"c{number}", events.append)
        following.receive([Joined(500)], 1)
    now_ns = connection.clock()
    connection.client.connected(now_ns)
    assert connection.client.tick(now_ns) == []
    assert connection.client.counts["requests"] == connection.client.settings.under_way_max
    assert events == []
