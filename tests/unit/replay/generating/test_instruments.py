"""The listing's codes, and what reference data says of an instrument."""

import random

import pytest

from feedhandler.codecs import UsageError, load_feed
from feedhandler.replay.generating.instruments import Kind, isin_of, listing
from feedhandler.replay.generating.layouts import templates
from feedhandler.replay.generating.notices import reference_fields
from feedhandler.replay.generating.times import clock

FEED = load_feed("euronext-utp-md")


def test_reference_data_says_what_the_listing_has():
    instruments = listing(random.Random(1), 40)
    size = FEED.layout(553).size
    whole = templates(FEED, 553, instruments, lambda each: reference_fields(each, 20_110_315))
    for index, instrument in enumerate(instruments):
        wire = FEED.decode_message(whole[index * size : (index + 1) * size].tobytes()).wire()
        assert wire["SymbolIndex"] == instrument.symbol
        assert (wire["InstrumentName"], wire["Mnemo"]) == (instrument.name, instrument.mnemo)
        assert (wire["InstrumentCode"], wire["MIC"]) == (instrument.isin, instrument.mic)
        assert wire["LastAdjPrice"] == instrument.opening_price
        assert wire["FixPriceTick"] == instrument.tick
        assert wire["LastAdjPriceScaleCode"] == instrument.price_scale
        assert wire["UnderlyingISINCode"] == instrument.underlying_isin
        assert wire["EventDate"] == "20110315"
        kinds = {Kind.EQUITY: 1, Kind.WARRANT: 9, Kind.INDEX: 7}
        assert wire["TypeOfInstrument"] == kinds[instrument.kind]


def test_a_clock_is_hours_minutes_seconds_and_milliseconds():
    noon_ns = 12 * 3_600_000_000_000 + 34 * 60_000_000_000 + 56_789_123_456
    assert clock(noon_ns) == clock(noon_ns + 86_400_000_000_000) == 123_456_789


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
