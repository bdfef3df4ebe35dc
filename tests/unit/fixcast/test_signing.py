"""Signatures of sealed datagrams: who sent (`fixcast.signing`)."""

import itertools
import random
from collections import Counter

import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.fixcast.crypto import private_key, public_bytes
from feedhandler.fixcast.keys import ChannelKey, KeyRing
from feedhandler.fixcast.sealing import Kind, Opener, Sealer
from feedhandler.fixcast.session import NEVER
from feedhandler.fixcast.signing import (
    ALARM_NS,
    BATCH_MAX,
    LATER,
    PUBLISHERS_MAX,
    SIGNED_MAX,
    TABLE,
    Alarm,
    Check,
    Event,
    Plain,
    SealedReceiver,
    SigningSealer,
    SigningSettings,
    Step,
    VerificationSettings,
)
from tests.support.fix_keys import (
    CHANNEL,
    PUBLISHER,
    SECOND,
    START,
    bytes_of,
    key,
    payloads,
    receiver,
    ring,
    sender,
)

BEFORE = VerificationSettings("before", hold_ns=SECOND)
AFTER = VerificationSettings("after", hold_ns=SECOND)
OFF = VerificationSettings("off")


def batch(count: int = 4, seed: int = 1) -> list[bytes]:
    """Sealed datagrams "0", "1" ... of one batch, and their signatures last."""
    made = sender(seed, batch=count)
    return [each for n in range(count) for each in made.seal(b"%d" % n, START)]


def fed(
    to: SealedReceiver, datagrams: list[bytes], line: int = 0, now_ns: int = START
) -> list[Event]:
    """Return the events that follow from these datagrams."""
    return [event for each in datagrams for event in to.datagram(each, line, now_ns)]


def alarms(events: list[Event]) -> list[tuple[str, int, int]]:
    """Alarms: what, counter, how many."""
    return [(each.what, each.counter, each.number) for each in events if isinstance(each, Alarm)]


# -- the publisher's side


def test_a_batch_is_signed_when_it_is_full() -> None:
    made = sender(batch=3)
    kinds = [[each[3] for each in made.seal(b"x", START)] for _ in range(7)]
    assert kinds == [[0], [0], [0, 1], [0], [0], [0, 1], [0]]


def test_a_batch_is_signed_when_its_period_is_over() -> None:
    made = SigningSealer(ring(), PUBLISHER, SigningSettings(64, 1000))
    assert made.deadline_ns == NEVER
    made.seal(b"x", START)
    made.seal(b"x", START + 500)
    assert made.deadline_ns == START + 1000
    assert made.tick(START + 999) == []
    (signatures,) = made.tick(START + 1000)
    assert signatures[3] == Kind.SIGNATURES
    assert made.tick(START + 5000) == []
    made.seal(b"x", START)
    # The clock went on, and `tick` was not called.
    assert [each[3] for each in made.seal(b"x", START + 1000)] == [0, 1]


def test_every_datagram_is_signed_once_over_runs_that_are_used_up() -> None:
    made = SigningSealer(ring(), PUBLISHER, SigningSettings(4, SECOND), bytes_of(1), 6)
    to = receiver()
    events = fed(to, [each for n in range(40) for each in made.seal(b"%d" % n, START)])
    events += fed(to, made.flush(START))
    assert payloads(events) == [b"%d" % n for n in range(40)]
    assert to.counts == {"signed": 40, "signatures": made.counts["batches"]}


def test_a_full_batch_of_signatures_fits_a_datagram() -> None:
    *_, signatures = batch(BATCH_MAX)
    assert len(signatures) <= 1400


def test_what_is_not_to_be_signed_is_not() -> None:
    made = sender(signer=None, batch=1)
    (sealed,) = made.seal(b"x", START)
    assert made.flush(START) == []
    assert payloads(fed(receiver(OFF), [sealed])) == [b"x"]


# -- modes


