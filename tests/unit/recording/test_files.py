"""Rotation and the disk's share: the recorder's rules on a folder that is only pretended."""

import errno

import pytest

from feedhandler.codecs.trading_day import TradingDay
from feedhandler.config.recording import FILE_BYTES_MIN, RecordConfig
from feedhandler.recording.files import Full, RecordingFiles

HEADER = b"header--"
#: 2026-11-20 10:00:00 UTC.
START_NS = 1_795_168_800_000_000_000
SECOND_NS = 1_000_000_000
MIB = 1 << 20


class PretendedFile:
    """Keeps its bytes in the folder's `parts`."""

    def __init__(self, folder: "PretendedFolder", name: str) -> None:
        self.folder, self.name, self.open = folder, name, True
        folder.parts[name] = 0

    def write(self, data: memoryview) -> None:
        assert self.open
        if self.folder.failures:
            raise OSError(self.folder.failures.pop(0), "pretended")
        self.folder.parts[self.name] += len(data)
        self.folder.free -= len(data)

    def close(self) -> None:
        self.open = False


class PretendedFolder:
    """A folder in a file system of `size` bytes; `failures` are the errors of coming writes."""

    def __init__(self, size: int = 1_000 * MIB, free: int | None = None) -> None:
        self.size = size
        self.free = size if free is None else free
        self.files: dict[str, int] = {}
        self.parts: dict[str, int] = {}
        self.failures: list[int] = []
        self.late_to_free = False

    def closed(self) -> list[tuple[str, int]]:
        return list(self.files.items())[::-1]  # in no useful order

    def unfinished(self) -> list[str]:
        return list(self.parts)

    def space(self) -> tuple[int, int]:
        return self.free, self.size

    def create(self, name: str) -> PretendedFile:
        if name in self.files or name in self.parts:
            raise FileExistsError(name)
        return PretendedFile(self, name)

    def finish(self, name: str) -> None:
        self.files[name] = self.parts.pop(name)

    def remove(self, name: str) -> None:
        if name not in self.files:
            raise FileNotFoundError(name)
        size = self.files.pop(name)
        if not self.late_to_free:
            self.free += size


def settings(**changes: object) -> RecordConfig:
    base = {
        "dir": "pretended",
        "what": "both",
        "file_bytes": FILE_BYTES_MIN,
        "total_bytes": 4 * FILE_BYTES_MIN,
        "disk_free_min_share": 0.0,
    }
    return RecordConfig(**{**base, **changes})  # type: ignore[arg-type]


def files_of(folder: PretendedFolder, **changes: object) -> RecordingFiles:
    chosen = settings(**changes)
    return RecordingFiles(folder, chosen, HEADER, chosen.series, TradingDay("UTC"))


def write(files: RecordingFiles, size: int, series: str = "lines", second: int = 0) -> None:
    """One write, after a rotation where the file has no room, as the recorder does it."""
    if files.room(series) < size:
        files.finish(series)
    files.write(series, memoryview(bytes(size)), START_NS + second * SECOND_NS)


def test_a_file_has_its_name_from_its_series_its_time_and_its_number() -> None:
    folder = PretendedFolder()
    files = files_of(folder)
    assert folder.parts == {}, "no file is begun before there is something to write"
    write(files, 1000)
    write(files, 500, "published", 61)
    assert folder.parts == {
        "lines-20261120-20261120-100000-000001.pcap": 1008,
        "published-20261120-20261120-100101-000002.pcap": 508,
    }
    assert files.total_bytes == 1516
    files.close()
    assert folder.parts == {}
    assert list(folder.files.values()) == [1008, 508]
    assert files.begun == {"lines": 1, "published": 1}


def test_a_file_ends_with_the_trading_day_and_has_it_in_its_name() -> None:
    folder, chosen = PretendedFolder(), settings()
    evening = TradingDay("UTC", "18:00")
    files = RecordingFiles(folder, chosen, HEADER, chosen.series, evening)
    turns_ns = evening.turns_ns(START_NS)
    files.write("lines", memoryview(bytes(10)), turns_ns - 1)
    files.write("lines", memoryview(bytes(10)), turns_ns)
    assert list(folder.files) == ["lines-20261120-20261120-175959-000001.pcap"]
    assert list(folder.parts) == ["lines-20261121-20261120-180000-000002.pcap"]
    files.tick(evening.turns_ns(turns_ns))
    assert folder.parts == {}


