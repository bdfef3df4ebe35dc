"""Sealed datagrams: layout, nonces, windows, keys, and what is dropped (`fixcast.sealing`)."""

import random
import sys
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from cryptography.hazmat.primitives import hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.fixcast import crypto
from feedhandler.fixcast.keys import KEYS_MAX, ChannelKey, KeyRing
from feedhandler.fixcast.sealing import (
    AGE_NS_MAX,
    HEADER_BYTES,
    LEEWAY_NS,
    OVERHEAD_BYTES,
    PLAIN_BYTES_MAX,
    SESSIONS_MAX,
    WINDOW,
    Kind,
    Opener,
    Reason,
    ReplayWindow,
    Sealer,
)
from tests.support.fix_keys import CHANNEL, SECOND, START, bytes_of, key, ring

PAYLOAD = b"8=FIXT.1.1\x01" * 9


def accepted(opener: Opener, datagram: bytes, line: int = 0, now_ns: int = START) -> bytes | None:
    """Return the payload of a datagram that an opener opens and accepts; None if it does not."""
    opened = opener.open(datagram, line, now_ns)
    if opened is None:
        return None
    opener.accept(opened, line)
    return opened.payload


def why(opener: Opener, datagram: bytes, line: int = 0, now_ns: int = START) -> str:
    """The one reason why a datagram is dropped."""
    before = opener.counts.copy()
    assert accepted(opener, datagram, line, now_ns) is None
    (reason,) = opener.counts - before
    return reason


# -- layout


def test_a_sealed_datagram_is_what_the_librarys_lower_primitives_say() -> None:
    sealer = Sealer(ring(), bytes_of(3))
    sealer.seal(b"first", START)
    sealed = sealer.seal(PAYLOAD, START + 7)
    run = bytes_of(3)(16)
    channel = sha256(CHANNEL.encode()).digest()[:8]
    header = b"FS\x01\x00" + bytes([0, 0, 0, 1]) + channel + run
    header += (1).to_bytes(8, "big") + (START + 7).to_bytes(8, "big")
    assert sealed[:HEADER_BYTES] == header

    def mac(secret: bytes, text: bytes) -> bytes:
        made = hmac.HMAC(secret, SHA256())
        made.update(text)
        return made.finalize()

    # RFC 5869: extract, then one block of expand.
    info = b"feedhandler fixcast datagrams 1\0" + CHANNEL.encode()
    secret = mac(mac(run, b"\x01" * 32), info + b"\x01")
    nonce = bytes(4) + (1).to_bytes(8, "big")
    cipher = Cipher(algorithms.AES(secret), modes.GCM(nonce)).encryptor()
    cipher.authenticate_additional_data(header)
    assert sealed[HEADER_BYTES:] == cipher.update(PAYLOAD) + cipher.finalize() + cipher.tag


def test_the_library_passes_nists_vector_for_a_key_of_256_bits() -> None:
    # The GCM specification's test case 14: a key, nonce and block of zeros.
    sealed = crypto.AESGCM(bytes(32)).encrypt(bytes(12), bytes(16), b"")
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


@pytest.mark.parametrize("size", [0, 1, 1336])
def test_what_is_sealed_is_opened(size: int) -> None:
    sealed = Sealer(ring()).seal(b"x" * size, START)
    assert len(sealed) == size + OVERHEAD_BYTES
    assert accepted(Opener(ring()), sealed) == b"x" * size


def test_a_full_plain_datagram_becomes_one_of_1400_bytes() -> None:
    assert len(Sealer(ring()).seal(bytes(PLAIN_BYTES_MAX), START)) == 1400


def test_what_udp_cannot_carry_is_refused() -> None:
    with pytest.raises(UsageError, match="65508 bytes cannot be sealed"):
        Sealer(ring()).seal(bytes(65_508), START)


