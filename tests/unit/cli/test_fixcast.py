"""`feedhandler fixcast` and `fix` as a new user meets them: one clear line, and the exit code."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from feedhandler.terminal.console import ExitCode
from tests.support.commands import run_here
from tests.support.free_addresses import group, port

USAGE, FOUND, PEER, OK = ExitCode.USAGE, ExitCode.FOUND, ExitCode.PEER, ExitCode.OK
GROUPS = [group(), group()]
PORT = port()
DEFINITION = f"""
[[channel]]
id = "c1"
sender = "PUB"
a = {{ group = "{GROUPS[0]}", port = {PORT}, source = "127.0.0.1" }}
b = {{ group = "{GROUPS[1]}", port = {PORT}, source = "127.0.0.1" }}
"""
#: What is never said to a user.
TRACES = re.compile(r"Traceback|internal error|\bobject at 0x|<class ")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys of channel c1."""
    folder = tmp_path_factory.mktemp("made") / "keys"
    assert run_here("fixcast", "keys", "new", str(folder), "c1").returncode == OK
    return folder


@pytest.fixture
def here(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the commands below name, as the present one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "noise").write_bytes(bytes(range(128, 256)) * 20)
    (tmp_path / "ok.toml").write_text(DEFINITION)
    (tmp_path / "two.csv").write_text("symbol,volume\nA,2\nB,2\n")
    (tmp_path / "pw").write_text("secret\n")
    (tmp_path / "pw").chmod(0o600)
    shutil.copytree(keys, tmp_path / "keys")
    return tmp_path


