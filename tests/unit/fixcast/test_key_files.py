"""Key files and the commands for them (`fixcast.key_files`, `ops.fixcast.keys`)."""

from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.fixcast.channels import parse_channels
from feedhandler.fixcast.crypto import public_bytes
from feedhandler.fixcast.entitlement_settings import (
    channel_text,
    dictionary,
    grants,
    read_config,
)
from feedhandler.fixcast.key_files import KeyFolder, shown_time
from feedhandler.fixcast.keys import FOREVER
from feedhandler.ops.fixcast import keys as ops
from feedhandler.terminal.console import ExitCode
from tests.support.fix_keys import CHANNEL, PUBLISHER, SECOND, START, key
from tests.support.refusal import refusal
from tests.support.security import cheap_hash

DEFINITION = """
[[channel]]
id = "equities-1"
carries = [{ content = "equities", letters = ["A-D", ["SA", "SN"]] }]
a = { group = "239.10.1.1", port = 31001, source = "10.1.0.5" }
b = { group = "239.10.2.1", port = 31001, source = "10.2.0.5" }
target = ""
retransmission = "equities"

[[channel]]
id = "options"
a = { group = "239.10.1.2", port = 31001 }

[[retransmission]]
id = "equities"
line = { group = "239.10.3.1", port = 31001, source = "10.1.0.5" }
server = "10.1.0.5:31900"
"""


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    """An empty folder of keys."""
    return KeyFolder(tmp_path / "keys")


def test_keys_are_read_as_they_were_written_and_are_their_owners_alone(folder: KeyFolder) -> None:
    keys = [key(1, START, START + SECOND), key(2, START + SECOND), key(10, channel="a.b@c")]
    for each in keys:
        path = folder.add(each)
        assert path.stat().st_mode & 0o777 == 0o600
        assert folder.add(each) == path
    assert folder.channels() == ["a.b@c", CHANNEL]
    assert folder.ring(CHANNEL).listed() == keys[:2]
    assert folder.ring("a.b@c").listed() == keys[2:]
    assert not list(folder.path.glob(".*"))


def test_a_channel_has_one_pair_for_signing_and_many_publishers(folder: KeyFolder) -> None:
    assert folder.signer(CHANNEL) is None
    folder.new_signer(CHANNEL)
    signer = folder.signer(CHANNEL)
    assert signer is not None
    assert folder.publishers(CHANNEL) == [public_bytes(signer)]
    assert (folder.path / f"{CHANNEL}.sign").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="can be signed already"):
        folder.new_signer(CHANNEL)
    second = folder.add_publisher(CHANNEL, public_bytes(PUBLISHER))
    assert folder.add_publisher(CHANNEL, public_bytes(PUBLISHER)) == second
    assert len(folder.publishers(CHANNEL)) == 2
    assert folder.publishers("other") == []


def test_a_keys_end_can_be_brought_forward(folder: KeyFolder) -> None:
    folder.add(key(1, START))
    folder.shorten(key(1, START), START + 5)
    assert folder.ring(CHANNEL).listed() == [key(1, START, START + 5)]
    assert folder.keep(key(1, START, START + 5)) == folder.keep(key(1, START, START + 4))
    with pytest.raises(UsageError, match="another key"):
        folder.keep(key(1, START, START + 9))
    folder.shorten(key(1, START, START + 4), START)
    assert folder.channels() == []


def test_keys_that_are_over_are_removed(folder: KeyFolder) -> None:
    gone = folder.add(key(1, 0, START))
    folder.add(key(2, 0, START + 1))
    assert folder.expire(CHANNEL, START) == [gone]
    assert [each.id for each in folder.ring(CHANNEL).listed()] == [2]


