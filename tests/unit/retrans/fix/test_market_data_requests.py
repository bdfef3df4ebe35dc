"""The server of Market Data Requests (`retrans/fix/market_data_requests.py`, `market_history.py`,
`market_data.py`)."""

import random
from typing import Any

import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.fields import fields
from feedhandler.retrans.fix import market_data_requests as module
from feedhandler.retrans.fix.market_data import (
    MarketDataFormat,
    MarketDataRequest,
    Refusal,
    concerns,
    utc_ns,
    utc_text,
)
from feedhandler.retrans.fix.market_data_client import Complete, MarketDataClient
from feedhandler.retrans.fix.market_data_requests import (
    MarketDataServer,
    MarketDataSession,
    MarketDataSettings,
)
from feedhandler.retrans.fix.server import NEVER
from tests.support.fix_market import OPENING, SECOND, PublishedChannel, full, refresh
from tests.support.fix_messages import sealed

FORMAT = MarketDataFormat()
MS = 1_000_000


def published(messages: int = 10, **settings: Any) -> PublishedChannel:
    """A channel with messages of A and B in turn, a second apart, the first one at the opening."""
    channel = PublishedChannel(**settings)
    for number in range(1, messages + 1):
        symbol = "AB"[number % 2]
        channel.publish(refresh(f"279=0|269=0|278=o{number}|55={symbol}|270={number}|271=5"))
    return channel


class Client:
    """A server, and a client's connection to it."""

    def __init__(self, channel: PublishedChannel | None = None, **settings: Any) -> None:
        self.channel = channel or published()
        self.history = self.channel.history()
        histories = {"c": self.history, "empty": PublishedChannel().history()}
        carried = {b"A": "c", b"B": "c", b"Z": "c", b"E": "empty"}
        self.server = MarketDataServer(
            FORMAT, histories, MarketDataSettings(**settings), carried.get
        )
        self.session = self.server.session("me", 0)
        self.now_ns = 0

    def says(self, data: bytes) -> list[dict[int, bytes]]:
        """Return what the server answers to bytes, until nothing more comes: the fields of each
        message, of an entry's the first."""
        out = self.session.feed(data, self.now_ns)
        while self.session.deadline_ns <= self.now_ns:
            out += self.session.tick(self.now_ns)
        return read(out)

    def asks(self, **asked: Any) -> list[dict[int, bytes]]:
        values = {"id": b"r", "channel": "c", "begin_ns": OPENING, **asked}
        return self.says(FORMAT.request(MarketDataRequest(**values)))


def read(out: bytes) -> list[dict[int, bytes]]:
    messages = [b"8=FIX" + each for each in out.split(b"8=FIX")[1:]]
    return [dict(reversed(fields(each))) for each in messages]


def numbers(answer: list[dict[int, bytes]]) -> list[int]:
    """The numbers of an answer's messages."""
    return [int(said[34]) for said in answer if said[35] != b"UP"]


def at(seconds: float) -> int:
    return OPENING + int(seconds * SECOND)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"channel": "", "securities": (b"A",)}, [2, 4, 6, 8, 10]),
        ({"begin_ns": at(2), "end_ns": at(5)}, [3, 4, 5]),
        ({"begin_ns": at(2.5), "end_ns": at(4.5)}, [4, 5]),
        ({"begin_ns": 0, "end_ns": at(1)}, [1]),
        ({"begin_ns": at(9), "end_ns": at(100)}, [10]),
        ({"begin_ns": at(100)}, []),
        ({"begin_ns": at(5), "end_ns": at(5)}, []),
        ({"securities": (b"A",)}, [2, 4, 6, 8, 10]),
        ({"securities": (b"A", b"B"), "begin_ns": at(8)}, [9, 10]),
        ({"securities": (b"Z",)}, []),
        ({"entry_types": (b"0",), "begin_ns": at(8)}, [9, 10]),
        ({"entry_types": (b"1",)}, []),
        ({"channel": "empty"}, []),
    ],
)
def test_a_time_range_is_answered_with_what_was_published(
    asked: dict[str, Any], expected: list[int]
) -> None:
    answer = Client().asks(**asked)
    assert numbers(answer) == expected
    assert answer[0][35] == b"UP"
    assert answer[0][262] == b"r"
    assert [answer[0][893], answer[0][911]] == [b"Y", b"%d" % len(expected)]


