"""Mutated packets of every type of every feed, through the compiled scanner.

`FEEDHANDLER_FUZZ` is the number of packets: 100,000 by default, of which each family has its share,
and more only where a rare reject reason has not come by then. In a campaign (`make fuzz`) there are
ten million of each family, and each goes through the interpreted twin as well.
"""

import os

from feedhandler.codecs import load_feed
from tests.fuzz import scanner_fuzz
from tests.support.feeds import BINARY_FEEDS, FAMILIES

#: By so many packets every reject reason comes with any seed.
MOST = 1_200_000


def test_every_mutated_packet_gets_one_typed_answer_and_every_reason_comes(seed):
    count = int(os.environ.get("FEEDHANDLER_FUZZ", "100000"))
    print(f"python -m tests.fuzz.scanner_fuzz --count {count} --seed {seed}")
    outcome = scanner_fuzz.run(count, seed, most=MOST)
    print(outcome.report())
    assert outcome.packets >= count
    assert outcome.past_header >= 0.3
    assert not outcome.missing
    assert min(outcome.families.values()) >= count // (2 * len(FAMILIES))


def test_each_binary_feed_is_of_one_family():
    assert sorted(name for names in FAMILIES.values() for name in names) == sorted(BINARY_FEEDS)


def test_a_seed_gives_the_same_packets_again():
    first, second = (scanner_fuzz.Mutator(load_feed("iex-deep"), 7) for _ in range(2))
    for _ in range(3):
        one, other = first.batch(50), second.batch(50)
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1].tolist() == other[1].tolist()


def test_valid_packets_of_every_type_are_what_is_mutated():
    for name in BINARY_FEEDS:
        feed = load_feed(name)
        packets = scanner_fuzz.Mutator(feed, 1).packets
        seen = set()
        for packet in packets:
            seen.update(feed.decode_packet(packet).types)
        assert seen >= set(feed.message_types)
