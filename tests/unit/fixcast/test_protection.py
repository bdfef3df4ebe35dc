"""A folder's keys at work (`feedhandler/fixcast/protection.py`), and a sender that seals."""

from collections import Counter
from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.fixcast import protection
from feedhandler.fixcast.key_files import KeyFolder, new_key
from feedhandler.fixcast.keys import FOREVER
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.pacing import OVERHEAD_BYTES, TokenBucket
from feedhandler.fixcast.protection import SETTLED_NS, ChannelOpener, ChannelSealer, Protection
from feedhandler.fixcast.receiving import ChannelReceiver
from feedhandler.fixcast.reception import RETRANSMISSION, Deliver, Ended, ReceptionSettings
from feedhandler.fixcast.sealing import PLAIN_BYTES_MAX
from feedhandler.fixcast.sending import ChannelSender, SendingSettings
from feedhandler.fixcast.session import NEVER, SessionSettings
from feedhandler.fixcast.signing import Mode, Plain
from tests.support.fixcast import pop_due

MS = 1_000_000
SECOND = 1000 * MS
#: Wall clock less monotonic clock, and a day far from the files' own times.
OFFSET = 1_000_000 * SECOND
CHANNEL = "c1"


def folder(path: Path, *keys: tuple[int, int], signs: bool = True) -> KeyFolder:
    """A folder with keys of `CHANNEL` that are valid from and until these monotonic times."""
    made = KeyFolder(path)
    for begin_ns, end_ns in keys:
        until_ns = FOREVER if end_ns == FOREVER else OFFSET + end_ns
        made.add(new_key(made.ring(CHANNEL), OFFSET + begin_ns, until_ns))
    if signs:
        made.new_signer(CHANNEL)
    return made


def sender(sealer: ChannelSealer, bucket: TokenBucket | None = None) -> ChannelSender:
    settings = SendingSettings(period_ns=MS, session=SessionSettings(heartbeat_ns=50 * MS))
    made = ChannelSender(
        Header(sender=b"PUB", target=b"T"), settings, bucket or TokenBucket(10**9, 10**6), sealer
    )
    made.start(0, epoch=9)
    return made


def update(text: str) -> bytes:
    return envelope(b"FIXT.1.1", b"35=X\x01268=0\x0158=%b\x01" % text.encode())


def payloads(opener: ChannelOpener, datagrams: list[bytes], now_ns: int, line: int = 0):
    opened = [each for data in datagrams for each in opener.datagram(data, line, now_ns)]
    return [each.payload for each in opened if isinstance(each, Plain)]


def test_a_sender_seals_all_that_it_sends_and_signs_it_by_its_end(tmp_path: Path) -> None:
    protected = Protection(folder(tmp_path, (0, FOREVER)).path, OFFSET)
    sealer, opener = protected.sealer(CHANNEL), protected.opener(CHANNEL, "before")
    channel = sender(sealer)
    channel.publish(update("x"), 0)
    # What is not signed yet is due, whatever the session has to say.
    assert channel.deadline_ns == 0
    assert pop_due(channel, 0)
    assert sealer.deadline_ns == channel.deadline_ns == MS
    channel.tick(MS)
    channel.stop(MS)
    datagrams = pop_due(channel, MS)
    assert all(each.startswith(b"FS\x01") for each in datagrams)
    assert sealer.deadline_ns == NEVER
    found = b"".join(payloads(opener, datagrams, MS))
    assert found.count(b"8=FIXT.1.1") == 2  # the update and the Logout; the Logon went before
    assert opener.drops == Counter()


def test_a_sealed_datagram_has_the_size_that_is_set_and_the_bucket_counts_it(
    tmp_path: Path,
) -> None:
    protected = Protection(folder(tmp_path, (0, FOREVER), signs=False).path, OFFSET)
    bucket = TokenBucket(10**6, 100_000)
    channel = sender(protected.sealer(CHANNEL), bucket)
    for number in range(100):
        channel.publish(update(f"{number:0250}"), 0)
    channel.stop(0)
    datagrams = pop_due(channel, 0)
    assert max(map(len, datagrams)) <= 1400
    assert max(map(len, payloads(protected.opener(CHANNEL, "off"), datagrams, 0))) <= (
        PLAIN_BYTES_MAX
    )
    charged = sum(len(each) + OVERHEAD_BYTES for each in datagrams)
    # What is left in the bucket is what was not taken out.
    assert bucket.ready_ns(100_000 - charged, 0) == 0
    assert bucket.ready_ns(100_000 - charged + 1000, 0) > 0


