"""A channel's numbering, kept over restarts (`feedhandler/fixcast/numbering.py`)."""

import errno
import os
from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError, HostFault, UsageError
from feedhandler.fixcast.numbering import Kept, NumberingFile
from feedhandler.fixcast.values import NUMBER_MAX


def test_what_is_written_is_read_after_a_restart(tmp_path: Path) -> None:
    file = NumberingFile(tmp_path / "new" / "folder", "c")
    assert file.read() == Kept(0, 0)
    for kept in (Kept(NUMBER_MAX, NUMBER_MAX), Kept(7, 12)):
        file.write(kept)
        assert file.read() == kept
    file.close()
    assert NumberingFile(tmp_path / "new" / "folder", "c").read() == Kept(7, 12)


def test_a_second_publisher_of_a_channel_is_refused(tmp_path: Path) -> None:
    first = NumberingFile(tmp_path, "c")
    with pytest.raises(ConfigError, match="being published by another"):
        NumberingFile(tmp_path, "c")
    NumberingFile(tmp_path, "d").close()
    first.close()
    NumberingFile(tmp_path, "c").close()


@pytest.mark.parametrize(
    "text",
    ["rubbish", "[]", "{}", '{"numbering": -1, "next": 1}', '{"numbering": 1, "next": "x"}', "7"],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(ConfigError, match="not a channel's numbering"):
        NumberingFile(tmp_path, "c").read()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        NumberingFile(tmp_path / "file" / "folder", "c")


def test_a_numbering_that_cannot_be_kept_is_a_fault_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = NumberingFile(tmp_path, "c")
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(HostFault, match=r"cannot write .*c\.json") as error:
        file.write(Kept(1, 2))
    assert error.value.hint
    file.close()
