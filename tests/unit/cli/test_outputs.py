"""Files that commands write: what they read, and what has content, is never lost."""

from pathlib import Path

import pytest

from feedhandler.terminal.console import ExitCode
from tests.support.commands import run_here

DEFINITION = """
[[channel]]
id = "c1"
sender = "PUB"
a = { group = "239.9.9.1", port = 31001 }
"""
ITCH = "nasdaq-totalview-itch"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a capture, a profile of it, and definitions."""
    folder = tmp_path_factory.mktemp("outputs")
    words = ["--feed", ITCH, "--duration", "1s", "--seed", "7"]
    assert run_here("generate", "--out", str(folder / "day.pcap"), *words).returncode == 0
    (folder / "link.pcap").symlink_to("day.pcap")
    (folder / "channels.toml").write_text(DEFINITION)
    (folder / "windows.md").write_text("{}\n")
    (folder / "old").write_text("something\n")
    return folder


IS_READ, IS_THERE = "is what is read (write to another file)", "is there already"
CHARACTERISE = f"characterise day.pcap --feed {ITCH} --master none --out report --write-profile"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"decode day.pcap --feed {ITCH} --as mbo --out day.pcap --overwrite", IS_READ),
        (f"decode day.pcap --feed {ITCH} --as mbo --out link.pcap --overwrite", IS_READ),
        (f"{CHARACTERISE} day.pcap", IS_READ),
        (f"{CHARACTERISE} channels.toml --channels channels.toml", IS_READ),
        ("generate --profile old --out old --overwrite", IS_READ),
        ("fixcast receive channels.toml --out channels.toml", IS_READ),
        ("fixcast receive channels.toml --out old", IS_THERE),
        ("exchange --seconds 1 --ledger old", IS_THERE),
        ("exchange --feed fix --seconds 1 --ledger old", IS_THERE),
        ("exchange --seconds 1 --ledger old --write-config other.toml", IS_THERE),
        ("exchange --seconds 1 --ledger x --write-config x", "name two files"),
        ("overlay measure --triangles --read windows.md --report windows.md", IS_READ),
        (f"replay day.pcap --feed {ITCH} --as-recorded --write day.pcap --overwrite", IS_READ),
    ],
)
def test_what_is_read_or_has_content_is_not_written_over(
    made: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(made)
    before = {path.name: path.read_bytes() for path in made.iterdir() if path.is_file()}
    done = run_here(*words.split())
    assert done.returncode == ExitCode.USAGE, done
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in made.iterdir() if path.is_file()} == before
