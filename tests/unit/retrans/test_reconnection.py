"""Reconnection to a server, and the reports to its owner: a table of stories."""

import pytest

from feedhandler.retrans.actions import Ask
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.events import Event
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings
from tests.support.retrans import FEED, NOON_NS, PROTOCOL, Pair

MS = 1_000_000
#: Waits of 8 to 64 ms: 8, 16, 32, 64, 64 ...
SETTINGS = RecoverySettings(
    reconnect_us=8_000, reconnect_max_us=64_000, heartbeat_us=20_000, dead_us=50_000
)


class Story:
    """A `ReconnectingClient`, what it reported, and the time."""

    def __init__(self) -> None:
        self.now = NOON_NS
        self.reported: list[str] = []
        self.outputs = 0
        self.server = ReconnectingClient(
            RequestClient(FEED, "ME", SETTINGS),
            SETTINGS,
            on_events=self._events,
            on_up=lambda now_ns: self._report("up", now_ns),
            on_down=lambda reason, now_ns: self._report(f"down: {reason}", now_ns),
            seed=3,
        )
        self.server.on_output = self._output

    def _events(self, events: list[Event], now_ns: int) -> None:
        self._report("+".join(type(event).__name__ for event in events), now_ns)

    def _report(self, text: str, now_ns: int) -> None:
        assert now_ns == self.now
        self.reported.append(text)

    def _output(self) -> None:
        self.outputs += 1

    def wait_ms(self) -> float:
        """Return how many milliseconds it waits until it wants to be connected."""
        assert self.server.deadline_ns == self.server.retry_ns
        return (self.server.retry_ns - self.now) / MS

    def refused(self) -> float:
        self.server.lost("refused", self.now)
        return self.wait_ms()

    def stood(self, milliseconds: int) -> float:
        """A connection that was made, and lost after so long."""
        self.server.made(self.now)
        self.now += milliseconds * MS
        self.server.lost("closed", self.now)
        return self.wait_ms()


@pytest.mark.parametrize(
    ("happens", "longest_ms", "reported"),
    [
        (["refused"], 8, ["down: refused"]),
        (["refused"] * 3, 32, ["down: refused"]),
        (["refused"] * 40, 64, ["down: refused"]),
        ([0], 8, ["up", "down: closed"]),
        ([0, 0, 0], 32, ["up", "down: closed"] * 3),
        (["refused", 0, "refused"], 32, ["down: refused", "up", "down: closed"]),
        (["refused"] * 9 + [63], 64, ["down: refused", "up", "down: closed"]),
        (["refused"] * 9 + [64], 8, ["down: refused", "up", "down: closed"]),
        (["refused"] * 9 + [64, 0], 16, ["down: refused"] + ["up", "down: closed"] * 2),
    ],
)  # fmt: skip
def test_waits_double_up_to_a_bound_until_a_connection_has_lasted(
    happens: list[str | int], longest_ms: int, reported: list[str]
) -> None:
    story = Story()
    assert story.server.deadline_ns == 0, "the first attempt is due at once"
    for each in happens:
        wait_ms = story.refused() if isinstance(each, str) else story.stood(each)
    assert longest_ms / 2 <= wait_ms <= longest_ms
    assert story.reported == reported


def test_requests_are_made_only_while_a_connection_stands_and_each_wants_to_be_written() -> None:
    story = Story()
    ask = Ask(1, 104, 5, 6, 0)
    assert not story.server.ask(ask, story.now)
    assert story.outputs == 0
    story.server.made(story.now)
    assert story.server.ask(ask, story.now)
    assert story.outputs == 1
    assert story.server.data_to_send()
    assert not story.server.data_to_send()
    story.server.lost("closed", story.now)
    assert not story.server.ask(ask, story.now)


def test_a_silent_server_is_probed_and_then_given_up_for_a_reason() -> None:
    story = Story()
    story.server.made(story.now)
    story.now = story.server.deadline_ns
    assert story.server.tick(story.now) == ""
    assert story.server.data_to_send() == PROTOCOL.heartbeat(story.now)
    story.now += 50 * MS
    reason = story.server.tick(story.now)
    assert reason.startswith("the server was silent for ")
    assert story.reported == ["up"], "who has the socket closes it, and says so"


def test_bytes_that_make_no_sense_are_a_reason_to_give_up() -> None:
    story = Story()
    story.server.made(story.now)
    assert story.server.feed(PROTOCOL.heartbeat(story.now), story.now) == ""
    assert story.server.feed(b"HTTP/1.1 400 Bad Request\r\n", story.now).startswith(
        "the server sent "
    )
    assert story.server.feed(PROTOCOL.heartbeat(story.now), story.now) == "", "no longer heard"


def test_events_are_reported_together_as_they_were_read() -> None:
    story, pair = Story(), Pair()
    story.server.made(story.now)
    for request_id, first in ((1, 5), (2, 9)):
        assert story.server.ask(Ask(request_id, 104, first, first + 1, 0), story.now)
    said = pair.session.feed(story.server.data_to_send(), story.now)
    while pair.session.deadline_ns <= story.now:
        said += pair.session.tick(story.now)
    assert story.server.feed(said, story.now) == ""
    assert story.reported[1:] == ["Accepted+Packet+Answered+Accepted+Packet+Answered"]


def test_a_connection_that_its_owner_closes_is_not_reported() -> None:
    story = Story()
    story.server.made(story.now)
    story.server.left(story.now)
    assert story.reported == ["up"]
    assert not story.server.client.up
