"""Sources of captures: local files, folders, patterns, and what pyarrow's file systems reach.

`find_captures` expands a list of paths to files, in the order of names and each absolute, so that
they mean the same in a worker with another working directory; `look_at` reads a file's first bytes
and says what it is. A path with `://` is a URI: `file://` is a local path, `s3a://` and `s3n://`
are read as `s3://`; `hdfs://` and the rest are passed to pyarrow. An S3 server that is not Amazon's
is given as pyarrow wants it, `s3a://bucket/key?endpoint_override=host:port&scheme=http`, or through
the environment variable `AWS_ENDPOINT_URL`.
"""

import contextlib
import fnmatch
import glob
import io
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from feedhandler.characterise.slices import CaptureFile
from feedhandler.characterise.zstd_frames import FramedFile, frames_of
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.replay.captures.pcap import FILE_HEADER_BYTES
from feedhandler.replay.captures.pcapng import SECTION_MAGIC
from feedhandler.replay.captures.reading import pcap_scanner
from feedhandler.replay.captures.records import RECORD_HEADER_BYTES
from feedhandler.replay.captures.sources import open_source, refuse_pipe

#: File names that a folder's captures have; others in it are ignored.
CAPTURE_PATTERNS = ("*.pcap", "*.pcapng", "*.cap", "*.pcap.gz", "*.pcapng.gz", "*.cap.gz",
                    "*.pcap.zst", "*.pcapng.zst", "*.cap.zst")  # fmt: skip
#: The suffixes of compressed captures, behind the capture's own.
COMPRESSED = (".gz", ".zst")
#: The suffix of a recording's name until the gateway's recorder has completed it.
PART = ".part"
#: Schemes whose paths begin with a bucket; other URIs have a machine's name there.
OBJECT_STORES = ("s3", "s3a", "s3n", "gs", "gcs")
#: Bytes copied at a time from a remote file that can only be read from its beginning.
COPY_BYTES = 1 << 20

_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_HINT = "give captures, folders of them or patterns like 'day/*.pcap.gz'"
_LOCAL = "file://"


def is_remote(path: str) -> bool:
    """Check whether a path is a URI of another machine's files."""
    return "://" in path and not path.startswith(_LOCAL)


def absolute(path: str) -> str:
    """Make a path independent of the working directory.

    A URI stays, a `file://` URI becomes its path, a pattern stays one. Raises `UsageError` for
    another machine's `file://`.
    """
    if is_remote(path):
        return path
    if path.startswith(_LOCAL):
        host, slash, inner = path.removeprefix(_LOCAL).partition("/")
        if host not in ("", "localhost") or not slash:
            raise UsageError(f"{path} is no local file", "give file:///folder/name, or a path")
        return slash + inner
    if os.path.isabs(path):
        return path
    pattern = is_pattern(path) and not Path(path).exists()
    return str(Path(glob.escape(os.getcwd()) if pattern else os.getcwd(), path))


def is_pattern(path: str) -> bool:
    """Check whether a path contains wildcards."""
    return any(sign in path for sign in "*?[")


def shown(path: str) -> str:
    """Return a path fit for messages: a URI without its query and its credentials."""
    if not is_remote(path):
        return path
    scheme, _, rest = path.partition("://")
    location = rest.partition("?")[0]
    bucket, slash, inner = location.partition("/")
    return f"{scheme}://{bucket.rpartition('@')[2]}{slash}{inner}"


