"""Files that a configuration names are refused by `config check` and `run` in the same words."""

import subprocess
from pathlib import Path

import pytest

from feedhandler.ops import run
from feedhandler.terminal.console import ExitCode
from tests.support.commands import CHANNEL, run_here

TLS = """
[amqp]
[amqp.tls]
listen = "127.0.0.1:5671"
certificate = "{certificate}"
key = "{key}"
"""
PUBLISH = """
[[publish]]
name = "x"
to = "{scheme}://127.0.0.1:5999"
exchange = "amq.topic"
{key} = "{value}"
"""
QUEUE = """
[[queue]]
name = "q"
folder = "{folder}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, and files that are something else."""
    made = tmp_path_factory.mktemp("named")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=x", "-keyout", "key.pem", "-out", "good.pem"]
    subprocess.run(command, cwd=made, check=True, capture_output=True)
    (made / "bin").write_bytes(bytes(range(256)))
    (made / "plain").write_text("nothing\n")
    return made


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    [
        (TLS.format(certificate="none.pem", key="key.pem"), 5, "amqp.tls.certificate",
         "none.pem: no such file or directory"),
        (TLS.format(certificate="good.pem", key="none.pem"), 6, "amqp.tls.key",
         "none.pem: no such file or directory"),
        (TLS.format(certificate="bin", key="key.pem"), 5, "amqp.tls.certificate",
         "bin and key.pem are no certificate and key in PEM"),
        (PUBLISH.format(scheme="amqp", key="patterns", value="a..b"), 6, "publish[0].patterns",
         "pattern 'a..b' has an empty word"),
        (PUBLISH.format(scheme="amqp", key="types", value="xx"), 6, "publish[0].types",
         "types=xx: no such message type"),
        (PUBLISH.format(scheme="amqps", key="ca", value="bin"), 6, "publish[0].ca",
         "bin holds no certificate in PEM"),
        (PUBLISH.format(scheme="amqp", key="password_file", value="none")
         .replace("//", "//me@"), 6, "publish[0].password_file", "none: no such file"),
        ("\n[record]\ndir = 'none'\n", 3, "record.dir", "none: no such folder (mkdir -p none)"),
        ("\n[record]\ndir = 'bin'\n", 3, "record.dir", "bin: not a folder"),
        (QUEUE.format(folder="bin"), 4, "queue[0].folder", "bin is a file"),
        (QUEUE.format(folder="bin/below"), 4, "queue[0].folder", "bin is a file"),
        (QUEUE.format(folder="q") + 'paths = ["/dev/null"]\n', 5, "queue[0].paths[0]",
         "/dev/null is a file"),
        ("\n[amqp]\nqueues_folder = 'plain'\n", 3, "amqp.queues_folder", "plain is a file"),
        ("\n[metrics]\nlisten = '0.0.0.0:5672'\n", 3, "metrics.listen",
         "0.0.0.0:5672: amqp.listen is there already (give each a port)"),
        ("\n[gateway]\nfeed = 'none.toml'\n", 3, "gateway.feed", "cannot read none.toml"),
        ("""
[amqp]
listen = "0.0.0.0:5672"
[[amqp.users]]
name = "a"
password_file = "plain"
services = ["*"]
""", 4, "amqp.users[0]", "no user could log in"),
        ("""
[amqp]
plain_without_tls = true
[[amqp.users]]
name = "a"
password_file = "plain"
services = ["*"]
""", 6, "amqp.users[0].password_file", "plain: holds no hash"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_by_file_line_and_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, key: str, reason: str
) -> None:
    monkeypatch.chdir(folder)
    Path("gateway.toml").write_text(text + CHANNEL)
    done = run_here("config", "check", "gateway.toml")
    assert done.returncode == ExitCode.USAGE, done
    assert done.stderr.startswith(f"feedhandler: gateway.toml:{line}: {key}: {reason}"), done
    assert done.stderr.count("\n") == 1
    monkeypatch.setattr(run, "run_async", lambda *_: pytest.fail("the gateway would start"))
    assert run_here("run", "gateway.toml").stderr == done.stderr


def test_what_can_be_used_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    text = TLS.format(certificate="good.pem", key="key.pem") + QUEUE.format(folder="new/deep")
    text += PUBLISH.format(scheme="amqps", key="ca", value="good.pem")
    text += "[metrics]\nlisten = '127.0.0.1:9464'\n[record]\ndir = '.'\n"
    Path("gateway.toml").write_text(text + CHANNEL)
    assert run_here("config", "check", "gateway.toml").returncode == ExitCode.OK