def test_messages_come_byte_for_byte_as_they_were_published() -> None:
    client = Client()
    client.session.feed(FORMAT.request(MarketDataRequest(b"r", "c", (), at(0), at(2))), 0)
    out = client.session.tick(0)
    assert out.endswith(client.channel.bodies[1] + client.channel.bodies[2])


def test_a_long_answer_comes_in_parts_that_take_turns() -> None:
    client = Client(part_messages=4, scan_messages=3)
    data = b"".join(
        FORMAT.request(MarketDataRequest(id, "c", (), at(0), -1)) for id in (b"r", b"s")
    )
    parts = [said for said in client.says(data) if said[35] == b"UP"]
    assert [said[262] for said in parts] == [b"r", b"s"] * 4
    assert [said[20103] for said in parts[::2]] == [b"1", b"2", b"3", b"4"]
    assert [said[20104] for said in parts[::2]] == [b"3", b"3", b"3", b"1"]
    assert [said[893] for said in parts[::2]] == [b"N", b"N", b"N", b"Y"]
    assert {(said[7], said[16], said[50]) for said in parts} == {(b"1", b"10", b"7")}


def test_a_part_has_no_more_bytes_and_messages_than_set() -> None:
    by_count = Client(part_messages=4).asks()
    assert [int(said[20104]) for said in by_count if said[35] == b"UP"] == [4, 4, 2]
    by_size = Client(part_bytes=1).asks()
    assert [int(said[20104]) for said in by_size if said[35] == b"UP"] == [1] * 10


def test_what_the_publisher_left_out_is_a_gap_fill() -> None:
    channel = published(3)
    channel.skip(1000)
    channel.publish(refresh("279=0|269=0|278=x|55=A|270=1"))
    answer = Client(channel, scan_messages=400).asks()
    assert [said[35] for said in answer if said[35] != b"UP"] == [b"X"] * 3 + [b"4"] * 3 + [b"X"]
    fills = [(said[34], said[36]) for said in answer if said[35] == b"4"]
    assert fills == [(b"4", b"401"), (b"401", b"801"), (b"801", b"1004")]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {b"A": [2, 4, 6, 8, 10], b"B": [1, 3, 5, 7, 9]}),
        ({"securities": (b"A",)}, {b"A": [2, 4, 6, 8, 10]}),
        ({"securities": (b"A",), "depth": 2}, {b"A": [8, 10]}),
        ({"securities": (b"A", b"Z")}, {b"A": [2, 4, 6, 8, 10], b"Z": []}),
        ({"entry_types": (b"1",)}, {b"A": [], b"B": []}),
    ],
)
def test_the_present_state_is_a_snapshot_a_security(
    asked: dict[str, Any], expected: dict[bytes, list[int]]
) -> None:
    answer = Client().asks(begin_ns=-1, **asked)
    (part, *snapshots) = answer
    assert (part[7], part[16], part[911]) == (b"10", b"10", b"%d" % len(expected))
    assert [said[55] for said in snapshots] == sorted(expected)
    for said in snapshots:
        assert [said[35], said[262], said[369], said[50]] == [b"W", b"r", b"10", b"7"]
        prices = expected[said[55]]
        # An empty book has an entry that says so.
        assert said[268] == b"%d" % max(len(prices), 1)
        assert said[269] == (b"0" if prices else b"J")


def test_a_state_is_as_of_the_last_message_sent_when_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CATCH_UP_MESSAGES", 4)
    client = Client(published(9))
    request = FORMAT.request(MarketDataRequest(b"r", "c"))
    assert client.session.feed(request, 0) == b""
    assert client.session.tick(0) == b""
    client.channel.publish(refresh("279=0|269=0|278=x|55=A|270=1"))
    assert client.session.tick(0) == b""
    assert read(client.session.tick(0))[0][16] == b"10"


def test_a_state_of_many_securities_comes_in_parts() -> None:
    channel = PublishedChannel()
    for number in range(10):
        channel.publish(full(f"S{number}", "269=0|270=1|271=1"))
    answer = Client(channel, part_messages=4).asks(begin_ns=-1)
    parts = [said for said in answer if said[35] == b"UP"]
    assert [said[20104] for said in parts] == [b"4", b"4", b"2"]
    assert parts[-1][911] == b"10"


def v(text: str) -> bytes:
    """A request as text, from MsgType on."""
    return sealed(f"35=V|34=0|{text}|".encode())


ALL = "146=1|55=[N/A]"
TEN_O_CLOCK = "20260105-10:00:00"


