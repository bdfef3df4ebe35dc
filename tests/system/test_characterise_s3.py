"""Captures on an S3 server on this machine: found, cut, read, and no secret shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedhandler.characterise.files import find_captures, shown
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.lake import fill_lake, outcome_of
from feedhandler.codecs.errors import UsageError
from tests.support.characterise import table_rows, write_session

if TYPE_CHECKING:
    from pyarrow import fs

UTP = Request("euronext-utp-md")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple["fs.S3FileSystem", str]]:
    """An empty bucket, and the query that names its server."""
    # Here, not above: it takes a second that who runs other tests need not wait.
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed")
    from pyarrow import fs

    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    system = fs.S3FileSystem(
        access_key="testing",
        secret_key="testing",
        endpoint_override=f"{host}:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    system.create_dir("captures")
    try:
        yield system, f"scheme=http&endpoint_override={host}:{port}"
    finally:
        server.stop()


def test_captures_on_s3_give_what_they_give_on_disk(
    bucket: tuple["fs.S3FileSystem", str], tmp_path: Path
) -> None:
    system, query = bucket
    for name, seed in (("a.pcap", 1), ("b.pcap.gz", 2)):
        write_session(tmp_path / name, seed, seconds=0.05)
        with system.open_output_stream(f"captures/day/{name}", compression=None) as target:
            target.write((tmp_path / name).read_bytes())
    here = characterise([str(tmp_path)], UTP)
    for path in ("s3a://captures/day", "s3a://captures/day/*.pcap*", f"s3://captures/day?{query}"):
        there = characterise([path], UTP, slice_size=40_000)
        assert [each.slices > 1 for each in there.files] == [True, False]
        assert [each.path.partition("://")[2] for each in there.files] == [
            "captures/day/a.pcap",
            "captures/day/b.pcap.gz",
        ]
        assert table_rows(there) == table_rows(here)


def test_a_lake_is_filled_from_s3_as_from_the_disk(
    bucket: tuple["fs.S3FileSystem", str], tmp_path: Path
) -> None:
    system, _ = bucket
    system.create_dir("captures/day")
    for name in ("a.pcap", "b.pcap.gz"):
        write_session(tmp_path / name, len(name), seconds=0.03)
        with system.open_output_stream(f"captures/day/{name}", compression=None) as target:
            target.write((tmp_path / name).read_bytes())
    there = fill_lake(["s3a://captures/day"], UTP.feed, tmp_path / "lake")
    assert [each.path for each in there] == [
        f"s3a://captures/day/{n}" for n in ("a.pcap", "b.pcap.gz")
    ]
    # The same captures from the disk are the same captures.
    here = fill_lake([str(tmp_path)], UTP.feed, tmp_path / "lake")
    assert [each.new for each in there] == [True, True]
    assert [each.new for each in here] == [False, False]
    there = outcome_of(tmp_path / "lake", UTP.feed)
    assert table_rows(there) == table_rows(characterise([str(tmp_path)], UTP))


def test_what_is_not_there_is_reported_without_secrets(
    bucket: tuple["fs.S3FileSystem", str],
) -> None:
    for path in ("s3a://captures/none.pcap", "s3a://key:secret@captures/none.pcap"):
        with pytest.raises(UsageError) as raised:
            find_captures([path])
        assert "secret" not in str(raised.value)
        assert "captures/none.pcap" in str(raised.value)
    assert shown("s3a://key:secret@bucket/x?access_key=1") == "s3a://bucket/x"
    assert shown("odd?name.pcap") == "odd?name.pcap"
