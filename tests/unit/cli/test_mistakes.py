"""Each command with an operator's mistakes: nothing ever but one clear line."""

import socket
from pathlib import Path

import pytest

from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.commands import run_here

CONFIG = CHECKOUT / "docs" / "gateway.toml"

COMMANDS = [
    "demo",
    "run",
    "exchange",
    "replay",
    "decode",
    "subscribe",
    "feeds",
    "status",
    "doctor",
    "config check",
    "config show",
]


def refused(*words: str, code: int = 2) -> str:
    """The one line with which the command refuses, with that exit code."""
    done = run_here(*words)
    assert done.returncode == code, done
    assert done.stderr.startswith("feedhandler: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_one_line(command: str) -> None:
    assert "--no-such-option" in refused(*command.split(), "--no-such-option")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "missing.toml"],
        ["config", "check", "missing.toml"],
        ["config", "show", "missing.toml"],
        ["doctor", "missing.toml"],
        ["status", "missing.toml"],
        ["decode", "missing.pcap"],
        ["replay", "missing.pcap", "--line-a", "239.190.9.1:5001"],
    ],
)
def test_a_missing_file_is_named(words: list[str]) -> None:
    assert "missing." in refused(*words)


def test_a_gateway_that_cannot_be_asked_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    assert "no such path (start it" in refused("status", f"ipc://{tmp_path}/no.ipc", code=3)
    assert "is no endpoint" in refused("status", "udp://127.0.0.1:5")
    silent = tmp_path / "silent.toml"
    silent.write_text(CONFIG.read_text().replace('bind = "tcp://127.0.0.1:5572"', 'bind = ""'))
    assert "control.bind is empty" in refused("status", str(silent))


def test_a_replay_must_know_where_to_send() -> None:
    assert "--line-a, or --as-recorded" in refused("replay", "day.pcap")
    words = ["replay", "day.pcap", "--as-recorded", "--line-a", "239.190.9.1:5001"]
    assert "--as-recorded knows no line A and B" in refused(*words)


@pytest.mark.parametrize("command", ["decode", "replay"])
def test_a_file_that_is_no_capture_is_refused(command: str) -> None:
    words = [command, str(CONFIG)]
    if command == "replay":
        words += ["--line-a", "239.190.9.1:5001"]
    assert "is not a capture" in refused(*words)


@pytest.mark.parametrize("command", ["decode", "replay"])
def test_an_empty_file_is_no_capture(command: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    path.touch()
    words = [command, str(path)]
    if command == "replay":
        words += ["--line-a", "239.190.9.1:5001"]
    assert "is not a capture" in refused(*words)


def test_an_unknown_feed_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    for words in (["feeds", "nope"], ["decode", "x.pcap", "--feed", "nope"]):
        assert "euronext-utp-md" in refused(*words)
    path = tmp_path / "gw.toml"
    path.write_text(CONFIG.read_text().replace("euronext-utp-md", "nope"))
    for words in (["run", str(path)], ["config", "check", str(path)]):
        assert "unknown feed 'nope'" in refused(*words)


def test_a_wrong_configuration_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text("[gateway]\nnaem = 'x'\n")
    for words in (["run", str(path)], ["config", "check", str(path)], ["doctor", str(path)]):
        assert f"{path}:2: gateway.naem: unknown key (did you mean name?)" in refused(*words)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "gw.toml"
        path.write_text(
            CONFIG.read_text().replace(":5672", f":{port}").replace("tcp://127.0.0.1:5571", "")
        )
        assert f"127.0.0.1:{port}" in refused("run", str(path))


def test_a_group_that_cannot_be_joined_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    text = CONFIG.read_text().replace('interface = "127.0.0.1"', 'interface = "no-such-card"')
    path.write_text(text.replace(":5672", ":0").replace("tcp://127.0.0.1:5571", ""))
    assert "no-such-card" in refused("run", str(path))


@pytest.mark.parametrize("key", ["receive", "overlay"])
def test_a_processor_that_is_not_here_is_refused_with_those_that_are(
    tmp_path: Path, key: str
) -> None:
    path = tmp_path / "gw.toml"
    line = 'group = "239.190.9.1"\nport = 5001'
    if key == "overlay":
        tree = tmp_path / "tree.toml"
        assert run_here("overlay", "plan", str(tree), "--receivers", "1").returncode == 0
        line = f'topology = "{tree}"\nmember = "receiver-0"'
    path.write_text(
        f"[{key}]\ncpu = 4095\n[amqp]\nlisten = '127.0.0.1:0'\n"
        f"[[channel]]\nservice = 104\n[[channel.line]]\nname = 'A'\n{line}\n"
    )
    assert run_here("config", "check", str(path)).returncode == 0  # of another machine, perhaps
    assert f"{key}.cpu: no processor 4095 for this process (it may use 0" in refused(
        "run", str(path)
    )


def test_a_replay_through_an_interface_that_is_not_here_is_refused(captures: Path) -> None:
    capture = next((captures / "iex").glob("*.pcap.gz"))
    words = ["replay", str(capture), "--line-a", "239.190.9.1:5001"]
    assert "'no-such-card'" in refused(*words, "--interface", "no-such-card")


def test_a_capture_of_another_feed_is_refused(captures: Path) -> None:
    capture = next((captures / "iex").glob("*.pcap.gz"))
    words = ["replay", str(capture), "--line-a", "239.190.9.1:5001"]
    assert "none of the first datagrams" in refused(*words, "--feed", "euronext-utp-md")


def test_a_node_that_cannot_be_reached_is_exit_code_3() -> None:
    port = free_addresses.port()
    assert f"127.0.0.1:{port}" in refused(
        "subscribe", f"amqp://127.0.0.1:{port}", "euronext.#", "--count", "1", code=3
    )


def test_a_url_that_is_none_is_refused() -> None:
    assert "127.0.0.1" in refused("subscribe", "http://127.0.0.1", "euronext.#")
