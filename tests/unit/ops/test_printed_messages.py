"""Messages as `subscribe` and `decode` print them."""

import itertools
import json
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

import feedhandler
from feedhandler.amqp.subscribing.inbox import Inbox, Message
from feedhandler.cli import app as cli
from feedhandler.codecs import UsageError, load_feed
from feedhandler.ingest.records import RecordKind
from feedhandler.ops import decode, subscribe
from feedhandler.replay.captures.reading import Datagram
from tests.support.amqp import Rig, order, packet
from tests.support.fix_messages import sealed

FEED = load_feed("euronext-utp-md")
#: 2026-11-20 10:00:00 UTC.
CAPTURED_NS = 1_795_168_800_000_000_000


@pytest.mark.parametrize(
    ("address", "chosen", "expected"),
    [
        ("euronext.#", None, ("euronext.#", "message")),
        ("euronext.#", "batch", ("euronext.#", "batch")),
        ("euronext.#?as=packet", None, ("euronext.#", "packet")),
        ("euronext.#?as=packet&types=230", None, ("euronext.#?types=230", "packet")),
        ("euronext.#?types=230&as=packet", "message", ("euronext.#?types=230", "message")),
    ],
)
def test_the_granularity_is_as_chosen_or_as_the_address_says(
    address: str, chosen: str | None, expected: tuple[str, str]
) -> None:
    assert subscribe.split_granularity(address, chosen) == expected