@pytest.mark.parametrize("mode", ["off", "before", "after"])
@pytest.mark.parametrize("known", list(Check))
def test_the_tables_say_what_becomes_of_everything(mode, known: Check) -> None:
    step = TABLE[mode, known]
    assert step in (Step.DELIVER, Step.HOLD, Step.WATCH, Step.REFUSE)
    # Nothing unsigned is delivered in `before`; what is wrong is refused wherever it is checked.
    assert (step is Step.DELIVER) == (mode == "off" or known is Check.SIGNED)
    assert (step is Step.REFUSE) == (mode != "off" and known is Check.OTHER)
    assert ((mode, known) in LATER) == (mode != "off")
    if mode != "off":
        silent = LATER[mode, known] in (Step.DELIVER, Step.NOTHING)
        assert silent == (known is Check.SIGNED)


def test_before_holds_until_signed_and_then_delivers_in_order() -> None:
    to = receiver(BEFORE)
    *data, signatures = batch()
    assert fed(to, [data[2], data[0], data[3], data[1]]) == []
    assert to.held == 4
    assert payloads(fed(to, [signatures])) == [b"0", b"1", b"2", b"3"]
    assert to.held == 0
    assert to.deadline_ns == NEVER


def test_before_delivers_at_once_what_is_signed_already() -> None:
    to = receiver(BEFORE)
    *data, signatures = batch()
    assert fed(to, [signatures]) == []
    assert [len(fed(to, [each])) for each in data] == [1, 1, 1, 1]
    assert fed(to, data) == []
    assert to.opener.counts["replayed"] == 4


def test_each_line_gets_its_own_copies_and_signatures_are_verified_once() -> None:
    to = receiver(BEFORE)
    *data, signatures = batch()
    events = fed(to, data, line=0) + fed(to, data[:3], line=1)
    events += fed(to, [signatures], line=1) + fed(to, [data[3]], line=1)
    events += fed(to, [signatures], line=0)
    assert payloads(events, 0) == payloads(events, 1) == [b"0", b"1", b"2", b"3"]
    assert (to.counts["signatures"], to.counts["signatures_known"]) == (1, 1)


def test_a_batch_of_which_some_are_lost_can_be_checked() -> None:
    to = receiver(BEFORE)
    *data, signatures = batch()
    assert payloads(fed(to, [data[1], data[3], signatures])) == [b"1", b"3"]


def test_before_gives_up_what_is_not_signed() -> None:
    to = receiver(BEFORE)
    *data, _ = batch()
    fed(to, data)
    assert to.deadline_ns == START + SECOND
    assert to.tick(START + SECOND - 1) == []
    events = to.tick(START + SECOND)
    assert payloads(events) == []
    assert alarms(events) == [("unsigned", 0, 1)]
    assert to.counts == {"unsigned": 4, "alarm_unsigned": 4}
    assert to.held == 0


def test_after_delivers_at_once_and_says_nothing_of_what_is_signed() -> None:
    to = receiver(AFTER)
    *data, signatures = batch()
    assert payloads(fed(to, data)) == [b"0", b"1", b"2", b"3"]
    assert fed(to, [signatures]) == []
    assert to.tick(START + 2 * SECOND) == []
    assert to.counts["signed"] == 4


def test_after_reports_what_is_not_signed() -> None:
    to = receiver(AFTER)
    *data, _ = batch()
    fed(to, data)
    assert alarms(to.tick(START + SECOND)) == [("unsigned", 0, 1)]
    more = sender(2).seal(b"x", START + SECOND)
    fed(to, more, now_ns=START + SECOND)
    # Four in all, of which one was reported.
    assert alarms(to.tick(START + 2 * SECOND)) == [("unsigned", 0, 4)]


def test_off_asks_for_no_signatures_and_no_publishers() -> None:
    to = SealedReceiver(ring(), [], OFF)
    *data, signatures = batch()
    assert payloads(fed(to, [*data, signatures])) == [b"0", b"1", b"2", b"3"]


# -- a false publisher, who has the channel's key


