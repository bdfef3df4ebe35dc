"""A channel's sequence epoch, kept over restarts (`feedhandler/fixcast/epoch_file.py`)."""

import errno
import os
from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError, HostFault, UsageError
from feedhandler.fixcast.epoch_file import EpochFile, StoredEpoch
from feedhandler.fixcast.values import NUMBER_MAX


def test_what_is_written_is_read_after_a_restart(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "new" / "folder", "c")
    assert file.read() == StoredEpoch(0, 0)
    for kept in (StoredEpoch(NUMBER_MAX, NUMBER_MAX), StoredEpoch(7, 12)):
        file.write(kept)
        assert file.read() == kept
    file.close()
    assert EpochFile(tmp_path / "new" / "folder", "c").read() == StoredEpoch(7, 12)
    assert file.path.read_text() == '{"epoch": 7, "next": 12}\n'


def test_a_second_publisher_of_a_channel_is_refused(tmp_path: Path) -> None:
    first = EpochFile(tmp_path, "c")
    with pytest.raises(ConfigError, match="being published by another"):
        EpochFile(tmp_path, "c")
    EpochFile(tmp_path, "d").close()
    first.close()
    EpochFile(tmp_path, "c").close()


@pytest.mark.parametrize(
    "text",
    [
        "rubbish", "[]", "{}", "7", "\xff\x00", '{"epoch": -1, "next": 1}',
        '{"epoch": 1, "next": "x"}', '{"epoch": 1, "next": Infinity}',
    ],
)  # fmt: skip
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="not a channel's sequence epoch"):
        EpochFile(tmp_path, "c").read()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        EpochFile(tmp_path / "file" / "folder", "c")


def test_an_epoch_that_cannot_be_kept_is_a_fault_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = EpochFile(tmp_path, "c")
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(HostFault, match=r"cannot write .*c\.json") as error:
        file.write(StoredEpoch(1, 2))
    assert error.value.hint
    file.close()