PUBLISH, RECEIVE = "fixcast publish ok.toml empty", "fixcast receive ok.toml"
FETCH = "fixcast keys fetch 127.0.0.1:1 --user a --to given"
#: Words, the exit code, and what is said; "" where nothing need be.
TABLE: list[tuple[str, int, str]] = [
    ("fixcast", USAGE, "publish, receive, plan"),
    ("fixcast plan", USAGE, "missing argument 'FILE'"),
    ("fixcast plan none", USAGE, "cannot read none: no such file or directory (check the path)"),
    ("fixcast plan dir", USAGE, "cannot read dir: is a directory"),
    ("fixcast plan empty", USAGE, "no columns symbol and volume"),
    ("fixcast plan noise", USAGE, "a capture needs --feed"),
    ("fixcast plan two.csv", USAGE, "2 instruments cannot fill 10 channels (ask for fewer"),
    ("fixcast plan two.csv --channels 2", OK, "heaviest channel: 1.00 of the mean"),
    ("fixcast plan two.csv --channels 0", USAGE, "--channels"),
    ("fixcast plan two.csv --channels 2 --prefix 10.1", USAGE, "'10.1' begins no multicast groups"),
    ("fixcast plan two.csv --channels 2 --prefix 239.300", USAGE, "begins no multicast groups"),
    ("fixcast plan two.csv --channels 2 --source-a here", USAGE, "'here' is no source (an IPv4"),
    ("fixcast plan two.csv --by minute", USAGE, "give a capture: --feed"),
    ("fixcast plan two.csv --by-service", USAGE, "give a capture: --feed"),
    ("fixcast plan two.csv --feed nofeed", USAGE, "unknown feed 'nofeed' (known feeds:"),
    ("fixcast plan two.csv --feed fix-marketdata", USAGE, "two.csv is not a capture"),
    ("fixcast plan none --feed fix-marketdata", USAGE, "cannot read capture none"),
    ("fixcast publish", USAGE, "missing argument 'CHANNELS'"),
    (
        "fixcast publish none empty",
        USAGE,
        "cannot read none: no such file or directory (give a def",
    ),
    ("fixcast publish dir empty", USAGE, "cannot read dir: is a directory"),
    ("fixcast publish empty empty", USAGE, "empty:1: channel: missing"),
    ("fixcast publish noise empty", USAGE, "not text in UTF-8 (give a definition of channels)"),
    (
        "fixcast publish ok.toml none",
        USAGE,
        "cannot read none: no such file or directory (give a f",
    ),
    ("fixcast publish ok.toml dir", USAGE, "cannot read dir: is a directory"),
    ("fixcast publish ok.toml noise", USAGE, "noise: byte 0: the message does not begin"),
    (PUBLISH, OK, ""),
    (f"{PUBLISH} --channel c9", USAGE, "there is no channel c9 (there are: c1)"),
    (f"{PUBLISH} --interface 10.99.99.99", USAGE, "give the address of an interface"),
    (f"{PUBLISH} --interface here", USAGE, "'here' is not an IPv4 address"),
    (f"{PUBLISH} --state empty", USAGE, "cannot write empty/c1.json"),
    (f"{PUBLISH} --keys none", USAGE, "none: no folder of keys (make one:"),
    (f"{PUBLISH} --keys dir", USAGE, "dir: no key of channel c1 (make one:"),
    (f"{PUBLISH} --keys keys --datagram-bytes 64", USAGE, "more than 64, which the seal takes"),
    (f"{PUBLISH} --keys keys", OK, ""),
    (f"{PUBLISH} --requests here", USAGE, "'here' is no server (give host:port"),
    (f"{PUBLISH} --rate-mbit 0", USAGE, "--rate-mbit"),
    (f"{PUBLISH} --route sideways", USAGE, "'sideways' is not one of 'group', 'main', 'tcp'"),
    ("fixcast receive none", USAGE, "cannot read none: no such file or directory (give a def"),
    (f"{RECEIVE} --channel c9", USAGE, "there is no channel c9 (there are: c1)"),
    (f"{RECEIVE} --interface here", USAGE, "no such interface 'here' (there are: "),
    (f"{RECEIVE} --interface 10.99.99.99", USAGE, "no interface has that address"),
    (f"{RECEIVE} --out dir", USAGE, "cannot write dir: is a directory (check path and rights)"),
    (f"{RECEIVE} --out none/x", USAGE, "cannot write none/x: no such file or directory"),
    (f"{RECEIVE} --keys none", USAGE, "none: no folder of keys (make one:"),
    (f"{RECEIVE} --verify maybe", USAGE, "'maybe' is not one of 'off', 'before', 'after'"),
    (f"{RECEIVE} --count -1", USAGE, "--count"),
    ("fixcast keys", USAGE, "rotate"),
    ("fixcast keys new", USAGE, "missing argument 'FOLDER'"),
    (
        "fixcast keys new keys c1",
        USAGE,
        "channel c1 has keys already (feedhandler fixcast keys rot",
    ),
    ("fixcast keys new keys c/1", USAGE, "'c/1' is no channel id (letters, digits"),
    ("fixcast keys new empty c1", USAGE, "cannot write empty/c1.1.key: file exists"),
    ("fixcast keys list none", USAGE, "none: no folder of keys (make one:"),
    ("fixcast keys list dir", USAGE, "dir: there are no keys (feedhandler fixcast keys new)"),
    ("fixcast keys list keys", OK, "valid"),
    ("fixcast keys rotate dir", USAGE, "dir: there are no keys (feedhandler fixcast keys new)"),
    ("fixcast keys rotate keys c9", USAGE, "channel c9 has no key (feedhandler fixcast keys new)"),
    ("fixcast keys give keys c9 --to given", USAGE, "channel c9 has no key to give (see keys)"),
    ("fixcast keys give keys c1 --to empty", USAGE, "cannot write empty: file exists (check path"),
    ("fixcast keys serve none", USAGE, "cannot read none: no such file or directory (give"),
    ("fixcast keys serve empty", USAGE, "empty:1: listen: missing"),
    (f"{FETCH} --password-file none", USAGE, "password file none: no such file"),
    (f"{FETCH} --password-file dir", USAGE, "password file dir: is a directory"),
    (f"{FETCH} --password-file pw", PEER, "cannot connect to 127.0.0.1:1"),
    (f"{FETCH} --password-file pw --ca none", USAGE, "ca: none: no such file or directory"),
    (
        "fixcast keys fetch here --user a --to given --password-file pw",
        USAGE,
        "here is no address (host:port)",
    ),
    ("fix check none", USAGE, "cannot read none: no such file or directory (check the path)"),
    ("fix check dir", USAGE, "cannot read dir: is a directory"),
    ("fix check empty", FOUND, "there is no FIX message (fields are separated by SOH"),
    ("fix check noise", FOUND, "the message does not begin with BeginString"),
    ("fix check empty --dictionary none", USAGE, "cannot read the FIX dictionary none: no such"),
    ("fix check empty --dictionary dir", USAGE, "cannot read the FIX dictionary dir: is a dir"),
    ("fix check empty --transport none", USAGE, "fix50sp2 has its own header and session (a tr"),
]


@pytest.mark.parametrize(("words", "code", "said"), TABLE, ids=[row[0] for row in TABLE])
def test_every_mistake_is_one_clear_line_and_the_documented_exit_code(
    here: Path, words: str, code: int, said: str
) -> None:
    done = run_here(*words.split())
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert said in output
    assert not TRACES.search(output)
    complaints = [
        line for line in done.stderr.splitlines() if not line.startswith("feedhandler: warn")
    ]
    if code == USAGE:
        assert len(complaints) == 1
        assert complaints[0].startswith("feedhandler: ")
        assert not done.stdout


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
    "topics that cannot be distinguished": (
        ASKS + '[[channel]]\nid = "y"\ntarget = "x"\nretransmission = "r"\n' + LINE,
        "target: channels that share r cannot be distinguished (give each a target of its own)",
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
    assert done.returncode == USAGE
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
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr == (
        "feedhandler: encryption and signatures need the library cryptography, which is not"
        " installed (in the checkout: pip install '.[fixcast]')\n"
    )


@pytest.mark.parametrize("words", [PUBLISH, "fixcast plan two.csv --channels 2"])
def test_without_the_library_channels_in_clear_work(
    here: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cryptography(monkeypatch)
    assert run_here(*words.split()).returncode == OK