def _file_system(uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a URI, and the path in it."""
    from pyarrow import fs

    scheme, _, rest = uri.partition("://")
    location, question, query = rest.partition("?")
    if scheme in ("s3a", "s3n", "s3"):
        scheme = "s3"
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint and not question:
            how, _, host = endpoint.partition("://")
            query = f"scheme={how}&endpoint_override={host}"
    # A pattern's wildcards must not be parsed as parts of the URI.
    bucket, slash, inner = location.partition("/")
    with _as_usage(uri):
        system, path = fs.FileSystem.from_uri(f"{scheme}://{bucket}" + (f"?{query}" * bool(query)))
    if scheme in OBJECT_STORES:
        return system, posixpath.join(path, inner) if slash else path
    return system, f"/{inner}"


@contextlib.contextmanager
def _as_usage(path: str) -> Iterator[None]:
    """Turn a file system's error about a path into a `UsageError` without secrets of the URI."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        reason = reason[:200].replace(path, shown(path))
        raise UsageError(f"cannot read {shown(path)}: {reason}", _HINT) from None


def find_captures(paths: Sequence[str]) -> list[str]:
    """Expand the paths: files as they are, the captures of folders, what patterns match; each once.

    Raises `UsageError` for a path that names nothing.
    """
    captures: dict[str, None] = {}
    for path in map(absolute, paths):
        matches = list(_find_remote(path) if is_remote(path) else _find_local(path))
        if not matches:
            raise UsageError(f"no capture at {shown(path)}", _HINT)
        captures.update(dict.fromkeys(matches))
    return list(captures)


def _find_local(path: str) -> Iterator[str]:
    local = Path(path)
    if local.is_dir():
        yield from sorted(str(each) for each in local.iterdir() if _is_capture_name(each.name))
    elif local.exists():
        yield path
    elif is_pattern(path):
        yield from sorted(glob.glob(path, recursive=True))


def _is_capture_name(name: str) -> bool:
    return any(fnmatch.fnmatch(name.lower(), pattern) for pattern in CAPTURE_PATTERNS)


def _find_remote(uri: str) -> Iterator[str]:
    from pyarrow import fs

    system, path = _file_system(uri)
    scheme, _, rest = uri.partition("://")
    query = uri.partition("?")[2]
    host = "" if scheme in OBJECT_STORES else rest.partition("/")[0] + "/"

    def named(each: str) -> str:
        return f"{scheme}://{host}{each.lstrip('/')}" + (f"?{query}" if query else "")

    with _as_usage(uri):
        if any(sign in path for sign in "*["):
            folder = posixpath.dirname(path.partition("*")[0].partition("[")[0])
            inside = system.get_file_info(fs.FileSelector(folder, recursive=True))
            names = [each.path for each in inside if fnmatch.fnmatch(each.path, path)]
        else:
            info = system.get_file_info(path)
            if info.type == fs.FileType.File:
                names = [path]
            elif info.type == fs.FileType.Directory:
                inside = system.get_file_info(fs.FileSelector(path))
                names = [each.path for each in inside if _is_capture_name(each.base_name)]
            else:
                names = []
    yield from (named(name) for name in sorted(names))


def open_at(path: str, position: int) -> Any:
    """Open the file for `readinto` and `read` from `position` on. Raises `UsageError`."""
    with _as_usage(path):
        if is_remote(path):
            system, location = _file_system(path)
            file: Any = system.open_input_file(location)
        else:
            file = _open_local(path)
        file.seek(position)
        return file


def _open_local(path: str) -> Any:
    """Open the file, or its `PART` form while it is incomplete.

    It may be completed between the two attempts, so the name itself is tried twice.
    """
    for name in (path, path + PART):
        with contextlib.suppress(FileNotFoundError):
            return open(name, "rb", buffering=0)
    return open(path, "rb", buffering=0)


def size_of(path: str) -> int:
    """Return the file's size in bytes. Raises `UsageError`."""
    with open_at(path, 0) as file:
        return int(file.seek(0, io.SEEK_END))


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """Provide the file as a local one: itself, or a copy that is removed when the context ends."""
    if not is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="feedhandler-") as folder:
        copy = Path(folder) / "capture"
        with open_at(path, 0) as file, copy.open("wb") as target, _as_usage(path):
            shutil.copyfileobj(file, target, COPY_BYTES)
        yield copy