def forged_like(true: bytes, payload: bytes) -> bytes:
    """Other content under the run and the counter of a true datagram."""

    class Copied(Sealer):
        def __init__(self) -> None:
            super().__init__(ring(), lambda _: true[16:32])
            self.counter = int.from_bytes(true[32:40], "big")

    sealed = Copied().seal(payload, START)
    assert sealed[:40] == true[:40]
    return sealed


FALSE = {
    "with a run of its own, unsigned": lambda: sender(9, signer=None).seal(b"false", START),
    "signed by itself": lambda: sender(9, private_key(b"\x66" * 32), batch=1).seal(b"false", START),
}


@pytest.mark.parametrize("make", FALSE.values(), ids=FALSE.keys())
def test_a_false_publisher_is_never_delivered_before(make) -> None:
    to = receiver(BEFORE)
    events = fed(to, make()) + to.tick(START + SECOND)
    assert payloads(events) == []
    assert "unsigned" in {what for what, _, _ in alarms(events)}


@pytest.mark.parametrize("make", FALSE.values(), ids=FALSE.keys())
def test_a_false_publisher_is_reported_after(make) -> None:
    to = receiver(AFTER)
    events = fed(to, make()) + to.tick(START + SECOND)
    assert payloads(events) == [b"false"]
    assert "unsigned" in {what for what, _, _ in alarms(events)}


@pytest.mark.parametrize("order", list(itertools.permutations(("true", "false", "signatures"))))
def test_a_false_publisher_cannot_take_a_true_datagrams_slot_before(order) -> None:
    true, signatures = sender(batch=1).seal(b"true", START)
    datagrams = {"true": true, "false": forged_like(true, b"false"), "signatures": signatures}
    to = receiver(BEFORE)
    events = fed(to, [datagrams[each] for each in order])
    assert payloads(events) == [b"true"]
    found = alarms(events)
    # Behind the true one it is a replay: its counter has come.
    late = order.index("false") == 2 or order == ("signatures", "true", "false")
    assert found == ([] if late else [("mismatch", 0, 1)])


def test_a_false_datagram_that_came_first_is_reported_after() -> None:
    true, signatures = sender(batch=1).seal(b"true", START)
    to = receiver(AFTER)
    events = fed(to, [forged_like(true, b"false"), true, signatures])
    assert payloads(events) == [b"false"]
    assert alarms(events) == [("mismatch", 0, 1)]


def test_a_false_publisher_cannot_push_the_window_ahead_before() -> None:
    *data, signatures = batch()
    to = receiver(BEFORE)
    ahead = data[0][:32] + (1 << 31).to_bytes(8, "big") + data[0][40:]
    assert fed(to, [forged_like(ahead, b"false")]) == []
    assert payloads(fed(to, [*data, signatures])) == [b"0", b"1", b"2", b"3"]


def wrong_signatures(change) -> bytes:
    """A datagram with signatures whose content was changed and sealed again."""
    *_, true = batch()
    opened = Opener(ring()).open(true, 0, START)
    assert opened is not None
    return Sealer(ring(), bytes_of(5)).seal(change(opened.payload), START, Kind.SIGNATURES)