class Arriving:
    """Fake result of `feedhandler.subscribe`: an async context of messages that are all there."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    async def __aenter__(self) -> AsyncIterator[Message]:
        return self._each()

    async def __aexit__(self, *error: object) -> None:
        pass

    async def _each(self) -> AsyncIterator[Message]:
        for message in self.messages:
            yield message


def arriving(count: int) -> list[Message]:
    """A quality message, then `count` packets of one order each, as a link brings them."""
    rig = Rig()
    _, link = rig.attach("euronext.104?as=message")
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    for sequence in range(1, count + 1):
        rig.put(packet(sequence, [order(5)]), sequence, 1)
    rig.pump()
    return read(link.frames)


def read(frames: list[bytes]) -> list[Message]:
    """Return the messages that an inbox makes of a link's frames."""
    data = b"".join(frames)
    bounds = [0, *itertools.accumulate(len(frame) for frame in frames)]
    return Inbox().read(data, memoryview(array("q", bounds)), len(frames))


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ({}, ["230"] * 3),
        ({"quality": True}, ["quality", "230", "230", "230"]),
        ({"quality": True, "count": 2}, ["quality", "230", "230"]),
        ({"count": 1}, ["230"]),
    ],
)
def test_only_a_count_ends_the_stream_and_quality_is_no_part_of_it(
    options: dict[str, Any],
    printed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(feedhandler, "subscribe", lambda *_, **__: Arriving(arriving(3)))
    chosen = subscribe.Options(url="u", pattern="euronext.104", as_json=True, **options)
    assert subscribe.run(chosen) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [str(line["type"]) for line in lines] == printed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"as_": "message", "types": None, "stamp": False, "snapshot": False}),
        (["--snapshot"], {"snapshot": True}),
        (["--as", "packet", "--types", "230,240"], {"as_": "packet", "types": ("230", "240")}),
        (["--stamp"], {"stamp": True}),
        (
            ["--user", "ann", "--password-file", "word", "--ca", "ca.pem"],
            {"login": feedhandler.Login("ann", password_file="word", ca="ca.pem")},
        ),
        (
            ["--certificate", "c.pem", "--key", "k.pem", "--plain-over-network"],
            {"login": feedhandler.Login(certificate="c.pem", key="k.pem", plain_over_network=True)},
        ),
    ],
)
def test_the_commands_options_reach_the_subscriber(
    words: list[str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def subscribed(url: str, pattern: str, **options: Any) -> Arriving:
        given.update(options)
        return Arriving([])

    monkeypatch.setattr(feedhandler, "subscribe", subscribed)
    assert cli.chosen(["subscribe", "amqp://127.0.0.1", "euronext.104", *words])() == 0
    assert given.items() >= expected.items()


def datagram(sequence: int, *messages: bytes, kind: str = "data") -> Datagram:
    """A packet of service 104 as captured."""
    payload = FEED.encode_packet(sequence=sequence, service=104, messages=messages, kind=kind)
    return Datagram(CAPTURED_NS, "239.101.1.4", 30_104, "10.0.0.1", payload)


REFERENCE = FEED.encode_message(553, symbol_index=10_001, mnemo="AIRF", mic="XPAR")
ORDER = FEED.encode_message(230, symbol_index=10_001, price=12_345, price_scale_code=2)
TRADE = FEED.encode_message(240, symbol_index=10_002, price=100)


def decoded(*datagrams: Datagram, **options: object) -> list[dict[str, object]]:
    """Return what decode shows of the datagrams, message by message."""
    decoder = decode.Decoder(
        FEED,
        decode.Options(capture=None, feed=FEED.name, **options),  # type: ignore[arg-type]
    )
    return list(decoder.messages(iter(datagrams)))


def test_normalised_records_are_shown_with_their_symbols() -> None:
    rig = Rig(records=True)
    _, link = rig.attach("euronext.104?as=mbo&quality=0")
    rig.names[5] = "ACME_XPAR"
    update = FEED.encode_message(
        230, symbol_index=5, order_id=9, side="B", price=1250, volume=7, action_type="A",
        price_scale_code=2,
    )  # fmt: skip
    rig.put(packet(1, [update]), 1, 1)
    rig.pump()
    (message,) = read(link.frames)
    options = subscribe.Options(url="", pattern="")
    (line,) = subscribe.lines_of(message, options)
    shown = {name: line[name] for name in ("key", "type", "name", "symbol", "price", "side")}
    assert shown == {
        "key": "euronext.104.ACME_XPAR", "type": "mbo", "name": "add", "symbol": "ACME_XPAR",
        "price": 12_500_000_000, "side": "B",
    }  # fmt: skip
    assert message.symbols == {5: "ACME_XPAR"}
    with pytest.raises(UsageError, match="no packets"):
        message.packets()


def test_messages_are_shown_with_number_type_symbol_and_fields() -> None:
    (shown,) = decoded(datagram(7, ORDER))
    assert (shown["seq"], shown["type"], shown["symbol"], shown["service"]) == (
        7,
        230,
        "10001",
        104,
    )
    assert shown["price"] == 123.45
    assert shown["captured_ns"] == CAPTURED_NS


def test_types_symbols_and_services_choose() -> None:
    packet = datagram(7, ORDER, TRADE)
    assert [m["type"] for m in decoded(packet, types=("240",))] == [240]
    assert [m["type"] for m in decoded(packet, symbol="10001")] == [230]
    assert decoded(packet, service=103) == []


def test_a_symbol_can_be_chosen_by_name_once_reference_data_gave_it() -> None:
    packets = (datagram(7, REFERENCE), datagram(8, ORDER, TRADE))
    shown = decoded(*packets, names=True)
    named = str(shown[-2]["symbol"])
    assert "AIRF" in named
    assert [m["type"] for m in decoded(*packets, symbol=named)] == [553, 230]


@pytest.mark.parametrize(
    ("feed", "symbol"), [("iex-deep", "\xb2"), ("fix-marketdata", "9" * 5_000)]
)
def test_a_symbol_of_odd_digits_is_a_text_as_any_other(feed: str, symbol: str) -> None:
    known = load_feed(feed)
    if feed == "iex-deep":
        status = known.encode_message("trading_status", symbol=symbol)
        payload = known.encode_packet(sequence=1, service=1, messages=[status])
    else:
        body = f"35=X|49=X|56=Y|34=1|52=20261201-10:00:00.000|268=1|279=0|269=0|55={symbol}|"
        payload = sealed(f"{body}270=1|271=1|".encode())
    found = Datagram(CAPTURED_NS, "239.101.1.4", 30_104, "10.0.0.1", payload)
    decoder = decode.Decoder(
        known,
        decode.Options(capture=None, feed=feed, names=True),  # type: ignore[arg-type]
    )
    assert [m["symbol"] for m in decoder.messages(iter([found]))] == [symbol]


def test_control_packets_are_shown_when_asked_for() -> None:
    packet = datagram(7, kind="heartbeat")
    assert decoded(packet) == []
    assert [m["type"] for m in decoded(packet, control=True)] == ["heartbeat"]


def test_what_is_no_packet_is_counted_by_reason() -> None:
    decoder = decode.Decoder(
        FEED,
        decode.Options(capture=None, feed=FEED.name),  # type: ignore[arg-type]
    )
    junk = Datagram(CAPTURED_NS, "239.101.1.4", 30_104, "10.0.0.1", b"junk")
    assert list(decoder.messages(iter([junk, junk]))) == []
    assert dict(decoder.rejected) == {"truncated": 2}


def test_the_first_rejected_packets_of_each_reason_are_reported_one_by_one() -> None:
    decoder = decode.Decoder(
        FEED,
        decode.Options(capture=None, feed=FEED.name),  # type: ignore[arg-type]
    )
    bad = datagram(7, ORDER)._replace(payload=datagram(7, ORDER).payload[:-1])
    junk = bad._replace(payload=b"junk")
    list(decoder.messages(iter([datagram(6, ORDER), bad, *[junk] * 9])))
    assert dict(decoder.rejected) == {"length_mismatch": 1, "truncated": 9}
    assert decoder.faults["length_mismatch"] == [
        "length_mismatch: datagram 2 (10:00:00.000000000, 239.101.1.4:30104, 79 bytes): "
        "PacketLength at byte 0: 80, wanted 79, for a datagram of 79 bytes"
    ]
    assert len(decoder.faults["truncated"]) == decode.FAULTS_SHOWN_MAX


def test_a_type_that_the_feed_has_not_is_refused() -> None:
    with pytest.raises(UsageError):
        decoded(types=("X",))
