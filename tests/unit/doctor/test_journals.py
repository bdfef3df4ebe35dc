"""The doctor on queues' folders and journals of destinations, each ill in one way."""

import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from feedhandler.config import Config, loopback_config, parse_config
from feedhandler.doctor import examination as doctor
from feedhandler.doctor import host
from feedhandler.doctor import journals as doctor_journals
from feedhandler.doctor.host import FileSystem
from feedhandler.journal.engine import Engine
from feedhandler.journal.layout import CONTROL, CRC_BYTES, VERSION
from feedhandler.journal.recovery import CONTROL_NAME
from feedhandler.journal.settings import QueueSettings
from feedhandler.terminal.checks import Check
from feedhandler.terminal.outputs import existing_part
from tests.support.commands import CHANNEL

SMALL = QueueSettings(block_bytes=1 << 20, blocks=2, blocks_max=4)


def config_of(folder: Path, *more: str) -> Config:
    queue = [*table_of("orders", folder), "blocks_max = 4"]
    return parse_config("\n".join([*queue, *more, CHANNEL]))


def table_of(name: str, folder: Path) -> list[str]:
    sizes = ["block_bytes = 1048576", "message_bytes_max = 4096"]
    return ["[[queue]]", f'name = "{name}"', f'folder = "{folder}"', *sizes]


def checks_of(config: Config) -> dict[str, Check]:
    return {check.name: check for check in doctor_journals.check_journals(config)}


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "file_system_of", lambda path: FileSystem("ext4", "/", ("rw",)))


def test_without_queues_and_journals_there_is_nothing_to_look_at() -> None:
    assert not checks_of(loopback_config())


def test_a_folder_that_can_be_made_is_well_and_is_not_made(tmp_path: Path) -> None:
    checks = checks_of(config_of(tmp_path / "queues" / "orders"))
    assert {check.status for check in checks.values()} == {"ok"}
    assert "will be made" in checks["queue orders folder"].found
    assert "2,097,152 bytes are written when it is made" in checks["queue orders files"].found
    assert not list(tmp_path.iterdir())


def test_the_doctor_looks_at_them_and_at_journals_of_destinations(tmp_path: Path) -> None:
    journal = f"""
[[publish]]
name = "firm"
to = "amqp://127.0.0.1"
queue = "market"
when_full = "journal"
journal_folder = "{tmp_path / "firm"}"
"""
    config = config_of(tmp_path / "orders", journal)
    names = [check.name for check in doctor.all_checks(config, is_default=True)]
    assert {"queue orders folder", "publish firm folder", "room at /"} <= set(names)
    assert checks_of(config)["publish firm files"].status == "ok"


def test_what_is_no_folder_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "orders"):
        checks = checks_of(config_of(folder))
        assert checks["queue orders folder"].status == "fail"
        assert checks["queue orders folder"].remedy
        assert "queue orders files" not in checks


def test_what_cannot_be_written_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine(tmp_path, SMALL).close()
    shut = tmp_path / CONTROL_NAME
    monkeypatch.setattr(os, "access", lambda path, mode, **how: Path(path) != shut)
    check = checks_of(config_of(tmp_path))["queue orders folder"]
    assert check.status == "fail"
    assert str(shut) in check.found
    assert check.remedy.startswith("chown")
    monkeypatch.setattr(host, "is_read_only", lambda path: True)
    assert checks_of(config_of(tmp_path))["queue orders folder"].remedy == "mount it for writing"


@pytest.mark.parametrize(
    ("kind", "options", "found"),
    [
        ("tmpfs", ("rw",), "in memory"),
        ("overlay", ("rw",), "goes with the container"),
        ("nfs", ("rw", "vers=3", "hard"), "version 3"),
        ("nfs4", ("rw", "vers=4.0", "hard"), "version 4.0"),
        ("nfs4", ("rw", "vers=4.2", "soft"), "not mounted hard"),
        ("nfs4", ("rw", "vers=4.2", "hard"), "whether it exports sync its server knows"),
        ("nfs4", ("rw", "hard"), "version unknown"),
    ],
)
def test_a_file_system_that_may_lose_what_was_accepted_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: tuple[str], found: str
) -> None:
    system = FileSystem(kind, "/mnt/here", options)
    monkeypatch.setattr(host, "file_system_of", lambda path: system)
    check = checks_of(config_of(tmp_path / "orders"))["queue orders file system"]
    assert check.status == "warn"
    assert found in check.found
    assert check.remedy


def test_a_file_system_that_the_kernel_does_not_name_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "file_system_of", lambda path: None)
    assert "queue orders file system" not in checks_of(config_of(tmp_path / "orders"))