WRONG = {
    "another run": lambda text: bytes(16) + text[16:],
    "another first counter": lambda text: text[:23] + b"\x09" + text[24:],
    "another digest": lambda text: text[:30] + b"\x00\x00" + text[32:],
    "another signature": lambda text: text[:-1] + bytes([text[-1] ^ 1]),
    "a digest less": lambda text: text[:26] + text[42:],
    "a higher count": lambda text: text[:25] + b"\x05" + text[26:],
    "too short": lambda text: text[-70:],
    "nothing": lambda text: b"",
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("settings", [BEFORE, AFTER], ids=["before", "after"])
def test_signatures_that_no_publisher_made_are_reported(change, settings) -> None:
    to = receiver(settings)
    assert alarms(fed(to, [wrong_signatures(change)])) == [("signature", 0, 1)]
    assert to.counts == {"alarm_signature": 1}


def test_signatures_of_another_channel_are_not_believed() -> None:
    other = KeyRing("other", [key(channel="other")])
    made = SigningSealer(other, PUBLISHER, SigningSettings(1), bytes_of(1))
    _, signatures = made.seal(b"x", START)
    opened = Opener(other).open(signatures, 0, START)
    assert opened is not None
    again = Sealer(ring(), bytes_of(1)).seal(opened.payload, START, Kind.SIGNATURES)
    assert alarms(fed(receiver(), [again])) == [("signature", 0, 1)]


def test_alarms_of_a_kind_come_once_a_second_with_their_number() -> None:
    to = receiver(AFTER)
    wrong = [
        Sealer(ring(), bytes_of(seed)).seal(b"nonsense", START, Kind.SIGNATURES)
        for seed in range(100)
    ]
    assert alarms(fed(to, wrong)) == [("signature", 0, 1)]
    later = START + ALARM_NS
    one_more = Sealer(ring(), bytes_of(101)).seal(b"nonsense", later, Kind.SIGNATURES)
    assert alarms(fed(to, [one_more], now_ns=later)) == [("signature", 0, 100)]


def test_several_publishers_are_believed() -> None:
    server = private_key(b"\x02" * 32)
    to = SealedReceiver(ring(), [public_bytes(PUBLISHER), public_bytes(server)], BEFORE)
    main, retransmitted = sender(1, batch=1), sender(2, server, batch=1)
    for number in range(6):
        made = (main, retransmitted)[number % 2]
        assert payloads(fed(to, made.seal(b"%d" % number, START))) == [b"%d" % number]


# -- bounds


def test_no_more_are_held_than_may_be() -> None:
    to = receiver(VerificationSettings("before", held_max=10))
    made = sender(batch=BATCH_MAX)
    data = [made.seal(b"%d" % n, START)[0] for n in range(30)]
    fed(to, data)
    assert (to.held, to.counts["held_full"]) == (10, 20)
    assert payloads(fed(to, made.flush(START))) == [b"%d" % n for n in range(20, 30)]


def test_long_datagrams_are_held_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedhandler.fixcast.signing.HELD_BYTES_MAX", 5000)
    to = receiver(BEFORE)
    made = sender(batch=BATCH_MAX)
    for _ in range(4):
        fed(to, made.seal(bytes(2000), START))
    assert to.held == 2
    assert [len(each) for each in payloads(fed(to, made.flush(START)))] == [2000, 2000]


def test_digests_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedhandler.fixcast.signing.SIGNED_MAX", 8)
    to = receiver(BEFORE)
    made = sender()
    sealed = [made.seal(b"%d" % n, START) for n in range(16)]
    fed(to, [signatures for _, *rest in sealed for signatures in rest])
    last = [each[0] for each in sealed]
    assert payloads(fed(to, last[8:])) == [b"%d" % n for n in range(8, 16)]
    assert fed(to, last[:8]) == []
    assert to.held == 8
    assert SIGNED_MAX > 8 * BATCH_MAX
    other = sender(2)
    fed(to, [each for n in range(8) for each in other.seal(b"", START)])
    assert to.held == 8


def test_the_same_copy_is_held_once() -> None:
    to = receiver(BEFORE)
    *data, signatures = batch()
    fed(to, data + data)
    assert (to.held, to.counts["held_twice"]) == (4, 4)
    assert payloads(fed(to, [signatures])) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: VerificationSettings("never"), ConfigError, "off, before or after"),  # type: ignore
        (lambda: VerificationSettings(hold_ns=0), ConfigError, "cannot hold"),
        (lambda: VerificationSettings(held_max=0), ConfigError, "cannot hold 0"),
        (lambda: SigningSettings(0), ConfigError, "cannot sign 0"),
        (lambda: SigningSettings(BATCH_MAX + 1), ConfigError, "cannot sign 65"),
        (lambda: SealedReceiver(ring(), []), ConfigError, "no publisher's key"),
        (lambda: SealedReceiver(ring(), [b"short"]), ConfigError, "not a public key"),
        (
            lambda: SealedReceiver(ring(), [public_bytes(PUBLISHER)] * (PUBLISHERS_MAX + 1)),
            UsageError,
            "at most 8",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(make, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


# -- all of it together


class Wire:
    """Two lines that lose, double and reorder, each by itself."""

    def __init__(self, chance: random.Random, loss: float) -> None:
        self._chance, self._loss = chance, loss
        self.arrivals: list[tuple[int, int, bytes]] = []

    def put(self, datagram: bytes, now_ns: int) -> set[int]:
        """Send on both lines; those by which it arrives."""
        lines = {line for line in (0, 1) if self._chance.random() >= self._loss}
        for line in lines:
            for _ in range(2 if self._chance.random() < 0.05 else 1):
                self.arrivals.append((now_ns + self._chance.randrange(3_000_000), line, datagram))
        return lines


def given(to: KeyRing, keys: list[ChannelKey], now_ns: int) -> None:
    """Give a ring the keys that begin within 5 ms, and take those that have ended."""
    for each in keys:
        if each.from_ns - 5_000_000 <= now_ns < each.until_ns:
            to.add(each)
    to.expire(now_ns)


def published(
    keys: list[ChannelKey], wire: Wire, chance: random.Random, count: int
) -> tuple[dict[bytes, set[int]], set[bytes]]:
    """Send `count` datagrams, one each 50 us, with a false publisher's and an outsider's among
    them: by which lines each true one arrives, and whose signatures do."""
    ring, came, signed, batch = KeyRing(CHANNEL), {}, set(), []
    true = SigningSealer(ring, PUBLISHER, SigningSettings(16, 400_000), chance.randbytes)
    false = SigningSealer(ring, private_key(b"\x66" * 32), SigningSettings(4), chance.randbytes)

    def put(datagrams: list[bytes], payload: bytes, now_ns: int) -> None:
        for each in datagrams:
            lines = wire.put(each, now_ns)
            if each[3] == Kind.DATA:
                came[payload] = lines
                batch.append(payload)
                continue
            signed.update(batch if lines else ())
            batch.clear()

    for number in range(count):
        now_ns = START + number * 50_000
        given(ring, keys, now_ns)
        put(true.tick(now_ns), b"", now_ns)
        put(true.seal(b"true %d" % number, now_ns), b"true %d" % number, now_ns)
        if number % 50 == 0:
            for each in [*false.seal(b"false %d" % number, now_ns), chance.randbytes(200)]:
                wire.put(each, now_ns)
    put(true.flush(now_ns), b"", now_ns)
    return came, signed


@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.3])
def test_keys_changed_under_load_with_loss_on_both_lines(mode, loss: float, seed: int) -> None:
    """Keys of 10 ms that overlap by 5 ms: what a line brought is delivered from it once, in
    `before` exactly where its signatures came, by whichever line."""
    chance, wire = random.Random(seed), Wire(random.Random(seed), loss)
    life, overlap = 10_000_000, 5_000_000
    keys = [key(id, START + (id - 1) * life, START + id * life + overlap) for id in range(1, 9)]
    came, signed = published(keys, wire, chance, 1500)
    rings = KeyRing(CHANNEL)
    to = receiver(VerificationSettings(mode, hold_ns=10_000_000), rings)
    events: list[Event] = []
    for at_ns, line, datagram in sorted(wire.arrivals):
        given(rings, keys, at_ns)
        events += to.tick(at_ns) + to.datagram(datagram, line, at_ns)
    events += to.tick(NEVER)
    got = Counter((e.line, e.payload) for e in events if isinstance(e, Plain))
    assert set(got.values()) == {1}
    due = {
        (line, payload)
        for payload, lines in came.items()
        for line in lines
        if mode == "after" or payload in signed
    }
    if mode == "before":
        assert got.keys() == due
    else:
        assert {each for each in got if each[1].startswith(b"true")} == due
    assert not to.opener.counts.keys() & {"key_not_valid", "key_unknown", "forged"}
    assert to.opener.counts["not_sealed"] > 0
    assert to.counts["alarm_unsigned"] > 0
    assert to.held == 0
    ids = {datagram[7] for *_, datagram in wire.arrivals if datagram[:2] == b"FS"}
    assert ids == set(range(1, 9))