def test_a_name_that_is_taken_is_passed_over() -> None:
    folder = PretendedFolder()
    folder.files["lines-20261120-20261120-100000-000001.pcap"] = 77
    files = files_of(folder)
    write(files, 10)
    assert list(folder.parts) == ["lines-20261120-20261120-100000-000002.pcap"]
    assert files.total_bytes == 77 + 18


def test_a_file_is_closed_at_its_size() -> None:
    folder = PretendedFolder()
    files = files_of(folder)
    assert files.room("lines") == FILE_BYTES_MIN - len(HEADER)
    write(files, 600_000)
    assert files.room("lines") == FILE_BYTES_MIN - len(HEADER) - 600_000
    assert files.room("published") == FILE_BYTES_MIN - len(HEADER)
    write(files, 600_000)
    assert list(folder.files.values()) == [600_008]
    assert list(folder.parts.values()) == [600_008]


def test_a_file_is_closed_at_its_age_and_none_is_begun_for_nothing() -> None:
    folder = PretendedFolder()
    files = files_of(folder, file_seconds=60)
    write(files, 10)
    write(files, 10, "published", 30)
    files.tick(START_NS + 60 * SECOND_NS - 1)
    assert folder.files == {}
    files.tick(START_NS + 60 * SECOND_NS)
    assert list(folder.files) == ["lines-20261120-20261120-100000-000001.pcap"]
    files.tick(START_NS + 3600 * SECOND_NS)
    assert len(folder.files) == 2
    assert folder.parts == {}


def test_a_clock_that_was_set_back_closes_the_file() -> None:
    folder = PretendedFolder()
    files = files_of(folder)
    write(files, 10, second=100)
    files.tick(START_NS)
    assert folder.parts == {}


def test_files_that_were_not_closed_are_kept_and_counted() -> None:
    folder = PretendedFolder()
    folder.parts["published-20261119-20261119-100000-000007.pcap"] = 5_000
    files = files_of(folder)
    assert files.recovered == 1
    assert folder.files == {"published-20261119-20261119-100000-000007.pcap": 5_000}
    assert files.total_bytes == 5_000


