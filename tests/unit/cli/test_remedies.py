"""Remedies of commands: each fits what was typed."""

from pathlib import Path

import pytest

from feedhandler.terminal.console import ExitCode
from tests.support.commands import run_here

ITCH = "nasdaq-totalview-itch"
DEFINITION = """
[[channel]]
id = "c1"
sender = "PUB"
carries = [{ content = "equities", letters = ["A-Z"] }]
a = { group = "239.9.9.1", port = 31001, source = "127.0.0.1" }
b = { group = "239.9.9.2", port = 31001, source = "127.0.0.1" }
"""
REPLAY = f"replay day.pcap --feed {ITCH} --as-recorded"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a capture, a topology, definitions and tables."""
    folder = tmp_path_factory.mktemp("remedies")
    words = ["--feed", ITCH, "--duration", "1s", "--seed", "7"]
    assert run_here("generate", "--out", str(folder / "day.pcap"), *words).returncode == 0
    tree = str(folder / "tree.toml")
    assert run_here("overlay", "plan", tree, "--receivers", "4").returncode == 0
    (folder / "channels.toml").write_text(DEFINITION)
    (folder / "bin").write_bytes(bytes(range(256)))
    (folder / "twice.csv").write_text("symbol,volume\nABC,1\nX,2\nABC,2\n")
    (folder / "updates.fix").write_bytes(b"8=FIX.4.4\x019=12\x0135=X\x0155=ABC\x0110=103\x01")
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{REPLAY} --service 999", "no datagram is of what was chosen (see --from, --until"),
        (f"{REPLAY} --from 23:59:59", "no datagram is of what was chosen (see --from, --until"),
        ("replay-control ipc:///none pause 09:00", "takes no moment (leave 09:00 out, or say seek"),
        ("overlay send tree.toml --from 239.9.9.9:5001 --interface eth99",
         "'eth99' is no IPv4 address (--interface takes the local address of one)"),
        ("overlay plan tree.toml --replace abc", "not 'abc' (give NAME=HOST:PORT, such as"),
        ("overlay plan tree.toml --replace =1.2.3.4:5", "not '1.2.3.4:5' (give NAME=HOST:PORT"),
        ("fixcast keys serve bin", "bin: not text in UTF-8 (give the TOML file of users"),
        ("generate --rate 1bps --out x.pcap",
         "a rate of 1e-06 Mbit/s (profile market goes from"),
        ("fixcast plan twice.csv", "twice.csv:4: ABC comes twice, first at line 2 (add its"),
        ("fixcast publish channels.toml updates.fix",
         "no one channel carries ABC (give the content of its symbols, --content equities; or a"),
        ("fixcast publish channels.toml updates.fix --content x", "carries ABC (give a --channel)"),
        (f"decode day.pcap --feed {ITCH} --as mbo --out nodir/x", "cannot write nodir/x: no such"),
    ],
)  # fmt: skip
def test_the_remedy_fits_what_was_typed(
    made: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(made)
    done = run_here(*words.split())
    assert done.returncode == ExitCode.USAGE, done
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
