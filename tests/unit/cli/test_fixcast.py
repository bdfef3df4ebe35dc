"""`feedhandler fixcast` and `fix` as a new user meets them: one clear line, and the exit code."""

import sys
from pathlib import Path

import pytest

from feedhandler.terminal.console import ExitCode
from tests.support.commands import run_here

PUBLISH, RECEIVE = "fixcast publish ok.toml empty", "fixcast receive ok.toml"
FETCH = "fixcast keys fetch 127.0.0.1:1 --user a --to given"
#: Lines of a definition between semicolons, and what is said of it.
DEFINITIONS = """
[[channel]]; LINE | :1: channel[0].id: missing
[[channel]]; id = "a b"; LINE | :2: channel[0].id: wants 1 to 64
ONE | :1: channel[0].a: missing
ONE; a = { group = "10.1.1.1", port = 1 } | :3: channel[0].a.group: '10.1.1.1' is no multicast group
ONE; a = { group = "here", port = 1 } | :3: channel[0].a.group: 'here' is no multicast group
ONE; a = { group = "239.1.1.1", port = 0 } | a.port: wants an integer >= 1
ONE; a = { group = "239.1.1.1", port = 99999 } | a.port: wants an integer <= 65535
FROM "10.1.0.5, here" } | :3: channel[0].a.source: 'here' is no IPv4 address (give the sender's
FROM "239.1.1.1" } | :3: channel[0].a.source: 239.1.1.1 is a group (the sender's own address
FROM "10.1.0.5,,,," } | :3: channel[0].a.source: 5 senders (at most 4
ONE; what = 1; LINE | :3: channel[0].what: unknown key (keys here:
ONE; LINE; ONE; LINE | channel[1].id: x is there already (name them apart)
ONE; retransmission = "r"; LINE | :3: channel[0].retransmission: there is no retransmission group r
ASKS; server = "here" | :7: retransmission[0].server: 'here' is no server (give host:port
ASKS; server = "h:1"; requests = { group = "239.1.1.2", port = 1 } | requests: r takes requests by
ASKS; requests = { group = "10.0.0.1", port = 1 } | requests.group: '10.0.0.1' is no multicast group
ONE; carries = [{ letters = ["D-A"] }]; LINE | carries[0].letters[0]: 'D-A' is an empty range of
ONE; carries = [{ symbols = [1] }]; LINE | carries[0].symbols[0]: wants text in quotes, got
A-D; Y; carries = [{ letters = ["C-F"] }]; LINE | channel[1].carries[0]: some of 'C-F' are carried
ASKS; Y; target = "x"; retransmission = "r"; LINE | target: channels that share r cannot be
[[channel]]; id = "x | not TOML: illegal character
channel = 5 | :1: channel: wants an array of tables, got an integer
"""
ONE, LINE = '[[channel]]\nid = "x"', 'a = { group = "239.1.1.1", port = 5000 }'
PARTS = {
    "ASKS": f'{ONE}\nretransmission = "r"\n{LINE}\n[[retransmission]]\nid = "r"',
    "A-D;": f'{ONE}\ncarries = [{{ letters = ["A-D"] }}]\n{LINE};',
    "FROM": f'{ONE}\na = {{ group = "239.1.1.1", port = 1, source =',
    "Y;": '[[channel]]\nid = "y";',
    "ONE": ONE,
    "LINE": LINE,
}


@pytest.mark.parametrize("command", ["publish", "receive"])
@pytest.mark.parametrize("row", DEFINITIONS.split("\n")[1:-1])
def test_every_mistake_in_a_definition_is_reported_with_its_line(
    here: Path, row: str, command: str
) -> None:
    text, _, said = row.partition(" | ")
    for name, part in PARTS.items():
        text = text.replace(name, part)
    (here / "bad.toml").write_text(text.replace("; ", "\n") + "\n")
    done = run_here("fixcast", command, "bad.toml", *(["empty"] if command == "publish" else []))
    assert done.returncode == ExitCode.USAGE
    assert not done.stdout
    (complaint,) = done.stderr.splitlines()
    assert complaint.startswith("feedhandler: bad.toml:")
    assert said in complaint


KEYED = [
    "fixcast keys new more c2", "fixcast keys list keys", "fixcast keys rotate keys",
    "fixcast keys give keys c1 --to given", "fixcast keys serve none",
    f"{FETCH} --password-file pw", f"{PUBLISH} --keys keys", f"{RECEIVE} --keys keys",
]  # fmt: skip


def without_cryptography(patch: pytest.MonkeyPatch) -> None:
    """As if the library were not installed, for whatever imports it from now on."""
    for name in list(sys.modules):
        if name.startswith(("feedhandler.fixcast.", "feedhandler.ops.fixcast.")):
            parent, _, own = name.rpartition(".")
            patch.delattr(sys.modules[parent], own, raising=False)
            patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, "cryptography", None)
    patch.setitem(sys.modules, "cryptography.exceptions", None)


@pytest.mark.parametrize("words", KEYED)
def test_without_the_library_every_command_that_needs_it_says_so_in_one_line(
    here: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cryptography(monkeypatch)
    done = run_here(*words.split())
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr == (
        "feedhandler: encryption and signatures need the library cryptography, which is not"
        " installed (in the checkout: pip install '.[fixcast]')\n"
    )


@pytest.mark.parametrize("words", [PUBLISH, "fixcast plan two.csv --channels 2"])
def test_without_the_library_channels_in_clear_work(
    here: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cryptography(monkeypatch)
    assert run_here(*words.split()).returncode == ExitCode.OK