def test_recording_stops_at_the_total() -> None:
    folder = PretendedFolder()
    folder.files["lines-20261119-20261119-100000-000001.pcap"] = 2 * MIB
    files = files_of(folder)
    for _ in range(3):
        write(files, MIB // 2)
    before = {**folder.files, **folder.parts}
    with pytest.raises(Full, match=r"record\.total_bytes, 4,194,304, is reached"):
        write(files, MIB // 2)
    assert {**folder.files, **folder.parts} == before, "nothing of it was written"
    assert sum(before.values()) <= 4 * MIB


def test_the_oldest_file_of_any_series_and_run_gives_way() -> None:
    folder = PretendedFolder()
    folder.files["published-20261118-20261118-100000-000001.pcap"] = MIB
    folder.files["lines-20261119-20261119-100000-000001.pcap"] = MIB
    files = files_of(folder, when_full="delete-oldest")
    for number in range(10):
        write(files, 900_000, ("lines", "published")[number % 2], number)
        assert files.total_bytes <= 4 * MIB
        assert files.total_bytes == sum(folder.files.values()) + sum(folder.parts.values())
    assert min(name.partition("-")[2] for name in folder.files) >= "20261120-100006"
    assert sum(files.deleted.values()) == 8


def test_recording_stops_before_the_share_that_must_stay_free() -> None:
    folder = PretendedFolder(size=100 * MIB, free=11 * MIB)
    files = files_of(folder, disk_free_min_share=0.1, total_bytes=64 * MIB)
    write(files, MIB // 2)
    with pytest.raises(Full, match=r"less than record\.disk_free_min_share, 10\.0%"):
        write(files, MIB)
    assert folder.free >= 10 * MIB


def test_what_others_write_counts_for_the_share() -> None:
    folder = PretendedFolder(size=100 * MIB)
    files = files_of(folder, disk_free_min_share=0.5)
    write(files, 10)
    folder.free = 50 * MIB
    with pytest.raises(Full):
        write(files, 10)


@pytest.mark.parametrize("late_to_free", [False, True])
def test_no_more_is_deleted_than_is_needed(late_to_free: bool) -> None:
    folder = PretendedFolder(size=100 * MIB, free=12 * MIB)
    folder.late_to_free = late_to_free
    for number in range(4):
        folder.files[f"lines-2026111{number}-2026111{number}-100000-000001.pcap"] = MIB // 2
    files = files_of(
        folder, disk_free_min_share=0.1, when_full="delete-oldest", total_bytes=64 * MIB
    )
    folder.free = 10 * MIB
    write(files, 600_000)
    assert len(folder.files) == 2
    assert files.deleted["lines"] == 2


def test_with_nothing_left_to_delete_recording_stops() -> None:
    folder = PretendedFolder(size=100 * MIB, free=50 * MIB)
    files = files_of(folder, disk_free_min_share=0.1, when_full="delete-oldest")
    write(files, 10)
    folder.free = 9 * MIB
    with pytest.raises(Full, match="no older recording is left to delete"):
        write(files, 10)
    assert len(folder.parts) == 1, "a file being written never gives way"


def test_a_bound_that_is_reached_at_the_start_is_reported_at_the_start() -> None:
    with pytest.raises(Full):
        files_of(PretendedFolder(size=100 * MIB, free=MIB), disk_free_min_share=0.5)
    folder = PretendedFolder()
    folder.files["lines-20261119-20261119-100000-000001.pcap"] = 4 * MIB
    with pytest.raises(Full):
        files_of(folder)


def test_a_full_disk_is_a_bound_where_files_may_give_way() -> None:
    folder = PretendedFolder()
    folder.files["lines-20261119-20261119-100000-000001.pcap"] = MIB
    files = files_of(folder, when_full="delete-oldest")
    write(files, 10)
    folder.failures = [errno.ENOSPC]
    write(files, 10)
    assert folder.files == {}
    folder.failures = [errno.EDQUOT]
    with pytest.raises(Full, match="the disk is full, and no older"):
        write(files, 10)


def test_a_full_disk_stops_recording_where_nothing_may_give_way() -> None:
    folder = PretendedFolder()
    files = files_of(folder)
    folder.failures = [errno.ENOSPC]
    with pytest.raises(Full, match="the disk is full"):
        write(files, 10)


def test_a_file_whose_header_is_not_written_is_not_left_behind() -> None:
    folder = PretendedFolder()
    files = files_of(folder)
    write(files, 10, "published")
    folder.failures = [errno.ENOSPC]
    with pytest.raises(Full):
        write(files, 10)
    files.close()
    assert list(folder.files.values()) == [len(HEADER) + 10]
    assert files.begun == {"lines": 0, "published": 1}
    assert files.total_bytes == len(HEADER) + 10


def test_every_file_is_closed_where_one_fails_to(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PretendedFolder()
    files = files_of(folder)
    for series in ("lines", "published"):
        write(files, 10, series)

    def fail(self: PretendedFile) -> None:
        raise OSError(errno.EIO, "pretended")

    monkeypatch.setattr(PretendedFile, "close", fail)
    with pytest.raises(OSError, match="pretended"):
        files.close()
    assert folder.parts == {}


def test_any_other_failure_passes_through() -> None:
    folder = PretendedFolder()
    files = files_of(folder, when_full="delete-oldest")
    folder.failures = [errno.EIO]
    with pytest.raises(OSError, match="pretended"):
        write(files, 10)


def test_a_recording_that_an_operator_moved_away_is_no_longer_counted() -> None:
    folder = PretendedFolder()
    folder.files["lines-20261118-20261118-100000-000001.pcap"] = MIB
    folder.files["lines-20261119-20261119-100000-000001.pcap"] = MIB
    files = files_of(folder, when_full="delete-oldest")
    write(files, 900_000)
    del folder.files["lines-20261118-20261118-100000-000001.pcap"]
    write(files, 900_000)
    assert files.total_bytes == sum(folder.files.values()) + sum(folder.parts.values())
    del folder.files["lines-20261119-20261119-100000-000001.pcap"]
    for number in range(4):
        write(files, 900_000, second=number)
    assert files.total_bytes <= 4 * MIB
    assert files.total_bytes == sum(folder.files.values()) + sum(folder.parts.values())


def test_a_file_removed_in_the_same_moment_by_another_process_is_no_error() -> None:
    folder = PretendedFolder()
    folder.files["lines-20261118-20261118-100000-000001.pcap"] = MIB
    files = files_of(folder, when_full="delete-oldest")
    write(files, 10)
    folder.files.clear()
    folder.failures = [errno.ENOSPC]
    write(files, 10)
    assert files.deleted["lines"] == 0


def test_names_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PretendedFolder()
    files = files_of(folder)

    def exists(name: str) -> PretendedFile:
        raise FileExistsError(name)

    monkeypatch.setattr(folder, "create", exists)
    with pytest.raises(FileExistsError, match="too many recordings of the same second"):
        write(files, 10)
