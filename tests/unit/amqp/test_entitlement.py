"""Links of a limited user receive the user's part of everything, however it comes."""

import random
import struct

import pytest

from feedhandler.amqp.framing import WHOLE_PACKET
from feedhandler.amqp.users import Entitlement, entitlement_of
from feedhandler.codecs.feed import split_packets
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, Rig, Sent, order, packet, prefix_of, quote

SERVICES = (104, 105, 106)
SYMBOLS = range(1000, 1012)
#: A symbol that has a name: it is granted by either word.
NAMES = {1005: "ACME"}
OTHER_WORD = {"ACME": "1005"}
#: (service, sequence, symbol's word) of a market message.
Key = tuple[int, int, str]


def market(rig: Rig, chance: random.Random, first: int, last: int) -> None:
    """Random messages of random symbols in every service."""
    for sequence in range(first, last + 1):
        for channel, service in enumerate(SERVICES):
            listed = [
                chance.choice((order, quote))(chance.choice(SYMBOLS), index)
                for index in range(chance.randrange(1, 6))
            ]
            rig.put(packet(sequence, listed, service), sequence, len(listed), channel=channel)


def entitled(chance: random.Random) -> Entitlement:
    services = chance.sample([f"euronext.{n}" for n in SERVICES], chance.randrange(1, 3))
    symbols = chance.choice(
        (["*"], ["1003", "1010"], ["100*"], ["101*", "1002"], ["nothing"], ["ACME", "1001"])
    )
    return entitlement_of(services, symbols)


def keys_in(sent: list[Sent], names: dict[int, str]) -> list[Key]:
    """The market messages in packets and batches, in order."""
    found = []
    for each in sent:
        if each.content == "quality+json":
            continue
        for piece in split_packets(FEED, each.body):
            decoded = FEED.decode_packet(piece)
            words = [names.get(symbol) or FEED.symbol_text(symbol) for symbol in decoded.symbols]
            found += [(decoded.service, decoded.sequence, word) for word in words]
    return found


def allowed(mine: Entitlement, service: str, word: str) -> bool:
    words = (word, OTHER_WORD.get(word, word))
    return any(mine.allows("euronext", service, each) for each in words)


def mine_of(keys: list[Key], mine: Entitlement) -> list[Key]:
    return [key for key in keys if allowed(mine, str(key[0]), key[2])]


def by_service(keys: list[Key]) -> dict[int, list[Key]]:
    return {service: [key for key in keys if key[0] == service] for service in SERVICES}


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.mark.parametrize("pattern", ["#", "euronext.*", "*.104,*.105.*", "euronext.#.1003,*.106"])
def test_single_messages_are_those_of_everybodys_that_are_the_users(
    pattern: str, chance: random.Random
) -> None:
    for _ in range(15):
        rig = Rig(SERVICES)
        rig.names.update(NAMES)
        mine = entitled(chance)
        _, everybody = rig.attach(f"{pattern}?as=message")
        _, limited = rig.attach(f"{pattern}?as=message", entitlement=mine)
        market(rig, chance, 1, 15)
        rig.pump()
        wanted = [each.body for each in everybody.data if allowed(mine, *each.key.split(".")[1:])]
        assert [each.body for each in limited.data] == wanted


@pytest.mark.parametrize("grain", ["packet", "batch"])
def test_packets_are_thinned_to_the_users_messages(grain: str, chance: random.Random) -> None:
    for _ in range(15):
        rig = Rig(SERVICES)
        rig.names.update(NAMES)
        mine = entitled(chance)
        _, everybody = rig.attach(f"#?as={grain}")
        _, limited = rig.attach(f"#?as={grain}", entitlement=mine)
        market(rig, chance, 1, 15)
        rig.control_event(RecordKind.GAP, channel=2, line=0, sequence=16, next_sequence=20)
        rig.pump()
        whole = keys_in(everybody.sent, rig.names)
        assert by_service(keys_in(limited.sent, rig.names)) == by_service(mine_of(whole, mine))
        keys = {tuple(each.key.split(".")[:2]) for each in limited.sent}
        assert all(mine.concerns(*words) for words in keys), "not even of the quality of others"


def test_a_whole_service_comes_as_the_packets_that_everybody_gets(chance: random.Random) -> None:
    rig = Rig(SERVICES)
    sender_queue, limited = rig.attach("#", entitlement=entitlement_of(["euronext.105"], ["*"]))
    _, everybody = rig.attach("euronext.105")
    market(rig, chance, 1, 20)
    rig.pump()
    assert limited.frames == everybody.frames
    assert [stream.service for stream in rig.streams if sender_queue in stream.whole] == [105]


def test_a_snapshot_block_is_thinned_too(chance: random.Random) -> None:
    rig = Rig(SERVICES)
    mine = entitlement_of(["euronext.104"], ["1003"])
    other = entitlement_of(["euronext.105"], ["*"])
    _, limited = rig.attach("#?snapshot=1", entitlement=mine)
    _, nothing = rig.attach("#?snapshot=1", entitlement=other)
    block = [packet(n, [order(1000 + n), order(1003)]) for n in range(5)]
    rig.block(block, last=9)
    assert keys_in(limited.sent, {}) == [(104, n, "1003") for n in (0, 1, 2, 3, 3, 4)]
    assert not nothing.data


def test_what_is_resumed_is_the_users_part(chance: random.Random) -> None:
    for grain in ("packet", "message"):
        rig = Rig(SERVICES, history_bytes=1 << 20)
        mine = entitlement_of(["euronext.104"], ["100*"])
        for channel in range(len(SERVICES)):
            rig.control_event(RecordKind.START, channel=channel, sequence=1, next_sequence=1)
        _, everybody = rig.attach("#")
        market(rig, chance, 1, 30)
        rig.pump()
        tags = ",".join(
            (prefix_of(FEED, service) + struct.pack(">QH", 10, WHOLE_PACKET)).hex()
            for service in SERVICES
        )
        _, limited = rig.attach(f"#?as={grain}&from={tags}", entitlement=mine)
        while rig.resumption.catch_ups.turn(1 << 20):
            pass
        market(rig, chance, 31, 40)
        rig.pump()
        wanted = [key for key in mine_of(keys_in(everybody.sent, {}), mine) if key[1] > 10]
        if grain == "packet":
            assert keys_in(limited.sent, {}) == wanted
        else:
            got = [(104, each.sequence, each.key.split(".")[2]) for each in limited.data]
            assert got == wanted
        assert {each.key.split(".")[1] for each in limited.sent} == {"104"}


def test_a_symbol_that_gets_its_name_later_is_granted_by_that_name() -> None:
    rig = Rig()
    _, limited = rig.attach("#?quality=0", entitlement=entitlement_of(["*"], ["ACME"]))
    rig.put(packet(1, [order(1005), order(1006)]), 1, 2)
    rig.pump()
    assert not limited.data
    rig.names.update(NAMES)
    for stream in rig.streams:
        stream.forget_routes()
    rig.put(packet(2, [order(1005), order(1006)]), 2, 2)
    rig.pump()
    assert keys_in(limited.sent, rig.names) == [(104, 2, "ACME")]