def test_without_a_valid_key_nothing_is_sent_and_it_is_counted(tmp_path: Path) -> None:
    protected = Protection(folder(tmp_path, (0, SECOND)).path, OFFSET)
    sealer = protected.sealer(CHANNEL)
    channel = sender(sealer)
    channel.publish(update("before"), SECOND - 1)
    channel.tick(SECOND - 1)
    assert pop_due(channel, SECOND - 1)
    channel.publish(update("after"), SECOND + 1)
    channel.tick(SECOND + 2 * MS)
    channel.stop(SECOND + 2 * MS)
    assert pop_due(channel, SECOND + 2 * MS) == []
    assert sealer.counts["no_key"] >= 2
    # Messages keep their numbers: what was not sent is a loss, which is repaired or declared.
    assert channel.session.next == 3


def test_signatures_that_no_key_is_left_for_are_counted(tmp_path: Path) -> None:
    sealer = Protection(folder(tmp_path, (0, SECOND)).path, OFFSET).sealer(CHANNEL)
    assert sealer.tick(0) == []
    assert sealer.seal(b"8=FIX", SECOND - 1)
    assert sealer.tick(sealer.deadline_ns) == []
    assert sealer.counts == Counter(no_key=1)


def test_retransmissions_are_opened_by_a_window_of_their_own(tmp_path: Path) -> None:
    protected = Protection(folder(tmp_path, (0, FOREVER), signs=False).path, OFFSET)
    opener = protected.opener(CHANNEL, "off")
    (datagram,) = protected.sealer(CHANNEL).seal(b"8=FIX", 5)
    for line in (0, 1, RETRANSMISSION):
        (opened,) = opener.datagram(datagram, line, 5)
        assert isinstance(opened, Plain)
        assert (opened.payload, opened.line) == (b"8=FIX", line)
        assert opener.datagram(datagram, line, 5) == []
    assert opener.opened == 3
    assert opener.drops == Counter(replayed=3)


def test_what_waits_for_a_signature_is_reported_in_time(tmp_path: Path) -> None:
    protected = Protection(folder(tmp_path, (0, FOREVER)).path, OFFSET)
    opener = protected.opener(CHANNEL, "after")
    assert opener.deadline_ns == NEVER
    (datagram,) = protected.sealer(CHANNEL).seal(b"8=FIX", 5)
    assert payloads(opener, [datagram], 5) == [b"8=FIX"]
    assert 5 < opener.deadline_ns <= 5 + SECOND
    (alarm,) = opener.tick(opener.deadline_ns)
    assert isinstance(alarm, dict)
    assert (alarm["event"], alarm["what"], alarm["number"]) == ("alarm", "unsigned", 1)


@pytest.mark.parametrize("verify", ["off", "before", "after"])
def test_keys_that_change_under_load_lose_nothing(tmp_path: Path, verify: Mode) -> None:
    """A key every 100 ms, made while both run, at a message every 500 us: all come, in order."""
    keys = folder(tmp_path, (0, 130 * MS))
    protected = Protection(keys.path, OFFSET)
    channel = sender(protected.sealer(CHANNEL))
    opener = protected.opener(CHANNEL, verify)
    settings = ReceptionSettings(gap_wait_ns=20 * MS, recovery_wait_ns=0)
    receiver = ChannelReceiver(CHANNEL, b"T", settings, None, 1, 0)
    used: set[bytes] = set()
    events, published, now_ns = [], 0, 0
    for now_ns in range(0, SECOND, 500_000):
        if now_ns % (100 * MS) == 50 * MS:
            begin_ns = now_ns + 50 * MS
            keys.add(new_key(keys.ring(CHANNEL), OFFSET + begin_ns, OFFSET + begin_ns + 130 * MS))
        if now_ns % (10 * MS) == 0:
            protected.refresh(OFFSET, OFFSET + now_ns)
        published = channel.publish(update(str(published)), now_ns)
        channel.tick(now_ns)
        if now_ns == SECOND - 500_000:
            channel.stop(now_ns)
        for datagram in pop_due(channel, now_ns):
            used.add(datagram[4:8])
            for line in (0, 1):
                for each in opener.datagram(datagram, line, now_ns):
                    assert isinstance(each, Plain)
                    events += receiver.datagram(each.payload, each.line, now_ns)
    delivered = [each.number for each in events if isinstance(each, Deliver)]
    assert delivered == [*range(1, published + 1)]
    assert isinstance(events[-1], Ended)
    assert len(used) == 10
    assert opener.drops == Counter()
    assert protected.counts["keys_unreadable"] == 0


