"""The generator's fast packers against the description's own encoder, and the listing's codes."""

import random
from datetime import date

import pytest

from feedhandler.codecs import UsageError, load_feed
from feedhandler.replay.generating.generator_market import Share
from feedhandler.replay.generating.generator_packets import header_packer
from feedhandler.replay.generating.generator_wire import MessageTime, Wire, clock, packer
from feedhandler.replay.generating.instruments import Kind, isin_of, listing
from feedhandler.replay.state.book import BUY, Order

FEED = load_feed("euronext-utp-md")
NOON_NS = 12 * 3_600_000_000_000 + 34 * 60_000_000_000 + 56_789_123_456


def noon():
    time = MessageTime(date(2011, 3, 14))
    time.set(NOON_NS)
    return time


def every_message():
    """One message of every type that `Wire` packs."""
    wire, time = Wire(FEED), noon()
    instruments = listing(random.Random(1), 40)
    instrument = instruments[0]
    share = Share(instrument)
    share.last -= 3 * instrument.tick
    order = Order((time.previous_date, 17), BUY, 4711, 10, NOON_NS - 5)
    yield wire.order(instrument, order, b"1", b"A", 10, 500, 3, 10838, 11, time)
    yield wire.clear(instrument, 4, 11, time)
    yield wire.quote(instrument, 10, (1, 2, 3), (4, 5, 6), 9, 11, time)
    yield wire.trade(share, 7, b"-", 5, 11, time)
    yield wire.price_update(share, 5, 11, time)
    yield wire.closing_price(instrument, 99, 6, 11, time)
    yield wire.state(instrument, True, NOON_NS, 7, 11, time)
    yield wire.index(instruments[-1], 390_000, 400_000, 380_000, 20, 13, time)
    yield wire.reference(next(i for i in instruments if i.kind is Kind.WARRANT), 8, 10, time)
    yield wire.start_reference
    yield wire.end_reference


@pytest.mark.parametrize("message", list(every_message()), ids=lambda m: str(m[3] + 256 * m[2]))
def test_a_packed_message_is_what_the_description_encodes_from_its_fields(message):
    record = FEED.decode_message(message)
    assert FEED.encode_message(record) == message


def test_an_order_message_says_what_it_was_given():
    time = noon()
    wire = next(every_message())
    fields = FEED.decode_message(wire).wire()
    assert fields["Price"] == 4711
    assert (fields["AggregatedVolume"], fields["NumberOrders"]) == (500, 3)
    assert (fields["OrderDate"], fields["OrderID"]) == (20110311, 17)
    assert (fields["SourceTime"], fields["SourceTimeMicroSecs"]) == (45_296_789, 123)
    assert fields["OrderPriorityTime"] == 123_456_789 == clock(time.ns)
    assert (fields["Side"], fields["ActionType"]) == ("1", "A")


def test_the_packet_header_is_what_the_description_encodes():
    message = next(every_message())
    whole = FEED.encode_packet(sequence=5, messages=[message], service=104, send_time=123)
    header = header_packer(FEED)(len(message), 501, 5, 123, 104, 1)
    assert header + message == whole


def test_a_field_that_is_unknown_or_out_of_order_is_refused():
    with pytest.raises(UsageError, match="no field"):
        packer(FEED, 230, ("Colour",))
    with pytest.raises(UsageError, match="out of order"):
        packer(FEED, 230, ("SourceTime", "SymbolIndex"))


@pytest.mark.parametrize("known", ["US0378331005", "FR0000120271", "GB0002634946"])
def test_the_check_digit_is_that_of_real_codes(known):
    assert isin_of(known[:2], known[2:11]) == known


def test_a_listing_has_unique_codes_that_fit_their_fields():
    for seed in range(5):
        instruments = listing(random.Random(seed), 2000)
        assert len(instruments) == 2000
        for codes in ([i.symbol for i in instruments], [i.mnemo for i in instruments],
                      [i.isin for i in instruments]):  # fmt: skip
            assert len(set(codes)) == 2000, f"seed {seed}"
        shares = {i.symbol for i in instruments if i.kind is Kind.EQUITY}
        for instrument in instruments:
            assert len(instrument.mnemo) <= 5
            assert len(instrument.name) <= 18
            assert instrument.opening_price % instrument.tick == 0
            assert (instrument.underlying in shares) == (instrument.kind is Kind.WARRANT)


@pytest.mark.parametrize("count", [0, 7, 100_001])
def test_a_listing_out_of_bounds_is_refused(count):
    with pytest.raises(UsageError, match="instruments"):
        listing(random.Random(1), count)