def test_a_missing_library_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    spec = spec_from_file_location("crypto_without_library", crypto.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(
        ConfigError, match=r"the library cryptography, .*pip install '\.\[fixcast\]'"
    ):
        spec.loader.exec_module(module_from_spec(spec))


# -- nonces


def test_no_nonce_is_used_twice_over_restarts_publishers_and_keys(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two publishers with the same keys are killed and started anew at random, keys change, runs
    are used up: no pair of cipher key and nonce comes twice but for the same bytes."""
    chance = random.Random(seed)
    used: dict[tuple[bytes, bytes], bytes] = {}

    class Noted:
        def __init__(self, secret: bytes) -> None:
            self._secret, self._real = secret, crypto.AESGCM(secret)

        def encrypt(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
            assert (self._secret, nonce) not in used
            used[self._secret, nonce] = data
            return self._real.encrypt(nonce, data, header)

    monkeypatch.setattr("feedhandler.fixcast.sealing.AESGCM", Noted)
    keys = [key(id, START + (id - 1) * SECOND, START + (id + 1) * SECOND) for id in range(1, 6)]
    rings = [KeyRing(CHANNEL, keys), KeyRing(CHANNEL, keys)]

    def begun(which: int) -> Sealer:
        return Sealer(rings[which], run_datagrams_max=chance.choice([3, 50, 1 << 32]))

    sealers = [begun(0), begun(1)]
    for step in range(5000):
        which = chance.randrange(2)
        if chance.random() < 0.02:
            sealers[which] = begun(which)
        # The same Heartbeat, with the same MsgSeqNum, over and over.
        sealers[which].seal(PAYLOAD, START + step * SECOND // 1000)
    assert len(used) == 5000


def test_a_run_that_is_used_up_is_followed_by_another_one() -> None:
    sealer, opener = Sealer(ring(), run_datagrams_max=2), Opener(ring())
    runs = []
    for _ in range(5):
        assert accepted(opener, sealer.seal(PAYLOAD, START)) == PAYLOAD
        runs.append((sealer.run, sealer.counter))
    assert [counter for _, counter in runs] == [1, 2, 1, 2, 1]
    assert len({run for run, _ in runs}) == 3
    assert opener.sessions == 3


@pytest.mark.parametrize("datagrams", [0, (1 << 32) + 1])
def test_a_run_has_a_bound(datagrams: int) -> None:
    with pytest.raises(UsageError, match="a run cannot have"):
        Sealer(ring(), run_datagrams_max=datagrams)


# -- what is dropped


def sealed_at(at: int, value: bytes) -> bytes:
    """A datagram with other bytes at an offset."""
    sealed = Sealer(ring(), bytes_of(1)).seal(PAYLOAD, START)
    return sealed[:at] + value + sealed[at + len(value) :]


DROPPED = {
    "no magic": (sealed_at(0, b"X"), Reason.NOT_SEALED),
    "another version": (sealed_at(2, b"\x02"), Reason.NOT_SEALED),
    "a plain FIX message": (b"8=FIXT.1.1\x01" * 20, Reason.NOT_SEALED),
    "an unknown kind": (sealed_at(3, b"\x02"), Reason.KIND_UNKNOWN),
    "another kind": (sealed_at(3, b"\x01"), Reason.FORGED),
    "an unknown key": (sealed_at(4, b"\xff"), Reason.KEY_UNKNOWN),
    "another channel": (sealed_at(8, b"\x00\x00"), Reason.OTHER_CHANNEL),
    "another run": (sealed_at(16, b"\x00\x00"), Reason.FORGED),
    "another counter": (sealed_at(32, b"\x01"), Reason.FORGED),
    "another time": (sealed_at(47, b"\x01"), Reason.FORGED),
    "other ciphertext": (sealed_at(60, b"\x00\x00\x00"), Reason.FORGED),
    "another tag": (sealed_at(HEADER_BYTES + len(PAYLOAD), b"\x00\x00"), Reason.FORGED),
    "a byte less": (sealed_at(0, b"F")[:-1], Reason.FORGED),
    "a byte more": (sealed_at(0, b"F") + b"\x00", Reason.FORGED),
    "a header alone": (sealed_at(0, b"F")[:HEADER_BYTES], Reason.TRUNCATED),
    "nothing": (b"", Reason.TRUNCATED),
}


@pytest.mark.parametrize(("datagram", "reason"), DROPPED.values(), ids=DROPPED.keys())
@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
def test_what_is_wrong_is_dropped_and_counted(datagram: bytes, reason: Reason, known: bool) -> None:
    opener = Opener(ring())
    if known:
        sealer = Sealer(ring(), bytes_of(1))
        sealer.seal(b"", START)
        assert accepted(opener, sealer.seal(b"", START)) == b""
    assert why(opener, datagram) == reason.value
    assert opener.sessions == known


def test_a_datagram_of_another_channel_with_the_same_secret_is_dropped() -> None:
    other = ChannelKey("other", 1, key().secret)
    sealed = Sealer(KeyRing("other", [other])).seal(PAYLOAD, START)
    opener = Opener(ring())
    assert why(opener, sealed) == "other_channel"
    renamed = sealed[:8] + sha256(CHANNEL.encode()).digest()[:8] + sealed[16:]
    assert why(opener, renamed) == "forged"


@pytest.mark.parametrize(
    ("age_ns", "reason"),
    [(0, ""), (AGE_NS_MAX, ""), (AGE_NS_MAX + 1, "stale"), (-AGE_NS_MAX - 1, "too_early")],
)
def test_what_was_sent_long_ago_or_is_to_come_is_dropped(age_ns: int, reason: str) -> None:
    sealed = Sealer(ring()).seal(PAYLOAD, START)
    opener = Opener(ring())
    if reason:
        assert why(opener, sealed, now_ns=START + age_ns) == reason
        return
    assert accepted(opener, sealed, now_ns=START + age_ns) == PAYLOAD


def test_an_opener_without_an_age_takes_any() -> None:
    sealed = Sealer(ring()).seal(PAYLOAD, START)
    assert accepted(Opener(ring(), age_ns_max=0), sealed, now_ns=START * 2) == PAYLOAD


# -- replays


def test_a_replay_on_its_line_is_dropped_and_the_other_lines_copy_is_none() -> None:
    sealed = Sealer(ring()).seal(PAYLOAD, START)
    opener = Opener(ring())
    for line in range(3):
        assert accepted(opener, sealed, line) == PAYLOAD
        assert why(opener, sealed, line) == "replayed"


def test_a_window_tells_what_has_come_from_what_has_not(seed: int) -> None:
    """Against a plain set, with jumps, reordering and repetitions."""
    chance = random.Random(seed)
    window, came, highest = ReplayWindow(), set(), -1
    for _ in range(20_000):
        reach = chance.choice([3, 100, WINDOW, 3 * WINDOW])
        counter = max(0, highest + chance.randint(-reach, 1 + reach // 8))
        expected = (
            Reason.BEHIND_WINDOW
            if counter <= highest - WINDOW
            else Reason.REPLAYED
            if counter in came
            else None
        )
        assert window.fault(counter) is expected
        window.accept(counter)
        came.add(counter)
        highest = max(highest, counter)
        assert window.highest == highest


def test_reordered_datagrams_are_all_opened_once(seed: int) -> None:
    chance = random.Random(seed)
    sealer, opener = Sealer(ring()), Opener(ring())
    sealed = [sealer.seal(b"%d" % number, START) for number in range(500)]
    twice = sorted(
        [(at + chance.random() * 200, each) for at, each in enumerate(sealed)]
        + [(at + chance.random() * 200, each) for at, each in enumerate(sealed)]
    )
    opened = [accepted(opener, each) for _, each in twice]
    assert sorted(int(each) for each in opened if each is not None) == list(range(500))
    assert opener.counts == {"opened": 500, "replayed": 500}


def test_a_forged_counter_moves_no_window() -> None:
    sealer, opener = Sealer(ring()), Opener(ring())
    first, second = sealer.seal(b"1", START), sealer.seal(b"2", START)
    assert accepted(opener, first) == b"1"
    assert why(opener, second[:32] + b"\x7f" + second[33:]) == "forged"
    assert accepted(opener, second) == b"2"


def test_unsigned_runs_make_room_first() -> None:
    opener = Opener(ring())
    kept = Sealer(ring())
    opened = opener.open(kept.seal(b"", START), 0, START)
    assert opened is not None
    opened.session.signed = True
    for number in range(SESSIONS_MAX + 5):
        assert accepted(opener, Sealer(ring()).seal(b"", START), now_ns=START + number) == b""
    assert opener.sessions == SESSIONS_MAX
    assert opener.counts["sessions_forgotten"] == 6
    again = opener.open(kept.seal(b"", START), 0, START)
    assert again is not None
    assert again.session is opened.session


# -- keys


def test_the_sender_changes_at_the_next_keys_time_and_the_old_one_stays_good_for_a_while() -> None:
    keys = [key(1, START, START + 20), key(2, START + 10, START + 40)]
    sealer, opener = Sealer(ring(*keys)), Opener(ring(*keys))
    early, late = sealer.seal(b"1", START + 9), sealer.seal(b"2", START + 10)
    assert (early[7], late[7]) == (1, 2)
    assert accepted(opener, late, now_ns=START + 12) == b"2"
    assert accepted(opener, early, now_ns=START + 19) == b"1"
    later = Sealer(ring(keys[0])).seal(b"3", START + 19)
    assert why(opener, later, now_ns=START + 20) == "key_not_valid"


@pytest.mark.parametrize(("before_ns", "good"), [(LEEWAY_NS, True), (LEEWAY_NS + 1, False)])
def test_a_key_is_taken_somewhat_before_its_time(before_ns: int, good: bool) -> None:
    new = key(1, START)
    sealed = Sealer(ring(new)).seal(PAYLOAD, START)
    opener = Opener(ring(new))
    assert (accepted(opener, sealed, now_ns=START - before_ns) == PAYLOAD) is good


def test_without_a_valid_key_nothing_is_sent() -> None:
    sealer = Sealer(ring(key(1, START, START + 10)))
    sealer.seal(PAYLOAD, START + 9)
    with pytest.raises(UsageError, match=r"no key that is valid now .*keys rotate"):
        sealer.seal(PAYLOAD, START + 10)


def test_keys_that_come_and_go_are_noticed() -> None:
    keys = ring(key(1, START, START + 100))
    sealer, opener = Sealer(keys), Opener(keys)
    assert sealer.seal(b"", START)[7] == 1
    keys.add(key(2, START + 5))
    assert sealer.seal(b"", START + 5)[7] == 2
    old = Sealer(ring(key(1))).seal(b"", START)
    assert accepted(opener, old, now_ns=START + 5) == b""
    keys.expire(START + 100)
    assert [each.id for each in keys.listed()] == [2]
    more = Sealer(ring(key(1))).seal(b"", START)
    assert why(opener, more, now_ns=START + 100) == "key_unknown"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: key(1, channel="other"), "a key of channel other is none of equities-1"),
        (lambda: ChannelKey(CHANNEL, 1, b"\x09" * 32), "has another key 1"),
        (lambda: ChannelKey(CHANNEL, 0, bytes(32)), "0 is no key id"),
        (lambda: ChannelKey(CHANNEL, 1, bytes(16)), "a secret of 16 bytes"),
        (lambda: ChannelKey(CHANNEL, 1, bytes(32), 5, 5), "never valid"),
    ],
)
def test_keys_that_cannot_be_are_refused(wrong, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ring().add(wrong())


def test_a_ring_is_bounded_and_a_known_key_is_no_new_one() -> None:
    keys = KeyRing(CHANNEL)
    for id in range(1, KEYS_MAX + 1):
        assert keys.add(key(id))
        assert not keys.add(key(id))
    assert len(keys) == keys.changes == KEYS_MAX
    with pytest.raises(UsageError, match="has 16 keys"):
        keys.add(key(KEYS_MAX + 1))


def test_a_keys_end_may_be_brought_forward_and_not_put_off() -> None:
    keys = ring(key(1, START))
    sealed = Sealer(ring(key(1, START))).seal(PAYLOAD, START)
    opener = Opener(keys)
    assert accepted(opener, sealed) == PAYLOAD
    assert keys.add(key(1, START, START + 10))
    assert keys.changes == 2
    assert why(opener, sealed, 1, START + 10) == "key_not_valid"
    with pytest.raises(UsageError, match="another key 1"):
        keys.add(key(1, START, START + 20))


def test_a_secret_is_not_shown() -> None:
    assert "secret" not in repr(key())
    assert Kind.DATA == 0


def test_a_key_whose_id_was_used_before_opens_what_is_sealed_with_it() -> None:
    """As where all keys of a channel had ended: the next one has the first id again."""
    again = ChannelKey(CHANNEL, 1, b"another secret".ljust(32), START)
    rings = [ring(key(1, 0, START)), ring(key(1, 0, START))]
    sealer, opener = Sealer(rings[0]), Opener(rings[1])
    assert accepted(opener, sealer.seal(b"old", START - 1), now_ns=START - 1) == b"old"
    for each in rings:
        each.expire(START)
        each.add(again)
    assert accepted(opener, sealer.seal(b"new", START)) == b"new"
    assert accepted(opener, sealer.seal(b"next", START)) == b"next"
    assert opener.sessions == 1
