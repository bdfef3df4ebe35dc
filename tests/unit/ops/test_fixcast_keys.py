"""Keys in folders as the commands keep them, without a server's sockets (`ops.fixcast.keys`)."""

from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError
from feedhandler.fixcast.entitlement_messages import Grant
from feedhandler.fixcast.key_files import KeyFolder
from feedhandler.fixcast.keys import KEYS_MAX
from feedhandler.ops.fixcast import keys
from tests.support.fix_keys import CHANNEL, key
from tests.support.security import cheap_hash

CONFIG = """
listen = "127.0.0.1:0"
keys = "keys"
channels = "channels.toml"

[[user]]
name = "ann"
password = "{password}"
channels = {channels}
"""
DEFINITION = """
[[channel]]
id = "{id}"
a = {{ group = "239.10.1.1", port = 31001, source = "127.0.0.1" }}
"""


def test_who_follows_a_channel_for_long_has_its_latest_keys(tmp_path: Path) -> None:
    keeper = keys._Keeper(tmp_path)
    for id in range(1, KEYS_MAX + 3):
        keeper.write(key(id, id, id + 1), None)
    keeper.write(key(100), None)
    assert KeyFolder(tmp_path).ring(CHANNEL).listed() == [key(100)]


def test_who_is_given_keys_often_has_those_that_are_valid(tmp_path: Path) -> None:
    ours, theirs = KeyFolder(tmp_path / "ours"), KeyFolder(tmp_path / "theirs")
    ours.add(key(100))
    for id in range(1, KEYS_MAX + 1):
        theirs.add(key(id, id, id + 1))
    keys.give(ours.path, [CHANNEL], theirs.path)
    assert theirs.ring(CHANNEL).listed() == [key(100)]


@pytest.mark.parametrize("name", ["a/b", "../b", "a\0b", "\ud800", "x" * 300])
def test_a_servers_name_that_is_no_files_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FeedhandlerError):
        keys._Keeper(tmp_path / "own").write(Grant(name, definition=b"x"), None)
    assert [each.name for each in tmp_path.rglob("*")] == ["own"]


def test_a_folder_that_is_full_of_keys_is_left_as_it_is(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    for id in range(1, KEYS_MAX + 1):
        folder.add(key(id))
    with pytest.raises(UsageError, match="has 16 keys"):
        keys.rotate(tmp_path, [CHANNEL], 60, 30, 0)
    assert len(folder.ring(CHANNEL)) == KEYS_MAX


def test_a_channel_that_gets_no_key_keeps_no_other_from_one(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    for id in range(1, KEYS_MAX + 1):
        folder.add(key(id, channel="aaa"))
    folder.add(key(1))
    with pytest.raises(UsageError, match="channel aaa has 16 keys"):
        keys.rotate(tmp_path, (), 60, 30, 0)
    assert [each.id for each in folder.ring(CHANNEL).listed()] == [1, 2]


def test_where_all_keys_have_ended_a_new_one_is_made_and_the_signer_stays(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    keys.new(tmp_path, [CHANNEL], 0, True)
    publishers = folder.publishers(CHANNEL)
    (key,) = folder.ring(CHANNEL).listed()
    folder.shorten(key, key.from_ns + 1)
    with pytest.raises(UsageError, match="has no key") as error:
        keys.rotate(tmp_path, [CHANNEL], 60, 30, 0)
    assert "keys new" in error.value.hint
    keys.new(tmp_path, [CHANNEL], 0, True)
    assert len(folder.ring(CHANNEL)) == 1
    assert folder.publishers(CHANNEL) == publishers


def source(folder: Path) -> keys._Source:
    """Write a server's files; return what reads them."""
    text = "".join(DEFINITION.format(id=id) for id in ("aaa", CHANNEL))
    (folder / "channels.toml").write_text(text)
    configure(folder, f'["{CHANNEL}"]')
    return keys._Source(folder / "entitlement.toml")


def configure(folder: Path, channels: str) -> None:
    """Write the server's configuration."""
    text = CONFIG.format(password=cheap_hash("pw"), channels=channels)
    (folder / "entitlement.toml").write_text(text)


def test_keys_of_one_channel_that_cannot_be_read_keep_back_no_others(tmp_path: Path) -> None:
    server = source(tmp_path)
    folder = KeyFolder(tmp_path / "keys")
    folder.add(key(1, channel="aaa")).chmod(0o644)
    folder.add(key(1))
    with pytest.raises(ConfigError, match="open to"):
        server.refresh()
    assert server.rings[CHANNEL].listed() == [key(1)]


def test_users_with_an_unknown_channel_change_nothing_until_that_is_mended(tmp_path: Path) -> None:
    server = source(tmp_path)
    before = server.config
    configure(tmp_path, '["none"]')
    for _ in range(2):
        with pytest.raises(UsageError, match="user ann: there is no channel none"):
            server.changed()
    assert server.config == before
    configure(tmp_path, '["aaa"]')
    changed = server.changed()
    assert changed is not None
    assert changed.entitled() == {"ann": ("aaa",)}
