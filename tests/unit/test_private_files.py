"""Files that the product makes are its user's alone; files that are open to others are reported."""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from feedhandler.amqp.durable.creation import FILE_NAME
from feedhandler.config import Config, parse_config
from feedhandler.doctor import examination as doctor
from feedhandler.doctor.openness import check_openness, is_reachable
from feedhandler.journal.engine import Engine
from feedhandler.journal.recovery import CONTROL_NAME
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.store import BLOCK_NAME
from feedhandler.ops import run
from feedhandler.private_files import private_sockets
from feedhandler.recording.recorder import LOCK_NAME, DiskFolder
from feedhandler.recording.sinks import create_file
from feedhandler.rpc import ControlSocket

SMALL = QueueSettings(block_bytes=1 << 20, blocks=2, blocks_max=4)


@pytest.fixture(autouse=True)
def lavish_umask() -> Iterator[None]:
    """A umask that takes nothing away: what is closed then is closed by us."""
    before = os.umask(0)
    yield
    os.umask(before)


def rights(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def a_queue(folder: Path) -> None:
    Engine(str(folder / "orders"), SMALL).close()


def a_recording(folder: Path) -> None:
    recordings = DiskFolder(str(folder))
    recordings.create("lines.pcap").close()
    recordings.release()


def a_socket(folder: Path) -> None:
    async def served() -> None:
        control = ControlSocket(f"ipc://{folder}/control", {})
        control.open()
        os.link(folder / "control", folder / "kept")
        control.close()

    asyncio.run(served())


def statistics(folder: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as socket, private_sockets():
        socket.bind(f"ipc://{folder}/stats")
        os.link(folder / "stats", folder / "kept")


@pytest.mark.parametrize("make", [a_queue, a_recording, a_socket, statistics])
def test_what_the_gateway_keeps_is_its_users_alone(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path)
    made = list(tmp_path.rglob("*"))
    assert made
    assert {(path.name, rights(path)) for path in made if not path.is_dir()} == {
        (path.name, "0600") for path in made if not path.is_dir()
    }
    assert {rights(path) for path in made if path.is_dir()} <= {"0700"}


def test_what_is_there_keeps_its_rights_and_a_users_own_capture_has_those_of_the_umask(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "orders"
    folder.mkdir(0o750)
    a_queue(tmp_path)
    assert rights(folder) == "0750"
    create_file(tmp_path / "mine.pcap", False).close()
    assert rights(tmp_path / "mine.pcap") == "0666"


def config_of(folder: Path, password: str = "") -> Config:
    for name in ("node.key", "broker.key", "broker.password", "ann.hash", "gateway.toml"):
        (folder / name).touch(0o600)
    for name in ("orders", "firm", "record"):
        (folder / name).mkdir(0o700)
    return parse_config(f"""
[amqp]
listen = "127.0.0.1:0"
[amqp.tls]
listen = "127.0.0.1:0"
certificate = "node.pem"
key = "{folder}/node.key"
[[amqp.users]]
name = "ann"
password_file = "{folder}/ann.hash"
services = ["*"]
[record]
dir = "{folder}/record"
[[queue]]
name = "orders"
folder = "{folder}/orders"
[[publish]]
name = "firm"
to = "amqps://us{password}@broker"
certificate = "us.pem"
key = "{folder}/broker.key"
{"" if password else f'password_file = "{folder}/broker.password"'}
queue = "market"
when_full = "journal"
journal_folder = "{folder}/firm"
[[channel]]
service = 104
[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104
""")


def test_secrets_and_folders_that_are_closed_are_in_order(tmp_path: Path) -> None:
    checks = list(check_openness(config_of(tmp_path), tmp_path / "gateway.toml"))
    assert {check.status for check in checks} == {"ok"}
    assert len(checks) == 4


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("node.key", ""),
        ("broker.key", ""),
        ("broker.password", ""),
        ("ann.hash", ""),
        ("gateway.toml", ":secret"),
    ],
)
@pytest.mark.parametrize(
    ("mode", "status", "whom"),
    [(0o640, "warn", "its group (mode 0640)"), (0o604, "fail", "everybody (mode 0604)")],
)
def test_a_secret_that_others_can_read_is_reported_with_the_remedy(
    tmp_path: Path, name: str, password: str, mode: int, status: str, whom: str
) -> None:
    path = tmp_path / name
    config = config_of(tmp_path, password)
    path.chmod(mode)
    checks = check_openness(config, tmp_path / "gateway.toml")
    (check,) = (check for check in checks if check.status != "ok")
    assert (check.status, check.found) == (status, f"{path} is open to {whom}")
    assert check.remedy == f"chmod 600 {path}"


def test_the_doctor_tells_of_them(tmp_path: Path) -> None:
    config = config_of(tmp_path, ":secret")
    (tmp_path / "gateway.toml").chmod(0o644)
    checks = doctor.all_checks(config, is_default=True, path=tmp_path / "gateway.toml")
    assert {check.name: check.status for check in checks}["configuration rights"] == "fail"


def test_a_secret_of_another_user_must_be_ours_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path)
    (tmp_path / "node.key").chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    (check,) = (check for check in check_openness(config) if check.status != "ok")
    assert check.remedy.startswith("chown ")
    assert f"chmod 600 {tmp_path}/node.key" in check.remedy


def test_a_folder_with_other_files_is_not_to_be_closed_as_a_whole(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (tmp_path / "orders").chmod(0o755)
    (tmp_path / "orders" / "passwd").touch()
    (check,) = (check for check in check_openness(config) if check.status != "ok")
    assert check.remedy == "name a folder of its own: this one holds other files"
    (tmp_path / "orders" / CONTROL_NAME).touch()
    (check,) = (check for check in check_openness(config) if check.status != "ok")
    assert check.remedy == f"chmod -R go= {tmp_path}/orders"


@pytest.mark.parametrize("name", [CONTROL_NAME, BLOCK_NAME.format(3), FILE_NAME, LOCK_NAME])
def test_a_folder_of_ours_is_known_by_its_files(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path)
    (tmp_path / "orders").chmod(0o755)
    (tmp_path / "orders" / name).touch()
    (check,) = (check for check in check_openness(config) if check.status != "ok")
    assert check.remedy.startswith("chmod -R")


@pytest.mark.parametrize("name", ["orders", "firm", "record"])
def test_a_folder_that_is_open_is_a_warning(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path)
    (tmp_path / name).chmod(0o755)
    (check,) = (check for check in check_openness(config) if check.status != "ok")
    assert check.status == "warn"
    assert check.found == f"{tmp_path}/{name} is open to everybody (mode 0755)"
    assert check.remedy == f"chmod -R go= {tmp_path}/{name}"


async def test_the_start_tells_of_them_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path)
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(Exception, match="certificate"):
        await run.serve(config, asyncio.Event())
    errors = capsys.readouterr().err
    assert f"TLS key rights: {tmp_path}/node.key is open to everybody (mode 0644)" in errors
    assert "orders" not in errors


@pytest.mark.parametrize(
    ("endpoint", "reachable"),
    [
        ("", False),
        ("127.0.0.1:9100", False),
        ("[::1]:9100", False),
        ("localhost:9100", False),
        ("0.0.0.0:9100", True),
        ("192.0.2.7:9100", True),
        ("[::]:9100", True),
        ("tcp://127.0.0.1:5571", False),
        ("tcp://*:5571", True),
        ("tcp://eth0:5571", True),
        ("ipc:///run/gateway.ipc", False),
    ],
)
def test_endpoints_that_other_machines_reach_are_reported(endpoint: str, reachable: bool) -> None:
    assert is_reachable(endpoint) == reachable
