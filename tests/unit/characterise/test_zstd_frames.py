"""zstd files of several frames are cut by their content; all others are read whole."""

import itertools
from pathlib import Path

import pyarrow
import pytest

from feedhandler.characterise.files import look_at
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.planning import exact_slices
from feedhandler.characterise.reading import SliceReader
from feedhandler.characterise.zstd_frames import FramedFile, frames_of
from feedhandler.replay.captures.reading import Capture
from tests.support.characterise import table_rows, write_session

UTP = Request("euronext-utp-md")
CODEC = pyarrow.Codec("zstd")
SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"


def framed(data: bytes, piece: int) -> bytes:
    """A frame a piece, as a recorder writes them, and one that readers pass over."""
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    return SKIPPABLE + b"".join(bytes(CODEC.compress(each)) for each in pieces)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=6, seconds=0.1)


@pytest.mark.parametrize("piece", [777, 30_000])
def test_a_row_of_frames_gives_what_the_plain_capture_gives(
    session: Path, tmp_path: Path, piece: int
) -> None:
    path = tmp_path / "day.pcap.zst"
    path.write_bytes(framed(session.read_bytes(), piece))
    file = look_at(str(path))
    assert file.length == session.stat().st_size
    assert len(file.frames) == -(-file.length // piece)
    whole = characterise([str(session)], UTP)
    for size in (20_000, 10**9):
        parts = characterise([str(path)], UTP, slice_size=size)
        assert parts.files[0].slices == -(-(file.length - 24) // size)
        assert table_rows(parts) == table_rows(whole)
    (part,) = exact_slices([file], 20_000)
    assert sum(map(len, SliceReader(part).batches())) == whole.files[0].datagrams


def test_content_is_read_from_any_offset(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20
    path = tmp_path / "x.zst"
    path.write_bytes(framed(data, 300))
    with path.open("rb") as file:
        frames = tuple(frames_of(file))
    with FramedFile(path.open("rb"), frames, "x") as content:
        for index in (0, 1, 299, 300, 301, 4_000, len(data) - 1, len(data)):
            content.seek(index)
            room = bytearray(1_000)
            filled = 0
            while filled < len(room):
                got = content.readinto(memoryview(room)[filled:])
                if not got:
                    break
                filled += got
            assert bytes(room[:filled]) == data[index : index + 1_000]


def test_what_cannot_be_cut_is_read_whole(session: Path, tmp_path: Path) -> None:
    data = session.read_bytes()
    kinds = {
        "one.zst": bytes(CODEC.compress(data)),
        "unsized.zst": _streamed(data[:5_000]) + _streamed(data[5_000:]),
        "cut.zst": framed(data, 10_000)[:-3],
        "pcapng.zst": framed(b"\x0a\x0d\x0d\x0a" + bytes(60), 16),
        "short.zst": framed(data[:24], 12),
        "tail.zst": framed(data, 10_000) + b"tail",
        "other.zst": framed(data, 10_000) + b"something else",
    }
    for name, content in kinds.items():
        (tmp_path / name).write_bytes(content)
        assert not look_at(str(tmp_path / name)).is_cut, name
    whole = characterise([str(session)], UTP)
    for name in ("one.zst", "unsized.zst"):
        assert table_rows(characterise([str(tmp_path / name)], UTP)) == table_rows(whole)
    cut = characterise([str(tmp_path / "cut.zst")], UTP).files[0]
    assert 0 < cut.records < whole.files[0].records
    assert "cut short" in cut.problem


def ends_of(capture: Path) -> list[int]:
    """Return the offset in bytes at which each record of a capture ends."""
    sizes = [size for b in Capture(capture).batches() for size in b.frame_length.tolist()]
    return [24 + total for total in itertools.accumulate(size + 16 for size in sizes)]


def _streamed(data: bytes) -> bytes:
    """One frame that does not tell its content's size."""
    target = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(target, "zstd") as stream:
        stream.write(data)
    return target.getvalue().to_pybytes()


def test_a_damaged_frame_is_reported(session: Path, tmp_path: Path) -> None:
    data = bytearray(framed(session.read_bytes(), 20_000))
    path = tmp_path / "day.pcap.zst"
    path.write_bytes(data)
    frames = look_at(str(path)).frames
    middle = frames[2].at + frames[2].size // 2
    data[middle : middle + 40] = bytes(40)
    path.write_bytes(data)
    with FramedFile(path.open("rb"), frames[2:4], "day") as content:
        assert content.readinto(memoryview(bytearray(10))) == 0
        assert content.readinto(memoryview(bytearray(10))) == 0
        assert content.damage == "day: the zstd stream is damaged"
    for size in (15_000, 10**9):
        (file,) = characterise([str(path)], UTP, slice_size=size).files
        assert "the zstd stream is damaged" in file.problem
        assert file.records == sum(end <= frames[2].start for end in ends_of(session))
