"""`feedhandler fixcast` and `fix` as a new user meets them: one clear line, and the exit code."""

import sys
from pathlib import Path

import pytest

from feedhandler.terminal.console import ExitCode
from tests.support.commands import run_here

PUBLISH, RECEIVE = "fixcast publish ok.toml empty", "fixcast receive ok.toml"
FETCH = "fixcast keys fetch 127.0.0.1:1 --user a --to given"
LINE = 'a = { group = "239.1.1.1", port = 5000 }\n'
ONE = '[[channel]]\nid = "x"\n'
ASKS = f'{ONE}retransmission = "r"\n{LINE}[[retransmission]]\nid = "r"\n'
#: A definition, and what is said of it.
DEFINITIONS = {
    "no id": ("[[channel]]\n" + LINE, ":1: channel[0].id: missing"),
    "an id with a blank": ('[[channel]]\nid = "a b"\n' + LINE, ":2: channel[0].id: wants 1 to 64"),
    "no line": (ONE, ":1: channel[0].a: missing"),
    "a group that is none": (
        ONE + 'a = { group = "10.1.1.1", port = 1 }\n',
        ":3: channel[0].a.group: '10.1.1.1' is no multicast group (groups lie in 224.0.0.0",
    ),
    "a group that is no address": (
        ONE + 'a = { group = "here", port = 1 }\n',
        ":3: channel[0].a.group: 'here' is no multicast group",
    ),
    "port 0": (ONE + 'a = { group = "239.1.1.1", port = 0 }\n', "a.port: wants an integer >= 1"),
    "a port too high": (
        ONE + 'a = { group = "239.1.1.1", port = 99999 }\n',
        "a.port: wants an integer <= 65535",
    ),
    "a source that is none": (
        ONE + 'a = { group = "239.1.1.1", port = 1, source = "10.1.0.5, here" }\n',
        ":3: channel[0].a.source: 'here' is no IPv4 address (give the sender's address",
    ),
    "a source that is a group": (
        ONE + 'a = { group = "239.1.1.1", port = 1, source = "239.1.1.1" }\n',
        ":3: channel[0].a.source: 239.1.1.1 is a group (the sender's own address",
    ),
    "more sources than a line takes": (
        ONE + 'a = { group = "239.1.1.1", port = 1, source = "10.1.0.5,,,," }\n',
        ":3: channel[0].a.source: 5 senders (at most 4",
    ),
    "an unknown key": (ONE + "what = 1\n" + LINE, ":3: channel[0].what: unknown key (keys here:"),
    "an id twice": (ONE + LINE + ONE + LINE, "channel[1].id: x is there already (name them apart)"),
    "no such group of retransmissions": (
        ONE + 'retransmission = "r"\n' + LINE,
        ":3: channel[0].retransmission: there is no retransmission group r (there are: none)",
    ),
    "a server that is none": (
        ASKS + 'server = "here"\n',
        ":7: retransmission[0].server: 'here' is no server (give host:port",
    ),
    "a server and a request topic": (
        ASKS + 'server = "h:1"\nrequests = { group = "239.1.1.2", port = 1 }\n',
        "retransmission[0].requests: r takes requests by TCP already (give it a server or",
    ),
    "a request topic that is no group": (
        ASKS + 'requests = { group = "10.0.0.1", port = 1 }\n',
        "retransmission[0].requests.group: '10.0.0.1' is no multicast group",
    ),
    "an empty range of letters": (
        ONE + 'carries = [{ letters = ["D-A"] }]\n' + LINE,
        "carries[0].letters[0]: 'D-A' is an empty range of letters (such as",
    ),
    "a symbol that is a number": (
        ONE + "carries = [{ symbols = [1] }]\n" + LINE,
        "carries[0].symbols[0]: wants text in quotes, got an integer",
    ),
    "letters of two channels": (
        ONE + 'carries = [{ letters = ["A-D"] }]\n' + LINE
        + '[[channel]]\nid = "y"\ncarries = [{ letters = ["C-F"] }]\n' + LINE,
        "channel[1].carries[0]: some of 'C-F' are carried by x too (an instrument belongs to",
    ),
    "topics that cannot be told apart": (
        ASKS + '[[channel]]\nid = "y"\ntarget = "x"\nretransmission = "r"\n' + LINE,
        "target: channels that share r cannot be told apart (give each a target of its own)",
    ),
    "a quote that does not end": ('[[channel]]\nid = "x\n', "not TOML: illegal character"),
    "something else": ("channel = 5\n", ":1: channel: wants an array of tables, got an integer"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["publish", "receive"])
@pytest.mark.parametrize("what", DEFINITIONS)
def test_every_mistake_in_a_definition_is_reported_with_its_line(
    here: Path, what: str, command: str
) -> None:
    text, said = DEFINITIONS[what]
    (here / "bad.toml").write_text(text)
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