@pytest.mark.parametrize(
    ("request_", "refusal", "text"),
    [
        (v(f"57=c|263=0|264=0|{ALL}"), "MALFORMED", "MDReqID"),
        (v(f"57=c|262={'x' * 65}|263=0|264=0|{ALL}"), "MALFORMED", "64 bytes"),
        (v(f"57=c|262=r|264=0|{ALL}"), "MALFORMED", "263"),
        (v(f"57=c|262=r|262=r|263=0|264=0|{ALL}"), "MALFORMED", "twice"),
        (v("57=c|262=r|263=0|264=0|146=2|55=A"), "MALFORMED", "146"),
        (v(f"57=c|262=r|263=0|264=0|267=2|269=0|{ALL}"), "MALFORMED", "267"),
        (v(f"57=c|262=r|263=0|264=x|{ALL}"), "MALFORMED", "264"),
        (v(f"57=c|262=r|263=0|264=0|{ALL}|20101=noon"), "MALFORMED", "UTCTimestamp"),
        (v(f"57=c|262=r|263=0|264=0|{ALL}|20101=20261345-10:00:00"), "MALFORMED", "UTC"),
        (v(f"57=c|262=r|263=0|264=0|{ALL}|20102={TEN_O_CLOCK}"), "MALFORMED", "BeginTime"),
        (
            v(f"57=c|262=r|263=0|264=0|{ALL}|20101={TEN_O_CLOCK}|20102=20260105-09:00:00"),
            "MALFORMED",
            "BeginTime",
        ),
        (v(f"57=c|262=r|263=0|264=0|{ALL}|7=1|16=5"), "BY_NUMBER", "Resend"),
        (v(f"57=c|262=r|263=0|264=0|{ALL}|1182=1"), "BY_NUMBER", "Resend"),
        (v(f"57=c|262=r|263=1|264=0|{ALL}"), "UNSUPPORTED_TYPE", "multicast"),
        (v(f"57=c|262=r|263=2|264=0|{ALL}"), "UNSUPPORTED_TYPE", "multicast"),
        (v(f"57=nope|262=r|263=0|264=0|{ALL}"), "UNKNOWN_CHANNEL", "nope"),
        (v(f"262=r|263=0|264=0|{ALL}"), "UNKNOWN_CHANNEL", "57"),
        (v("262=r|263=0|264=0|146=2|55=A|55=E"), "UNKNOWN_CHANNEL", "several"),
        (v("57=c|262=r|263=0|264=0|146=1|55=Q"), "UNKNOWN_SECURITY", "Q"),
        (v("57=c|262=r|263=0|264=0|146=1|55=E"), "UNKNOWN_SECURITY", "E"),
        (v("262=r|263=0|264=0|146=1|55=Q"), "UNKNOWN_SECURITY", "no channel"),
        (v(f"57=c|262=r|263=0|264=0|267=1|269=bid|{ALL}"), "UNSUPPORTED_ENTRY_TYPE", "bid"),
        (
            v(f"57=c|262=r|263=0|264=1|{ALL}|20101={TEN_O_CLOCK}"),
            "UNSUPPORTED_DEPTH",
            "MarketDepth",
        ),
    ],
)
def test_each_wrong_request_is_rejected_with_its_reason(
    request_: bytes, refusal: str, text: str
) -> None:
    client = Client()
    client.server.catch_up()
    (first, *_) = client.says(request_)
    assert first[35] == b"Y"
    assert first[20105].decode() == refusal
    assert text in first[58].decode()
    assert first.get(281, b"").decode() == Refusal[refusal].reason
    named = b"\x01262=r\x01" in request_ and b"262=r\x01262" not in request_
    assert first[262] in ({b"r"} if named else {b"r", b"NONE", b"x" * 64})
    assert client.server.counts[f"rejected_{refusal.lower()}"] == 1
    # The connection stays, and what is right is answered.
    assert numbers(client.asks(id=b"next", begin_ns=at(9))) == [10]


def test_a_channel_name_that_is_no_text_is_malformed() -> None:
    data = sealed(b"35=V|34=0|57=\xff|262=r|263=0|264=0|146=1|55=A|")
    (said,) = Client().says(data)
    assert said[20105] == b"MALFORMED"


def test_an_id_is_used_once() -> None:
    client = Client()
    client.asks()
    (said,) = client.asks()
    assert (said[20105], said[281]) == (b"DUPLICATE_ID", b"1")


def test_ids_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_MAX", 2)
    client = Client()
    assert [client.asks(id=id)[0][35] for id in (b"a", b"b", b"c", b"a")] == [b"UP"] * 4
    assert client.asks(id=b"c")[0][35] == b"Y"


