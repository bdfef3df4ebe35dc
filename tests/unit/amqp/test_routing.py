"""Addresses and patterns: what a link asks for, and what is refused with which condition."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedhandler.amqp.patterns import NODES_MAX, PatternTrie
from feedhandler.amqp.routing import (
    ADDRESS_CHARS_MAX,
    PATTERNS_MAX,
    WORDS_MAX,
    AddressError,
    Grain,
    parse_address,
)
from feedhandler.codecs import load_feed
from tests.support.patterns import matches

FEED = load_feed("euronext-utp-md")
IEX = load_feed("iex-deep")


def parse(address: str):
    return parse_address(address, FEED.type_code)


# -- patterns -------------------------------------------------------------------------------


#: pattern: (concerns the service, wants all of it, wants symbol 1, wants messages without symbol)
WANTS = {
    "euronext.104": (True, True, True, True),
    "euronext.*": (True, True, True, True),
    "#": (True, True, True, True),
    "euronext.#": (True, True, True, True),
    "euronext.104.#": (True, True, True, True),
    "*.104": (True, True, True, True),
    "euronext.104.*": (True, True, True, True),
    "*.*.*": (True, True, True, True),
    "euronext.104.1": (True, False, True, False),
    "euronext.*.1": (True, False, True, False),
    "#.1": (True, False, True, False),
    "euronext.104.-": (True, False, False, True),
    "euronext.104.2": (True, False, False, False),
    "euronext.104.quality": (True, False, False, False),
    "euronext.105": (False, False, False, False),
    "euronext.105.1": (False, False, False, False),
    "nyse.#": (False, False, False, False),
    "euronext": (False, False, False, False),
    "*": (False, False, False, False),
    "euronext.104.1.x": (False, False, False, False),
}


@pytest.mark.parametrize(("pattern", "expected"), WANTS.items())
def test_a_pattern_wants_a_service_a_symbol_or_nothing(
    pattern: str, expected: tuple[bool, ...]
) -> None:
    asked = parse(pattern)
    found = (
        asked.concerns("euronext", "104"),
        asked.wants_service("euronext", "104"),
        asked.wants_symbol("euronext", "104", "1"),
        asked.wants_symbol("euronext", "104", "-"),
    )
    assert found == expected


@given(
    st.lists(
        st.lists(st.sampled_from(["*", "#", "e", "104", "1", "-"]), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["1", "2", "-", "quality"]),
)
def test_who_wants_a_symbol_or_a_service_is_concerned_by_it(
    patterns: list[list[str]], symbol: str
) -> None:
    asked = parse(",".join(".".join(words) for words in patterns))
    if asked.wants_service("e", "104"):
        assert asked.wants_symbol("e", "104", symbol)
    if asked.wants_symbol("e", "104", symbol):
        assert asked.concerns("e", "104")


@given(
    st.lists(
        st.lists(st.sampled_from(["*", "#", "e", "104", "1", "2"]), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["1", "2", "3", "-"]),
)
def test_what_a_link_wants_is_what_some_pattern_of_it_matches(
    patterns: list[list[str]], symbol: str
) -> None:
    split = [tuple(words) for words in patterns]
    asked = parse(",".join(".".join(words) for words in patterns))
    whole = any(matches(words, ("e", "104")) for words in split)
    one = any(matches(words, ("e", "104", symbol)) for words in split)
    assert asked.wants_symbol("e", "104", symbol) is (whole or one)


def test_a_thousand_keys_fit_in_one_address_and_are_looked_up() -> None:
    names = {f"{10_000 + n}" for n in range(1000)}
    asked = parse(",".join(f"euronext.104.{name}" for name in names))
    assert asked.named("euronext", "104") == names
    assert asked.named("euronext", "105") == set()
    assert not asked.concerns("euronext", "105")
    assert parse("euronext.104,euronext.104.1").named("euronext", "104") is None


def test_several_patterns_stand_in_one_address_with_commas() -> None:
    asked = parse("euronext.104,euronext.105.1,euronext.106.#?as=batch")
    assert asked.wants_service("euronext", "104")
    assert asked.wants_symbol("euronext", "105", "1")
    assert not asked.wants_symbol("euronext", "105", "2")
    assert asked.wants_service("euronext", "106")
    assert asked.grain is Grain.BATCH


WORDS = ["*", "#", "e", "104", "1", "2"]


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), min_size=1, max_size=20),
)
def test_a_trie_finds_what_each_pattern_by_itself_matches(patterns: list[list[str]]) -> None:
    split = [tuple(words) for words in patterns]
    named = PatternTrie(split).named(("e", "104"))
    for symbol in ("1", "2", "e", "104", "nobody's"):
        keys = (("e", "104"), ("e", "104", symbol))
        found = any(matches(words, key) for words in split for key in keys)
        assert (named is None or symbol in named) is found
    assert named is None or "nobody's" not in named


def test_a_walk_of_the_trie_is_in_few_nodes_however_many_patterns_there_are() -> None:
    words = ("e", "104", "*", "#")
    begins = [each for size in range(1, 5) for each in itertools.product(words, repeat=size)]
    begins = [each for each in begins if ("#", "#") not in itertools.pairwise(each)]
    trie = PatternTrie((*begin, f"s{n}") for n, begin in enumerate(begins))
    assert len(trie._reached(("e", "104"))) <= NODES_MAX


# -- addresses ------------------------------------------------------------------------------


def test_an_address_without_keys_asks_for_packets_with_quality() -> None:
    asked = parse("euronext.104")
    assert asked.grain is Grain.PACKET
    assert asked.types is None
    assert asked.quality
    assert not asked.stamp


def test_every_key_of_an_address_is_understood() -> None:
    asked = parse("euronext.104?as=message&types=230,140&quality=0&stamp=1")
    assert asked.grain is Grain.MESSAGE
    assert asked.types == {230, 140}
    assert not asked.quality
    assert asked.stamp
    assert parse("e.1?as=packet&quality=1&stamp=0") == parse("e.1")
    assert parse("e.1?") == parse("e.1")


def test_types_are_written_as_the_feed_writes_them() -> None:
    assert parse_address("iex.1?types=8,T", IEX.type_code).types == {ord("8"), ord("T")}


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("", "amqp:invalid-field"),
        ("?as=batch", "amqp:invalid-field"),
        (".", "amqp:invalid-field"),
        ("euronext.", "amqp:invalid-field"),
        (".104", "amqp:invalid-field"),
        ("euronext..104", "amqp:invalid-field"),
        ("euronext.104,", "amqp:invalid-field"),
        (",euronext.104", "amqp:invalid-field"),
        ("euronext.10*", "amqp:invalid-field"),
        ("euronext.##", "amqp:invalid-field"),
        ("euronext.104?colour=red", "amqp:invalid-field"),
        ("euronext.104?AS=packet", "amqp:invalid-field"),
        ("euronext.104?as=byte", "amqp:invalid-field"),
        ("euronext.104?as=", "amqp:invalid-field"),
        ("euronext.104?as", "amqp:invalid-field"),
        ("euronext.104?as=packet&as=packet", "amqp:invalid-field"),
        ("euronext.104?as=packet&as=batch", "amqp:invalid-field"),
        ("euronext.104?types=", "amqp:invalid-field"),
        ("euronext.104?types=230,", "amqp:invalid-field"),
        ("euronext.104?types=order", "amqp:invalid-field"),
        ("euronext.104?types=-1", "amqp:invalid-field"),
        ("euronext.104?types=65536", "amqp:invalid-field"),
        ("euronext.104?types=²", "amqp:invalid-field"),
        ("euronext.104?quality=2", "amqp:invalid-field"),
        ("euronext.104?quality=", "amqp:invalid-field"),
        ("euronext.104?stamp=yes", "amqp:invalid-field"),
        ("euronext.104?snapshot=1", "amqp:not-implemented"),
        ("euronext.104?from=00", "amqp:not-implemented"),
        ("queue.orders", "amqp:not-found"),
        ("queue.*", "amqp:not-found"),
        ("euronext.104,queue.orders", "amqp:not-found"),
        ("x" * (ADDRESS_CHARS_MAX + 1), "amqp:invalid-field"),
        (",".join(["e.1"] * (PATTERNS_MAX + 1)), "amqp:invalid-field"),
        (".".join("#" * (WORDS_MAX + 1)), "amqp:invalid-field"),
        (".".join("#" * 2000), "amqp:invalid-field"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_condition(address: str, condition: str) -> None:
    with pytest.raises(AddressError) as refusal:
        parse(address)
    assert refusal.value.condition == condition
    assert refusal.value.message


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("euronext.104", False),
        ("euronext.104?snapshot=0&quality=0", False),
        ("euronext.104?snapshot=1", True),
        ("euronext.104?snapshot=1&quality=1&as=message", True),
        ("euronext.104?snapshot=1&quality=0", "amqp:invalid-field"),
        ("euronext.104?snapshot=2", "amqp:invalid-field"),
        ("euronext.104?snapshot=", "amqp:invalid-field"),
        ("euronext.104?snapshot=1&from=00", "amqp:not-implemented"),
    ],
)
def test_a_snapshot_may_be_asked_for_where_it_is_offered(address: str, wanted: object) -> None:
    try:
        found: object = parse_address(address, FEED.type_code, snapshots=True).snapshot
    except AddressError as refusal:
        found = refusal.condition
    assert found == wanted


@given(st.text(st.sampled_from("ae1.*#,?&=-"), max_size=40))
def test_any_text_is_an_address_or_refused_as_one(text: str) -> None:
    try:
        asked = parse(text)
    except AddressError:
        return
    assert asked.patterns
    asked.concerns("e", "1")
    asked.wants_symbol("e", "1", "a")


def test_the_deepest_pattern_that_is_allowed_is_matched() -> None:
    words = ["#"] * WORDS_MAX
    assert parse(".".join(words)).wants_service("euronext", "104")
