"""Compressed captures: inflated ahead by a thread, and read as if they were plain."""

import contextlib
import gzip
import os
import random
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from feedhandler.codecs.errors import PeerError
from feedhandler.replay.captures import sources as capture_sources
from feedhandler.replay.captures.sources import (
    AHEAD_BLOCK_BYTES,
    AHEAD_BLOCKS,
    AHEAD_FROM_BYTES,
    PlainSource,
    ReadAhead,
    open_source,
    read_up_to,
)

SEED = int(os.environ.get("FEEDHANDLER_SEED", "20261121"))
RERUN = f"FEEDHANDLER_SEED={SEED} pytest {Path(__file__).relative_to(Path.cwd())}"

#: More than the thread may have read ahead, so that it has to wait for its reader.
CONTENT_BYTES = (AHEAD_BLOCKS + 3) * AHEAD_BLOCK_BYTES + 12_345


def content_of(size: int = CONTENT_BYTES) -> bytes:
    """Random half bytes: every stretch of it is compressed to about half."""
    return random.Random(SEED).randbytes(size).translate(bytes(range(16)) * 16)


def zstd(content: bytes) -> bytes:
    """One zstd frame that does not tell how long it is, as a recorder writes it."""
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd}


def read_all(source: Any, size: int = 1 << 20) -> bytes:
    buffer = memoryview(bytearray(size))
    read = bytearray()
    while got := source.readinto(buffer):
        read += buffer[:got]
    return bytes(read)


def ahead_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "read-ahead"]


@pytest.mark.parametrize("kind", COMPRESS)
def test_reads_of_any_size_give_the_bytes_of_all_members_in_order(
    kind: str, tmp_path: Path
) -> None:
    print(f"seed {SEED}: {RERUN}")
    random_source = random.Random(SEED)
    content = content_of()
    cuts = sorted(random_source.sample(range(len(content)), 4))
    parts = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    path = tmp_path / "capture"
    path.write_bytes(b"".join(COMPRESS[kind](part) for part in parts))
    source = open_source(path)
    read = bytearray(read_up_to(source, 24))
    assert not ahead_threads()
    buffer = memoryview(bytearray(3 * AHEAD_BLOCK_BYTES))
    while got := source.readinto(buffer[: random_source.randrange(1, len(buffer))]):
        read += buffer[:got]
    source.close()
    assert bytes(read) == content
    assert not source.cut
    assert source.share_done() == 1.0
    assert not ahead_threads()


@pytest.mark.parametrize("kind", COMPRESS)
def test_of_a_cut_file_everything_before_the_cut_is_read(kind: str, tmp_path: Path) -> None:
    content = content_of()
    whole = COMPRESS[kind](content)
    path = tmp_path / "capture"
    path.write_bytes(whole[: len(whole) // 2])
    source = open_source(path)
    read = read_all(source)
    source.close()
    assert source.cut
    assert content.startswith(read)
    assert len(read) > len(content) // 4


def test_bytes_before_damage_are_read_before_the_error_is_raised_again_and_again(
    tmp_path: Path,
) -> None:
    content = content_of()
    damaged = bytearray(gzip.compress(content))
    damaged[len(damaged) // 2 : len(damaged) // 2 + 64] = b"\xff" * 64
    path = tmp_path / "capture"
    path.write_bytes(damaged)
    source = open_source(path)
    buffer = memoryview(bytearray(1 << 16))
    read = bytearray()
    with contextlib.suppress(PeerError):
        while got := source.readinto(buffer):
            read += buffer[:got]
    with pytest.raises(PeerError, match="gzip stream is damaged"):
        source.readinto(buffer)
    source.close()
    assert content.startswith(read[: len(content) // 4])
    assert len(read) > len(content) // 4


def test_a_zstd_window_that_is_too_large_is_no_damage(tmp_path: Path) -> None:
    # A frame of unknown size whose window has 2 ** 31 bytes, and one raw block (RFC 8878).
    block = b"capture"
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, 21 << 3]) + (len(block) << 3 | 1).to_bytes(3, "little")
    path = tmp_path / "long.pcap.zst"
    path.write_bytes(frame + block)
    with pytest.raises(PeerError, match="window of more than 128 MiB") as raised:
        read_up_to(open_source(path), len(block))
    assert "--long" in raised.value.hint


def test_the_thread_waits_for_its_reader_and_ends_with_close(tmp_path: Path) -> None:
    class Counting(PlainSource):
        read = 0
        full = threading.Event()

        def readinto(self, buffer: memoryview) -> int:
            got = super().readinto(buffer)
            self.read += got
            if self.read >= AHEAD_BLOCKS * AHEAD_BLOCK_BYTES:
                self.full.set()
            return got

    path = tmp_path / "large"
    path.write_bytes(bytes(4 * AHEAD_BLOCKS * AHEAD_BLOCK_BYTES))
    inner = Counting(path)
    source = ReadAhead(inner)
    assert source.readinto(memoryview(bytearray(AHEAD_FROM_BYTES))) == AHEAD_FROM_BYTES
    assert inner.full.wait(10)
    (thread,) = ahead_threads()
    source.close()
    assert not thread.is_alive()
    assert inner.read == AHEAD_BLOCKS * AHEAD_BLOCK_BYTES


def test_zlib_inflates_where_there_is_no_faster_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_sources, "_inflater", zlib.decompressobj)
    content = content_of(300_000)
    path = tmp_path / "capture"
    path.write_bytes(gzip.compress(content[:1_000]) + gzip.compress(content[1_000:]) + bytes(512))
    source = open_source(path)
    assert read_all(source) == content
    source.close()


@pytest.mark.parametrize("size", [0, 1, AHEAD_BLOCK_BYTES, 2 * AHEAD_BLOCK_BYTES])
def test_the_end_may_fall_on_a_blocks_end(size: int, tmp_path: Path) -> None:
    content = content_of(size)
    path = tmp_path / "capture"
    path.write_bytes(gzip.compress(content))
    source = open_source(path)
    assert read_all(source, 1 << 16) == content
    assert source.readinto(memoryview(bytearray(1 << 16))) == 0
    source.close()