def test_who_was_not_given_the_next_key_reads_up_to_the_last_ones_end(tmp_path: Path) -> None:
    keys = folder(tmp_path / "all", (0, 2 * SECOND), signs=False)
    given = KeyFolder(tmp_path / "given")
    given.add(*keys.ring(CHANNEL).listed())
    keys.add(new_key(keys.ring(CHANNEL), OFFSET + SECOND, FOREVER))
    sealer = Protection(keys.path, OFFSET).sealer(CHANNEL)
    opener = Protection(given.path, OFFSET).opener(CHANNEL, "off")
    assert payloads(opener, sealer.seal(b"8=FIX", SECOND - 1), SECOND - 1) == [b"8=FIX"]
    assert payloads(opener, sealer.seal(b"8=FIX", SECOND), SECOND) == []
    assert opener.drops == Counter(key_unknown=1)


# -- refresh ---------------------------------------------------------------------------------------


def readings(protected: Protection, *wall_ns: int) -> int:
    """Return how often refreshes at these times read the folder."""
    before = protected.counts["readings"]
    for each in wall_ns:
        protected.refresh(OFFSET, each)
    return protected.counts["readings"] - before


def test_files_are_read_again_only_where_the_folder_has_changed(tmp_path: Path) -> None:
    keys = folder(tmp_path, (0, FOREVER))
    protected = Protection(keys.path, OFFSET)
    protected.opener(CHANNEL, "off")
    touched_ns = keys.touched_ns()
    # As long as the folder's time is fresh it is read: another file may have come in its step.
    assert readings(protected, touched_ns, touched_ns + SETTLED_NS) == 2
    later = [touched_ns + SETTLED_NS + 1 + number for number in range(100)]
    assert readings(protected, *later) == 1
    keys.add(new_key(keys.ring(CHANNEL), later[-1], FOREVER))
    assert readings(protected, *[each + 10 * SETTLED_NS for each in later]) == 1


def test_a_folder_that_cannot_be_read_leaves_the_keys_and_is_tried_again(tmp_path: Path) -> None:
    keys = folder(tmp_path / "keys", (0, FOREVER), signs=False)
    protected = Protection(keys.path, OFFSET)
    sealer = protected.sealer(CHANNEL)
    (tmp_path / "keys").rename(tmp_path / "away")
    now_ns = 1 << 62
    assert readings(protected, now_ns, now_ns + 1) == 2
    assert sealer.seal(b"8=FIX", 0)
    (tmp_path / "away").rename(tmp_path / "keys")
    path = keys.path / f"{CHANNEL}.2.key"
    path.write_text("nonsense")
    path.chmod(0o600)
    assert readings(protected, now_ns, now_ns + 1) == 2
    assert protected.counts["keys_unreadable"] == 2
    assert sealer.seal(b"8=FIX", 0)
    path.unlink()
    assert readings(protected, now_ns, now_ns + 1) == 1


def test_a_refresh_sets_the_clocks_of_all_that_was_made(tmp_path: Path) -> None:
    protected = Protection(folder(tmp_path, (0, FOREVER)).path, 0)
    made = [protected.sealer(CHANNEL), protected.opener(CHANNEL, "before")]
    protected.refresh(OFFSET, 0)
    assert [each.offset_ns for each in made] == [OFFSET] * 2


@pytest.mark.parametrize("what", ["sealer", "opener"])
def test_a_channel_without_a_key_is_refused_with_what_to_do(tmp_path: Path, what: str) -> None:
    protected = Protection(folder(tmp_path, (0, FOREVER)).path, OFFSET)
    with pytest.raises(ConfigError, match="no key of channel c2") as error:
        protected.sealer("c2") if what == "sealer" else protected.opener("c2", "off")
    assert "keys new" in error.value.hint
    with pytest.raises(ConfigError, match="no folder of keys"):
        protection.Protection(tmp_path / "none", OFFSET)
