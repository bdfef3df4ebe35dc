"""A capture's files: names, rotation, what is counted as written, and the blocks around records."""

import errno

import dpkt
import pytest

from feedhandler.recording.blocks import LineStatistics, section, statistics
from feedhandler.recording.rotation import (
    FLUSH_NS,
    ROTATE_BYTES_MIN,
    CaptureFiles,
    Rotation,
    split_suffixes,
)

SECOND = 1_000_000_000
BEGUN_NS = 1_795_168_800 * SECOND
HEADER, TRAILER = b"header..", b"trailer."
ONE_FILE = Rotation()


class MemoryFile:
    """A sink that holds back what it is told to, and fails where it is told to."""

    def __init__(self, holds: bool, room: int) -> None:
        self.data = bytearray()
        self.held = bytearray()
        self.holds, self.room = holds, room
        self.closed = False

    def write(self, data: bytes | memoryview) -> None:
        self.held += data
        if not self.holds:
            self.flush()

    def flush(self) -> None:
        held, self.held = self.held, bytearray()
        if len(self.data) + len(held) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += held

    def close(self) -> None:
        self.flush()
        self.closed = True

    @property
    def held_bytes(self) -> int:
        return len(self.held)

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class Folder:
    """Files by name, and records of eight bytes into them, one packet each."""

    def __init__(self, rotation: Rotation = ONE_FILE, holds: bool = False) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.laid_out = 0
        self.holds = holds
        self.room = 1 << 40
        self.capture = CaptureFiles(
            "day.pcap.gz",
            rotation,
            self.create,
            lambda name: self.files.__delitem__(name),
            header=HEADER,
            trailer=lambda: TRAILER,
            laid_out=lambda: self.laid_out,
        )

    def create(self, name: str) -> MemoryFile:
        assert name not in self.files
        made = self.files[name] = MemoryFile(self.holds, self.room)
        return made

    def record(self, now_ns: int = BEGUN_NS, count: int = 1) -> None:
        self.laid_out += count
        self.capture.write("lines", memoryview(b"recorded" * count), now_ns)


@pytest.mark.parametrize(
    ("name", "stem", "suffix"),
    [
        ("day.pcap", "day", ".pcap"),
        ("day.pcapng.zst", "day", ".pcapng.zst"),
        ("day.1.pcap.gz", "day.1", ".pcap.gz"),
        ("day", "day", ""),
        ("day.gz", "day", ".gz"),
        ("day.one", "day.one", ""),
    ],
)
def test_a_captures_suffixes_are_read_from_its_name(name: str, stem: str, suffix: str) -> None:
    assert split_suffixes(name) == (stem, suffix)


def test_one_file_has_the_name_that_was_given_and_is_whole() -> None:
    folder = Folder()
    folder.capture.begin(BEGUN_NS)
    folder.record()
    folder.record()
    folder.capture.finish("")
    folder.capture.finish("")
    file = folder.files["day.pcap.gz"]
    assert file.data == HEADER + b"recorded" * 2 + TRAILER
    assert file.closed
    assert [each.packets for each in folder.capture.written] == [2]
    assert folder.capture.size_bytes == len(file.data)
    assert folder.capture.room("lines") > 1 << 30


def test_a_rotating_captures_files_are_named_after_the_time_they_begin() -> None:
    folder = Folder(Rotation(every_ns=60 * SECOND))
    folder.capture.begin(BEGUN_NS)
    folder.record()
    folder.capture.tick(BEGUN_NS + 60 * SECOND - 1)
    folder.record()
    folder.capture.tick(BEGUN_NS + 60 * SECOND)
    folder.capture.tick(BEGUN_NS + 70 * SECOND)
    folder.record(BEGUN_NS + 75 * SECOND)
    folder.capture.tick(BEGUN_NS)  # the clock was set back
    assert {name: bytes(file.data) for name, file in folder.files.items()} == {
        "day-20261120-100000-000001.pcap.gz": HEADER + b"recorded" * 2 + TRAILER,
        "day-20261120-100115-000002.pcap.gz": HEADER + b"recorded" + TRAILER,
    }
    assert [each.packets for each in folder.capture.written] == [2, 1]