def open_capture_at(file: CaptureFile, position: int) -> Any:
    """Open a capture that can be cut at a position in its content. Raises `UsageError`."""
    if file.kind == "content":
        return open_content(compressed(file.path) or file.path, position)
    if not file.frames:
        return open_at(file.path, position)
    framed = FramedFile(open_at(file.path, 0), file.frames, shown(file.path))
    framed.seek(position)
    return framed


class Content:
    """The content of a local file from a position on, inflated where it is compressed."""

    def __init__(self, path: str, position: int) -> None:
        self.damage = ""
        self._path = path
        self._source = open_source(Path(path))
        block = memoryview(bytearray(COPY_BYTES))
        while position and (got := self.readinto(block[: min(position, COPY_BYTES)])):
            position -= got

    def readinto(self, buffer: memoryview) -> int:
        """Fill part of `buffer`; return 0 at the end.

        Where the rest cannot be inflated, it ends there, and `damage` says so.
        """
        try:
            return self._source.readinto(buffer)
        except PeerError as error:
            self.damage = error.message
            return 0

    def __enter__(self) -> "Content":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._source.close()


def open_content(path: str, position: int) -> Content:
    """Open the content of a local file at `position`. Raises `UsageError`."""
    with _as_usage(path):
        return Content(path, position)


def compressed(name: str) -> str:
    """Find the compressed file that replaced a local plain one of this name; empty if none did."""
    return next((name + each for each in COMPRESSED if Path(name + each).exists()), "")


def look_at_content(path: str) -> CaptureFile:
    """Examine a local, compressed classic capture, to be read by positions in its content.

    Raises `UsageError` where it cannot be read, `PeerError` where it is no such capture.
    """
    head = bytearray(FILE_HEADER_BYTES + RECORD_HEADER_BYTES)
    with open_content(path, 0) as content:
        got = content.readinto(memoryview(head))
    if got < FILE_HEADER_BYTES:
        raise PeerError(f"{path} is not a capture: it ends after {got} bytes", _HINT)
    return _classic(path, "content", size_of(path), bytes(head))


def _classic(path: str, kind: str, size: int, head: bytes) -> CaptureFile:
    """Describe a classic capture by its first bytes. Raises `PeerError` where it is none."""
    header = head[:FILE_HEADER_BYTES]
    pcap_scanner(header, shown(path))
    order: Literal["big", "little"] = "big" if header[:1] == b"\xa1" else "little"
    return CaptureFile(path, kind, size, header, int.from_bytes(head[24:28], order))


def _framed(file: CaptureFile) -> CaptureFile:
    """Add the zstd frames to the file, if they hold a classic capture that can be cut."""
    with open_at(file.path, 0) as opened:
        frames = tuple(frames_of(opened))
    if not frames:
        return file
    head = bytearray(FILE_HEADER_BYTES + RECORD_HEADER_BYTES)
    try:
        with FramedFile(open_at(file.path, 0), frames[:1], shown(file.path)) as content:
            got = content.readinto(memoryview(head))
        made = _classic(file.path, "zstd", file.size, bytes(head))
    except PeerError:
        return file  # damaged, or pcapng: read as a whole
    return file if got < len(head) else structs.replace(made, frames=frames)


def look_at(path: str) -> CaptureFile:
    """Examine what a file is.

    Raises `UsageError` where it cannot be read, `PeerError` where it is no capture.
    """
    refuse_pipe(Path(path))
    size = size_of(path)
    with open_at(path, 0) as file:
        head = bytes(file.read(FILE_HEADER_BYTES + RECORD_HEADER_BYTES))
    if head.startswith(_GZIP_MAGIC):
        return CaptureFile(path, "gzip", size)
    if head.startswith(_ZSTD_MAGIC) or head[1:4] == b"\x2a\x4d\x18":
        return _framed(CaptureFile(path, "zstd", size))
    if head.startswith(SECTION_MAGIC):
        return CaptureFile(path, "pcapng", size)
    if len(head) < FILE_HEADER_BYTES:
        raise PeerError(f"{shown(path)} is not a capture: it ends after {len(head)} bytes", _HINT)
    return _classic(path, "pcap", size, head)