def test_too_many_answers_under_way_are_refused() -> None:
    client = Client(waiting_max=2)
    data = b"".join(
        FORMAT.request(MarketDataRequest(b"%d" % id, "c", (), at(0))) for id in range(3)
    )
    answer = client.says(data)
    assert answer[0][20105] == b"TOO_MANY"
    assert (answer[0][262], answer[0][281]) == (b"2", b"2")
    assert answer[0][58].startswith(b"2 answers")


def test_too_many_requests_a_second_are_refused() -> None:
    client = Client(requests_s=2)
    kinds = []
    for number, now_ns in enumerate([0, 0, 0, 400 * MS, 500 * MS, 600 * MS, 1000 * MS]):
        client.now_ns = now_ns
        kinds.append(client.asks(id=b"%d" % number)[0][35])
    assert kinds == [b"UP", b"UP", b"Y", b"Y", b"UP", b"Y", b"UP"]


def test_too_large_answers_are_refused() -> None:
    (said,) = Client(range_messages_max=9).asks()
    assert said[20105] == b"TOO_LARGE"
    assert b"10 messages" in said[58]
    (said,) = Client(state_entries_max=9).asks(begin_ns=-1)
    assert said[20105] == b"TOO_LARGE"
    assert Client(state_entries_max=9).asks(begin_ns=-1, securities=(b"A",))[0][35] == b"UP"


def test_what_is_no_longer_held_is_refused_with_the_time_from_which_it_is() -> None:
    client = Client(published(100, bytes_max=1000))
    first = client.channel.store.first
    assert first > 50
    (said,) = client.asks()
    assert said[20105] == b"TIME_NOT_HELD"
    held_from_ns = utc_ns(said[20106])
    assert held_from_ns == at(first - 1)
    assert numbers(client.asks(id=b"s", begin_ns=held_from_ns))[0] == first


def test_what_was_sent_before_the_server_came_is_refused() -> None:
    client = Client()
    client.server.histories = {"c": client.channel.history(at(5))}
    (said,) = client.asks(begin_ns=at(4.9))
    assert utc_ns(said[20106]) == at(5)
    assert numbers(client.asks(id=b"s", begin_ns=at(5)))[0] == 6


def test_of_a_new_epoch_nothing_older_is_held() -> None:
    client = Client()
    client.channel.restart()
    (said,) = client.asks()
    assert (said[20105], said.get(20106)) == (b"TIME_NOT_HELD", None)
    client.channel.publish(refresh("279=0|269=0|278=x|55=A|270=1"))
    (said,) = client.asks(id=b"s")
    assert utc_ns(said[20106]) == at(10)
    assert client.asks(id=b"t", begin_ns=at(10))[0][50] == b"8"
    assert client.asks(id=b"u", begin_ns=-1)[0][16] == b"1"


def test_what_leaves_the_store_meanwhile_ends_the_answer() -> None:
    client = Client(published(10, bytes_max=2000), scan_messages=2)
    client.session.feed(FORMAT.request(MarketDataRequest(b"r", "c", (), at(0))), 0)
    assert read(client.session.tick(0))[0][20104] == b"2"
    for _ in range(30):
        client.channel.publish(refresh("279=0|269=0|278=x|55=A|270=1"))
    (said,) = read(client.session.tick(0))
    assert (said[35], said[20105], said[262]) == (b"Y", b"CUT_SHORT", b"r")


def test_a_new_epoch_ends_the_answer() -> None:
    client = Client(scan_messages=2)
    client.session.feed(FORMAT.request(MarketDataRequest(b"r", "c", (), at(0))), 0)
    client.session.tick(0)
    client.channel.restart()
    assert read(client.session.tick(0))[0][20105] == b"CUT_SHORT"


def test_a_server_that_lacks_messages_itself_says_so() -> None:
    channel = published(3)
    channel.next += 2
    channel.publish(refresh("279=0|269=0|278=x|55=A|270=1"))
    client = Client(channel)
    (said,) = client.asks()
    assert said[20105] == b"NOT_COMPLETE"
    assert numbers(client.asks(id=b"s", begin_ns=at(3))) == [6]
    (said,) = client.asks(id=b"t", begin_ns=-1)
    assert said[20105] == b"STATE_UNKNOWN"
    channel.publish(full("A", "269=0|270=1"))
    assert client.asks(id=b"u", begin_ns=-1, securities=(b"A",))[0][35] == b"UP"
    assert client.asks(id=b"v", begin_ns=-1)[0][20105] == b"STATE_UNKNOWN"