SECRET_LINE = f'secret = "{"ab" * 32}"\n'
WRONG = {
    "no TOML": "secret = [",
    "not text": b"\xff\xfe\x00",
    "a short secret": 'channel = "equities-1"\nid = 1\nsecret = "abab"\n',
    "a missing secret": 'channel = "equities-1"\nid = 1\n',
    "an unknown key": f'channel = "equities-1"\nid = 1\n{SECRET_LINE}more = 1\n',
    "another id": f'channel = "equities-1"\nid = 2\n{SECRET_LINE}',
    "another channel": f'channel = "other"\nid = 1\n{SECRET_LINE}',
    "never valid": f'channel = "equities-1"\nid = 1\n{SECRET_LINE}from_ns = 5\nuntil_ns = 5\n',
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_key_file_is_one_line_that_names_it_without_its_secret(
    folder: KeyFolder, content: str | bytes
) -> None:
    path = folder.add(key(1))
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = refusal(folder.ring, CHANNEL)
    assert str(path) in text
    assert "abab" not in text


@pytest.mark.parametrize(("mode", "whom"), [(0o640, "its group"), (0o604, "everybody")])
def test_a_key_that_others_may_read_is_refused(folder: KeyFolder, mode: int, whom: str) -> None:
    folder.add(key(1)).chmod(mode)
    with pytest.raises(ConfigError, match=f"open to {whom}"):
        folder.ring(CHANNEL)


@pytest.mark.parametrize("channel", ["", "a/b", "..%2f", "x" * 65, "a\nb"])
def test_a_channel_that_is_no_file_name_is_refused(folder: KeyFolder, channel: str) -> None:
    with pytest.raises(UsageError, match="no channel id"):
        folder.add(key(1, channel=channel))


def test_a_folder_that_is_not_there_is_reported(folder: KeyFolder) -> None:
    with pytest.raises(ConfigError, match="no folder of keys"):
        folder.channels()


@pytest.mark.parametrize(("at_ns", "text"), [(START, "2023-11-14T22:13:20Z"), (FOREVER, "never")])
def test_times_are_shown_in_utc(at_ns: int, text: str) -> None:
    assert shown_time(at_ns) == text


# -- commands


def test_new_rotate_and_give_make_keys_that_overlap(
    folder: KeyFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ops.new(folder.path, [CHANNEL], 0, True) == ExitCode.OK
    assert ops.rotate(folder.path, [], 60, 30, 24) == ExitCode.OK
    first, second = folder.ring(CHANNEL).listed()
    assert first.until_ns == second.from_ns + 30 * SECOND
    assert second.until_ns == second.from_ns + 24 * 3600 * SECOND
    assert first.secret != second.secret
    assert ops.list_keys(folder.path, False) == ExitCode.OK
    given = KeyFolder(tmp_path / "ann")
    assert ops.give(folder.path, [CHANNEL], given.path) == ExitCode.OK
    assert given.ring(CHANNEL).listed() == [first, second]
    assert given.publishers(CHANNEL) == folder.publishers(CHANNEL)
    assert given.signer(CHANNEL) is None
    said = "".join(capsys.readouterr())
    for secret in (first.secret, second.secret):
        assert secret.hex() not in said


def test_rotating_now_ends_keys_that_have_not_begun(folder: KeyFolder) -> None:
    ops.new(folder.path, [CHANNEL], 0, False)
    ops.rotate(folder.path, [CHANNEL], 1000, 30, 0)
    ops.rotate(folder.path, [CHANNEL], 0, 30, 0)
    assert [each.id for each in folder.ring(CHANNEL).listed()] == [1, 3]


def test_a_channel_without_a_valid_key_is_found(folder: KeyFolder) -> None:
    folder.add(key(1, 0, START))
    assert ops.list_keys(folder.path, True) == ExitCode.FOUND


REFUSED = {
    "a first key beside another": lambda at: ops.new(at, [CHANNEL], 0, False),
    "the next key of none": lambda at: ops.rotate(at, ["other"], 60, 30, 0),
    "keys that are not there": lambda at: ops.give(at, ["other"], at / "x"),
}


@pytest.mark.parametrize("work", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_done_is_refused(folder: KeyFolder, work) -> None:
    folder.add(key(1))
    with pytest.raises(UsageError):
        work(folder.path)


# -- the server's configuration


def configured(tmp_path: Path, more: str = "", **values: str) -> Path:
    """A configuration with its files."""
    (tmp_path / "channels.toml").write_text(DEFINITION)
    said = {"listen": "127.0.0.1:0", "keys": "keys", "channels": "channels.toml", **values}
    user = f'[[user]]\nname = "ann"\npassword = "{cheap_hash("pw")}"\nchannels = ["equities-1"]\n'
    path = tmp_path / "entitlement.toml"
    path.write_text("".join(f'{k} = "{v}"\n' for k, v in said.items()) + user + more)
    return path


def test_a_configuration_has_what_it_says(tmp_path: Path, folder: KeyFolder) -> None:
    folder.new_signer("options")
    (tmp_path / "FIX.xml").write_text("<fix/>")
    config = read_config(configured(tmp_path, '[types]\noptions = ["W"]\n', dictionary="FIX.xml"))
    assert config.address == ("127.0.0.1", 0)
    assert config.entitled() == {"ann": ("equities-1",)}
    assert config.users().by_password("ann", "pw") is not None
    equities, options = grants(config)
    assert (options.types, len(options.publishers)) == (("W",), 1)
    assert equities.types == ()
    said = dictionary(config)
    assert said is not None
    assert (said.name, said.content) == ("FIX", b"<fix/>")


def test_a_channels_definition_by_itself_says_the_same_of_it() -> None:
    channels = parse_channels(DEFINITION, "x")
    for id in channels.channels:
        alone = parse_channels(channel_text(channels, id), "alone")
        assert alone.channels == {id: channels.channels[id]}
        assert list(alone.retransmissions.values()) == [
            group for group in [channels.retransmission_of(channels.channels[id])] if group
        ]


@pytest.mark.parametrize(
    ("more", "values", "text"),
    [
        ('[[user]]\nname = "ann"\npassword = "x"\n', {}, "ann is there already"),
        ('[[user]]\nname = "bob"\npassword = "x"\n', {}, "feedhandler user"),
        ("", {"certificate": "x"}, "certificate and certificate_key"),
        ("", {"listen": "127.0.0.1:99999"}, "port 99999 is above 65535"),
        ("", {"listen": "nowhere"}, "listen: .nowhere. is not host:port"),
        ("", {"unknown": "1"}, "unknown"),
    ],
)
def test_a_wrong_configuration_is_reported_with_its_line(
    tmp_path: Path, more: str, values: dict[str, str], text: str
) -> None:
    path = configured(tmp_path, more, **values)
    with pytest.raises(ConfigError, match=text) as raised:
        read_config(path)
    assert f"{path}:" in str(raised.value)


def test_files_that_a_configuration_names_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_config(tmp_path / "nothing.toml")
    config = read_config(configured(tmp_path, dictionary="nothing.xml"))
    with pytest.raises(ConfigError, match=r"nothing\.xml"):
        dictionary(config)
    wrong = read_config(configured(tmp_path, '[types]\nnothing = ["W"]\n'))
    with pytest.raises(ConfigError, match="no channel nothing"):
        grants(wrong)