def test_who_has_a_queue_open_is_named(tmp_path: Path) -> None:
    engine = Engine(tmp_path, SMALL)
    try:
        check = checks_of(config_of(tmp_path))["queue orders files"]
        assert check.status == "fail"
        assert f"process {os.getpid()}" in check.found
    finally:
        engine.close()
    check = checks_of(config_of(tmp_path))["queue orders files"]
    assert (check.status, check.found) == ("ok", "format 2, 2 blocks of 1,048,576 bytes")


def test_files_of_a_later_version_or_of_no_queue_are_a_failure(tmp_path: Path) -> None:
    Engine(tmp_path, SMALL).close()
    control = tmp_path / CONTROL_NAME
    data = bytearray(control.read_bytes())
    struct.pack_into("<HH", data, 8, VERSION + 1, VERSION + 1)
    crc_at = CONTROL.size - CRC_BYTES
    crc = crc32c(bytes(data[CONTROL.size :]), crc32c(bytes(data[:crc_at])))
    struct.pack_into("<I", data, crc_at, crc)
    control.write_bytes(data)
    check = checks_of(config_of(tmp_path))["queue orders files"]
    assert check.status == "fail"
    assert check.found == f"{control}: was written by a later version"
    control.write_bytes(b"something else")
    check = checks_of(config_of(tmp_path))["queue orders files"]
    assert check.status == "fail"
    assert "repair" in check.remedy


def test_a_missing_block_is_a_failure_and_a_damaged_header_a_warning(tmp_path: Path) -> None:
    Engine(tmp_path, SMALL).close()
    first, second = sorted(tmp_path.glob("block-*"))
    with first.open("r+b") as block:
        block.write(b"\1" * 64)
    check = checks_of(config_of(tmp_path))["queue orders files"]
    assert (check.status, "header is damaged" in check.found) == ("warn", True)
    assert "feedhandler queue verify" in check.remedy
    second.unlink()
    check = checks_of(config_of(tmp_path))["queue orders files"]
    assert check.status == "fail"
    assert "missing" in check.found


def test_a_file_that_cannot_be_read_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine(tmp_path, SMALL).close()

    def refuse(files: object, folder: str) -> None:
        raise OSError(5, "Input/output error", folder)

    monkeypatch.setattr(doctor_journals, "recover", refuse)
    check = checks_of(config_of(tmp_path))["queue orders files"]
    assert (check.status, check.found) == ("fail", f"{tmp_path}: input/output error")


@pytest.mark.parametrize(("free_mib", "status"), [(1, "fail"), (2, "warn"), (3, "warn"), (4, "ok")])
def test_room_is_wanted_for_the_start_and_should_be_there_for_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, status: str
) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda path: free_mib << 20)
    check = checks_of(config_of(tmp_path / "orders"))["room at /"]
    assert check.status == status
    assert "4,194,304 wanted at most by queue orders" in check.found
    assert ("blocks_max" in check.remedy) == (status != "ok")


def test_blocks_that_are_there_want_no_room_and_queues_on_one_disk_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine(tmp_path / "orders", SMALL).close()
    monkeypatch.setattr(host, "free_bytes", lambda path: 4 << 20)
    check = checks_of(config_of(tmp_path / "orders"))["room at /"]
    assert (check.status, "2,097,152 wanted" in check.found) == ("ok", True)
    other = table_of("other", tmp_path / "other")
    check = checks_of(config_of(tmp_path / "orders", *other, "blocks_max = 3"))["room at /"]
    assert check.status == "warn"
    assert "5,242,880 wanted at most by queue orders, queue other" in check.found


def test_folders_that_blocks_are_spread_over_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    checks = list(
        doctor_journals.check_journals(
            config_of(tmp_path / "orders", f'paths = ["{tmp_path}", "{tmp_path}/file"]')
        )
    )
    statuses = [check.status for check in checks if check.name == "queue orders folder"]
    assert statuses == ["ok", "ok", "fail"]


def test_one_folder_under_two_names_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "orders")
    other = table_of("other", tmp_path / "alias")
    check = checks_of(config_of(tmp_path / "orders", *other))["queue other folder"]
    assert check.status == "fail"
    assert "queue orders's too" in check.found


def test_the_kernels_word_on_file_systems_makes_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    process = host.file_system_of("/proc/self/not there")
    assert process is not None
    assert (process.kind, process.mount_point) == ("proc", "/proc")
    here = host.file_system_of(tmp_path)
    assert here is not None
    assert tmp_path.resolve().is_relative_to(here.mount_point)
    assert host.free_bytes(tmp_path) > 0
    assert not host.is_read_only(tmp_path)
    assert existing_part(tmp_path / "a" / "b") == tmp_path


def test_a_mount_is_read_as_the_kernel_writes_it() -> None:
    line = r"36 35 0:52 / /mnt/our\040disk rw,noatime shared:1 - nfs4 host:/x rw,vers=4.2,hard"
    system = host.parse_mount(line)
    assert (system.kind, system.mount_point) == ("nfs4", "/mnt/our disk")
    assert {"noatime", "vers=4.2", "hard"} <= set(system.options)