def test_books_that_fall_behind_the_store_are_unknown() -> None:
    client = Client(published(100, bytes_max=1000))
    assert client.asks(begin_ns=-1)[0][20105] == b"STATE_UNKNOWN"
    assert client.history.state.number == 100


def test_books_pass_over_what_was_left_out_however_much() -> None:
    channel = published(3)
    channel.skip(1_000_000)
    channel.publish(refresh("279=0|269=0|278=x|55=A|270=1"))
    client = Client(channel)
    assert [client.server.catch_up(10) for _ in range(3)] == [False, False, True]
    assert client.history.state.whole
    assert client.history.state.number == 1_000_004


def test_a_security_is_found_by_the_books_where_no_definition_says_more() -> None:
    client = Client()
    server = MarketDataServer(FORMAT, {"c": client.history})
    session = server.session("me", 0)
    request = FORMAT.request(MarketDataRequest(b"r", "", (b"A",)))
    assert read(session.feed(request, 0))[0][20105] == b"UNKNOWN_SECURITY"
    server.catch_up()
    again = FORMAT.request(MarketDataRequest(b"t", "", (b"A",)))
    client.session = server.session("me too", 0)
    assert client.says(again)[0][35] == b"UP"


@pytest.mark.parametrize(
    ("group", "securities"),
    [
        ("146=1|48=12|22=8", (b"12",)),
        ("146=1|55=A|48=12|22=8", (b"A",)),
        ("146=1|55=[N/A]|48=12|22=8", (b"12",)),
        ("146=1|48=12|55=A", (b"A",)),
        ("146=1|48=12|55=[N/A]", (b"12",)),
        ("146=3|55=A|55=B|55=A", (b"A", b"B")),
        ("146=0", ()),
        ("146=1|55=[N/A]", ()),
    ],
)
def test_a_security_is_its_symbol_else_its_id(group: str, securities: tuple[bytes, ...]) -> None:
    assert FORMAT.read_request(v(f"262=r|263=0|264=0|{group}")).securities == securities


def test_requests_are_read_as_they_were_written() -> None:
    for asked in (
        MarketDataRequest(b"r", "c"),
        MarketDataRequest(b"r", "", (b"A", b"B"), 5, 10**18, (b"0", b"J"), 3),
    ):
        assert FORMAT.read_request(FORMAT.request(asked)) == asked
        other = MarketDataFormat(20001, "FIX.4.4")
        assert other.read_request(other.request(asked)) == asked


@pytest.mark.parametrize(
    ("securities", "types", "concerned"),
    [
        ([], [], True),
        ([b"A"], [], True),
        ([b"B"], [], False),
        ([b"x"], [], False),  # the text is there, in another field
        ([], [b"0"], True),
        ([], [b"1"], False),
        ([b"A"], [b"1"], False),
        ([b"%d" % number for number in range(20)], [], False),
        ([b"A", *(b"%d" % number for number in range(20))], [], True),
    ],
)
def test_a_message_concerns_what_its_entries_name(
    securities: list[bytes], types: list[bytes], concerned: bool
) -> None:
    data = refresh("279=0|269=0|278=x|55=A|270=1")
    assert concerns(data, securities, types) is concerned


@pytest.mark.parametrize("securities", [(), (b"A",), (b"B",)])
def test_a_message_with_a_faulty_field_comes_as_it_was_published(
    securities: tuple[bytes, ...],
) -> None:
    client, requester = Client(), MarketDataClient(FORMAT)
    faulty = client.channel.publish(refresh("279=0|269=0|278=o11|55=A|58=|"))
    requester.connected(0)
    requester.ask("c", 0, securities=securities, begin_ns=OPENING)
    requester.tick(0)
    out = client.session.feed(requester.data_to_send(), 0)
    while client.session.deadline_ns <= 0:
        out += client.session.tick(0)
    (complete,) = requester.feed(out, 1)
    assert isinstance(complete, Complete)
    expected = [each for each in client.channel.bodies.values() if not securities or (
        b"\x0155=%b\x01" % securities[0] in each
    )]  # fmt: skip
    assert complete.messages == expected
    assert (client.channel.bodies[faulty] in expected) is (securities != (b"B",))


