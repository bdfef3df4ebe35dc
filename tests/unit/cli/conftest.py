"""A folder with whatever a command may be given, right and wrong."""

import shutil
from pathlib import Path

import pytest

from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.checkout import CHECKOUT
from tests.support.commands import CHANNEL, run_here
from tests.support.fix_messages import sealed
from tests.support.fixcast import update
from tests.support.free_addresses import group, port

LINES = f"""
a = {{ group = "{group()}", port = {port()}, source = "127.0.0.1" }}
b = {{ group = "{group()}", port = {port()}, source = "127.0.0.1" }}
"""
ONE = '[[channel]]\nid = "c1"\nsender = "PUB"\n'
EQUITIES = 'carries = [{ content = "equities", letters = ["A-C"] }]'
GATEWAY = (CHECKOUT / "docs" / "gateway.toml").read_text()
AMQP = "[amqp]\nlisten = '127.0.0.1:0'\n"
MEMBER = CHANNEL.replace('group = "239.101.1.4"', 'topology = "tree.toml"').replace(
    "port = 30104", 'member = "receiver-0"'
)
TEXTS = {
    "empty": "",
    "old": "something\n",
    "led.pcap.ledger.json": "kept",
    "windows.md": "{}\n",
    "pw": "secret\n",
    "two.csv": "symbol,volume\nA,2\nB,2\n",
    "twice.csv": "symbol,volume\nABC,1\nX,2\nABC,2\n",
    "ok.toml": ONE + LINES,
    "channels.toml": ONE + EQUITIES + LINES,
    "naem.toml": "[gateway]\nnaem = 'x'\n",
    "nofeed.toml": GATEWAY.replace("euronext-utp-md", "nope"),
    "silent.toml": GATEWAY.replace('bind = "tcp://127.0.0.1:5572"', 'bind = ""'),
    "card.toml": GATEWAY.replace('interface = "127.0.0.1"', 'interface = "no-such-card"')
    .replace(":5672", ":0")
    .replace("tcp://127.0.0.1:5571", ""),
    "cpu.toml": f"[receive]\ncpu = 4095\n{AMQP}{CHANNEL}",
    "member.toml": f"[overlay]\ncpu = 4095\n{AMQP}{MEMBER}",
}
DATA = {
    "noise": bytes(range(128, 256)) * 20,
    "cut.fix": update("a")[:-1],
    "xyz.fix": update("a", symbol="XYZ"),
    "abc.fix": update("a", symbol="ABC"),
    "sum.fix": update("a").replace(b"55=", b"56="),
    "long.fix": update("x" * 2000),
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as it is before a test."""
    folder = tmp_path_factory.mktemp("made")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    for name, data in DATA.items():
        (folder / name).write_bytes(data)
    with CaptureWriter(folder / "fix.pcap") as writer:
        data = sealed(b"35=X|34=1|268=1|279=0|269=0|55=ABC|270=1|")
        writer.write(1_767_603_600 * 10**9, "239.101.7.1", 30_107, data)
    (folder / "pw").chmod(0o600)
    (folder / "dir").mkdir()
    (folder / "link.pcap").symlink_to("day.pcap")
    day = str(folder / "day.pcap")
    for words in (
        ("fixcast", "keys", "new", str(folder / "keys"), "c1"),
        ("overlay", "plan", str(folder / "tree.toml"), "--receivers", "4", "--depth", "2",
         "--fan-out", "2", "--port", str(port())),
        ("generate", "--feed", "nasdaq-totalview-itch", "--duration", "1s", "--out", day),
    ):  # fmt: skip
        assert run_here(*words).returncode == 0
    return folder


@pytest.fixture
def here(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own with all of it, as the present one."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
