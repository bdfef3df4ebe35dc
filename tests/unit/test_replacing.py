"""A file is replaced whole, with the rights asked for, or is left as it was."""

from pathlib import Path

import pytest

from feedhandler.private_files import FILE_MODE, SHARED_FILE_MODE
from feedhandler.replacing import replacing


@pytest.mark.parametrize("mode", [FILE_MODE, SHARED_FILE_MODE])
@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_made_or_replaced_with_its_rights(
    tmp_path: Path, mode: int, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    path = tmp_path / "file"
    (tmp_path / "usual").touch()
    expected = (tmp_path / "usual").stat().st_mode & (mode | ~0o777)
    for text in ("first", "second"):
        with replacing(path, mode, sync=sync) as beside:
            assert beside.stat().st_mode == expected
            beside.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
        assert path.stat().st_mode == expected
    assert len(synced) == (2 if sync else 0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "usual"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_the_old_file_stands_alone(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as beside:
            beside.write_text("half of the n")
            raise error

    with pytest.raises(error):
        fail()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "old")]


def test_what_a_killed_process_of_the_same_number_left_is_no_obstacle(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as beside:
        name = beside.name
    (tmp_path / name).write_text("left")
    with replacing(tmp_path / "file") as beside:
        assert (beside.name, beside.read_text()) == (name, "")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "file"):
        raise AssertionError