@pytest.mark.parametrize("tag", [0, 35, 262, 10**9])
def test_not_every_tag_can_say_the_channel(tag: int) -> None:
    with pytest.raises(UsageError, match="cannot say the channel"):
        MarketDataFormat(tag)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, b"19700101-00:00:00.000000000"),
        (1_767_603_600_000_000_001, b"20260105-09:00:00.000000001"),
        (951_868_799_999_999_999, b"20000229-23:59:59.999999999"),
    ],
)
def test_times_are_written_to_the_nanosecond_and_read_back(time_ns: int, text: bytes) -> None:
    assert utc_text(time_ns) == text
    assert utc_ns(text) == time_ns


def test_a_time_is_read_as_the_codec_reads_it(seed: int) -> None:
    draw, values = random.Random(seed), load_interpreted("feedhandler.codecs.fix.values")
    known = 0
    for _ in range(5_000):
        text = bytearray(utc_text(draw.randrange(1 << 63)))
        for _ in range(draw.choice((0, 0, 1, 2))):
            text[draw.randrange(len(text))] = draw.choice(b"0123456789:.- ")
        whole = bytes(
            text[: draw.choice((17, 18, 19, len(text)))] + draw.choice((b"", b"9", b"999"))
        )
        found = utc_ns(whole)
        assert found == values.utc_ns(whole, 0, len(whole)), whole
        known += found >= 0
    assert known > 500


# -- the connection ------------------------------------------------------------------------------


def session(**settings: Any) -> MarketDataSession:
    return Client(**settings).session


def test_silence_is_filled_by_heartbeats_and_ends_the_connection() -> None:
    made = session()
    assert made.deadline_ns == 1000 * MS
    assert read(made.tick(1000 * MS))[0][35] == b"0"
    assert made.tick(1500 * MS) == b""
    for now_ns in range(2000 * MS, 5000 * MS, 1000 * MS):
        assert made.tick(now_ns)
    assert made.tick(5000 * MS) == b""
    assert made.closed == "the client is silent"
    assert made.deadline_ns == NEVER
    assert made.feed(b"x", 0) == made.tick(0) == b""


def test_a_heartbeat_keeps_the_connection() -> None:
    made = session()
    made.feed(FORMAT.message(b"0"), 4900 * MS)
    made.tick(5000 * MS)
    assert not made.closed


def test_a_test_request_is_answered() -> None:
    (said,) = read(session().feed(FORMAT.message(b"1", b"112=hello\x01"), 0))
    assert (said[35], said[112]) == (b"0", b"hello")


def test_a_logout_is_answered_and_ends_the_connection() -> None:
    client = Client()
    assert read(client.session.feed(FORMAT.message(b"5") * 2, 0)) == [
        {35: b"5", 34: b"0"},
    ]
    assert client.session.closed
    assert not client.server.sessions


def test_other_messages_are_counted() -> None:
    client = Client()
    assert client.session.feed(FORMAT.message(b"D"), 0) == b""
    assert client.server.counts["other_messages"] == 1


def test_what_is_not_fix_ends_the_connection() -> None:
    client = Client()
    out = client.session.feed(FORMAT.message(b"1") + b"GET / HTTP/1.1\r\n\r\n" * 3, 0)
    assert read(out)[0][35] == b"0"
    assert "other than FIX" in client.session.closed
    assert client.server.counts["clients_wrong"] == 1


def test_a_message_that_is_whole_but_cannot_be_read_is_malformed() -> None:
    # The framing looks at the header; that data do not fit their length shows in the fields.
    data = sealed(b"35=V|34=0|262=r|263=0|264=0|95=5|96=a|")
    (said,) = read(session().feed(data, 0))
    assert (said[35], said[20105], said[262]) == (b"Y", b"MALFORMED", b"NONE")


def test_a_client_that_does_not_read_gets_no_more_and_is_cut_off() -> None:
    client = Client()
    client.session.feed(FORMAT.request(MarketDataRequest(b"r", "c", (), at(0))), 0)
    client.session.pause(0)
    client.session.pause(1)
    assert client.session.tick(1) == b""
    assert client.session.deadline_ns == 5000 * MS
    client.session.resume(2)
    assert client.session.tick(2)
    client.session.pause(3)
    client.session.tick(5000 * MS + 3)
    assert client.session.closed == "the client takes nothing any more"


def test_a_client_too_many_is_refused() -> None:
    client = Client(clients_max=1)
    second = client.server.session("second", 0)
    assert second.closed
    client.session.end()
    client.session.end()
    assert not client.server.session("third", 0).closed
    assert client.server.counts["clients_left"] == 1


@pytest.mark.parametrize("wrong", [{"part_messages": 0}, {"heartbeat_us": 6_000_000}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        MarketDataSettings(**wrong)