def test_a_file_never_grows_beyond_the_size_at_which_it_is_rotated() -> None:
    folder = Folder(Rotation(size_bytes=ROTATE_BYTES_MIN))
    assert folder.capture.room("lines") == ROTATE_BYTES_MIN - len(HEADER)
    folder.record(count=100)
    assert folder.capture.room("lines") == ROTATE_BYTES_MIN - len(HEADER) - 800
    folder.record(count=ROTATE_BYTES_MIN // 8 - 101)
    assert folder.capture.room("lines") == 0


def test_the_oldest_files_give_way_where_only_some_are_kept() -> None:
    folder = Folder(Rotation(every_ns=SECOND, keep=2))
    for number in range(4):
        folder.record(BEGUN_NS + number * SECOND)
        folder.capture.finish("")
    assert [each.deleted for each in folder.capture.written] == [True, True, False, False]
    assert [name[-13:-8] for name in folder.files] == ["00003", "00004"]
    assert folder.capture.size_bytes == sum(len(each.data) for each in folder.files.values())
    assert folder.capture.packets == 4


def test_what_a_sink_holds_back_counts_as_written_when_it_is() -> None:
    folder = Folder(holds=True)
    folder.capture.begin(BEGUN_NS)
    folder.record()
    assert folder.capture.packets == 0
    folder.capture.tick(BEGUN_NS + FLUSH_NS - 1)
    assert folder.capture.packets == 0
    folder.capture.tick(BEGUN_NS + FLUSH_NS)
    assert folder.capture.packets == 1
    folder.record()
    folder.capture.finish("")
    assert folder.capture.packets == 2


@pytest.mark.parametrize("holds", [False, True])
def test_a_full_disk_leaves_what_was_written_and_the_count_of_it(holds: bool) -> None:
    folder = Folder(holds=holds)
    folder.room = 30
    folder.capture.begin(BEGUN_NS)
    folder.record()
    folder.capture.tick(BEGUN_NS + FLUSH_NS)
    folder.record()
    if holds:
        folder.record(count=2)
    else:
        with pytest.raises(OSError, match="No space"):
            folder.record(count=2)
    with pytest.raises(OSError, match="No space"):
        folder.capture.finish("")
    (file,) = folder.files.values()
    whole = 1 if holds else 2
    assert file.data == HEADER + b"recorded" * whole
    assert folder.capture.packets == folder.capture.written[0].packets == whole


def test_a_disk_that_is_full_as_a_file_begins_leaves_no_file_without_a_header() -> None:
    folder = Folder(Rotation(every_ns=SECOND))
    folder.record()
    folder.capture.finish("")
    folder.room = 4
    with pytest.raises(OSError, match="No space"):
        folder.record(BEGUN_NS + SECOND, count=2)
    folder.capture.finish("")
    assert [bytes(file.data) for file in folder.files.values()] == [HEADER + b"recorded" + TRAILER]
    assert folder.capture.packets == 1
    assert [each.packets for each in folder.capture.written] == [1]


def test_an_older_file_that_was_moved_away_is_no_fault() -> None:
    def gone(name: str) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)

    folder = Folder(Rotation(every_ns=SECOND, keep=1))
    folder.capture._remove = gone
    for number in range(3):
        folder.record(BEGUN_NS + number * SECOND)
        folder.capture.finish("")
    assert [each.deleted for each in folder.capture.written] == [True, True, False]


def test_a_pcapng_file_tells_its_lines_and_what_each_lost() -> None:
    made = section("recorder 1", [("eth1", "line A"), ("eth2", "")])
    lines = [LineStatistics(10, 3), LineStatistics(7, 0)]
    made += statistics(lines, BEGUN_NS, BEGUN_NS + SECOND)
    kinds, blocks = [], []
    while made:
        kind, size = (int.from_bytes(made[at : at + 4], "little") for at in (0, 4))
        assert size % 4 == 0
        assert made[size - 4 : size] == made[4:8]
        kinds.append(kind)
        blocks.append(made[:size])
        made = made[size:]
    assert kinds == [0x0A0D0D0A, 1, 1, 5, 5]
    described = dpkt.pcapng.InterfaceDescriptionBlockLE(blocks[1])
    assert [option.data for option in described.opts[:3]] == [b"eth1", b"line A", b"\x09"]
    assert b"line" not in blocks[2]
    options, rest = {}, blocks[3][20:-4]
    while code := int.from_bytes(rest[:2], "little"):
        options[code] = rest[4:12]
        assert int.from_bytes(rest[2:4], "little") == 8
        rest = rest[12:]
    counted = [int.from_bytes(options[code], "little") for code in (4, 5, 7, 8)]
    assert counted == [13, 3, 3, 10]
    times = [
        int.from_bytes(options[code][:4], "little") << 32
        | int.from_bytes(options[code][4:], "little")
        for code in (2, 3)
    ]
    assert times == [BEGUN_NS, BEGUN_NS + SECOND]
