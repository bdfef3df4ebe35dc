"""Capabilities of each feed; a configuration that asks for more is refused before the start."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from feedhandler.codecs import ConfigError, list_feeds, load_feed
from feedhandler.codecs.loader import FEEDS_FOLDER
from feedhandler.config import Config
from feedhandler.gateway import CAPABILITIES, capabilities_of, open_config
from feedhandler.ops import config, run
from feedhandler.ops.feeds import listing as feeds
from tests.support.checkout import CHECKOUT
from tests.support.descriptions import EXAMPLE, written
from tests.support.refusal import refusal

#: What is there for every feed; and of the rest, what each built-in one has.
ALL = {
    "decode",
    "arbitration",
    "subscriptions",
    "replay",
    "renumber",
    "characterise",
    "rows",
    "names",
}
#: What writers of order sessions bring.
GENERATED = ("exchange", "generate")
HAS = {
    "euronext-utp-md": ALL
    | {
        *("conflation", "retransmission", "refresh", "refresh_lines", "books", "exchange"),
        "generate",
    },
    "fix-marketdata": (ALL | {"tail_loss", "retransmission", "refresh", "exchange"})
    - {"renumber", "rows"},
    **dict.fromkeys(
        ("nyse-integrated-xdp", "nyse-integrated-pillar"),
        ALL | {"conflation", "retransmission", "refresh", "refresh_lines", *GENERATED},
    ),
    "nyse-openbook-ultra": ALL,
    "b3-umdf": ALL | {"conflation"},
    "cme-mdp3": ALL | {"conflation", "retransmission", "refresh", "refresh_lines", *GENERATED},
    "siac-cqs": ALL | {"conflation"},
    "siac-cts": ALL | {"conflation"},
    "eurex-eobi": (ALL | {"conflation"}) - {"names"},
    "miax-onyx-tom": (ALL | {"conflation"}) - {"names"},
    **dict.fromkeys(
        ("ice-impact", "otc-link-ats"),
        ALL | {"conflation", "tail_loss"},
    ),
    **dict.fromkeys(
        ("iex-deep", "iex-deep-plus", "iex-tops"),
        ALL | {"conflation", "tail_loss", "retransmission", *GENERATED},
    ),
    "memx-memoir": ALL | {"conflation", "tail_loss", *GENERATED},
    **dict.fromkeys(
        (
            "asx-ntp-itch", "cboe-byx-pitch", "cboe-c1-options-pitch", "nasdaq-totalview-itch",
        ),
        ALL | {"conflation", "tail_loss", "retransmission", "refresh", *GENERATED},
    ),
}  # fmt: skip


def tells_statuses(name: str) -> bool:
    """Whether a built-in description, or one that it includes, has a rule for trading states."""
    text = (FEEDS_FOLDER / f"{name}.toml").read_text()
    included = re.findall(r'^include = "(.+)\.toml"', text, re.MULTILINE)
    said = 'does = "status"' in text or 'framing = "fix"' in text
    return said or any(map(tells_statuses, included))


#: The feeds whose books stand for the messages that change them.
SENDS_BOOKS = (
    "asx-ntp-itch", "b3-umdf", "cboe-byx-pitch", "cboe-c1-options-pitch", "eurex-eobi",
    "euronext-utp-md", "iex-deep-plus", "memx-memoir", "nasdaq-totalview-itch",
    "nyse-integrated-pillar", "nyse-integrated-xdp",
)  # fmt: skip

CONFIGURATION = """
[gateway]
feed = "FEED"

[[server]]
name = "rts"
address = "127.0.0.1:7001"

[[channel]]
service = 1

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104
"""
SERVER = CONFIGURATION[CONFIGURATION.index("[[server]]") : CONFIGURATION.index("[[channel]]")]
REFRESH_LINE = """
[[channel.refresh_line]]
name = "A"
group = "239.101.3.4"
port = 32104
"""


def with_passwords(tmp_path: Path, text: str) -> Path:
    """A configuration file of this text, and the files of passwords that it names in FOLDER."""
    (tmp_path / "password").write_text("SECRET\n")
    (tmp_path / "long").write_text("MORE THAN TEN\n")
    path = tmp_path / "gw.toml"
    path.write_text(text.replace("FOLDER", str(tmp_path)))
    return path


def test_each_feed_has_what_the_program_can_do_with_it() -> None:
    assert {name: {x for x, has in capabilities_of(load_feed(name)).items() if has}
            for name in list_feeds()} == {
        name: has
        | {"books", "records"}
        | ({"conflation_of_books"} if name in SENDS_BOOKS else set())
        | ({"statuses"} if tells_statuses(name) else set())
        for name, has in HAS.items()
    }  # fmt: skip
    assert len({each.name for each in CAPABILITIES}) == len(CAPABILITIES)


@pytest.mark.parametrize("command", [config.check, run.run])
@pytest.mark.parametrize(
    ("feed", "old", "new", "reason"),
    [
        ("memx-memoir", "", "", "5: server[0]: recovery is not known of memx-memoir (leave o"),
        ("nyse-openbook-ultra", "", "", "5: server[0]: recovery is not known of nyse-openb"),
        (
            "nyse-openbook-ultra",
            SERVER,
            "",
            "12: channel[0].refresh_line[0]: refresh is not known of nyse-openbook-ultra (leave",
        ),
        (
            "euronext",
            SERVER,
            "",
            "3: gateway.feed: unknown feed 'euronext' (known feeds: asx-",
        ),
    ],
)
def test_what_a_feed_has_not_is_refused_with_line_reason_and_remedy(
    tmp_path: Path, command: Callable[[Path], object], feed: str, old: str, new: str, reason: str
) -> None:
    path = tmp_path / "gw.toml"
    text = (CONFIGURATION.strip("\n") + REFRESH_LINE).replace("FEED", feed).replace(old, new)
    path.write_text("\n" + text)
    found = refusal(command, path)
    assert found.startswith(f"{path}:{reason}")
    known = found.partition("known of ")[2]
    assert "euronext-utp-md" in known or feed == "euronext"


def test_names_are_not_to_be_had_of_a_feed_without_reference_data(tmp_path: Path) -> None:
    text = (FEEDS_FOLDER / "nyse-openbook-ultra.toml").read_text()
    own = tmp_path / "own.toml"
    own.write_text(text.replace("[reference]\ntype = 230", "").replace(
        text[text.index('index = "SymbolIndex"'):text.index("[[times]]")], ""))  # fmt: skip
    path = tmp_path / "gw.toml"
    asked = CONFIGURATION.replace("FEED", str(own)).replace(SERVER, "")
    path.write_text(asked)
    assert not open_config(path)[1].references
    path.write_text(asked.replace("[gateway]", '[gateway]\nsymbols = "name"'))
    with pytest.raises(ConfigError, match=r"gw.toml:3: gateway.symbols: nyse-openbook-ultra desc"):
        open_config(path)


def test_the_feeds_command_shows_what_each_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert feeds.run(None, as_json=False) == 0
    table = capsys.readouterr().out
    words = table.replace("\n", " ")
    assert all(each.title in words or each.name.replace("_", " ") in words for each in CAPABILITIES)
    assert feeds.run(None, as_json=True) == 0
    assert '"capabilities": {"decode": true' in capsys.readouterr().out


def test_what_the_readme_says_of_utp_md_alone_it_says_of_no_other_feed() -> None:
    text = (CHECKOUT / "README.md").read_text()
    assert "[docs/feeds.md](docs/feeds.md)" in text
    recovered = [name for name, has in HAS.items() if "retransmission" in has]
    cboe = ["cboe-c1-options-pitch", "cboe-byx-pitch"]
    nyse = ["nyse-integrated-xdp", "nyse-integrated-pillar"]
    iex = ["iex-deep", "iex-deep-plus", "iex-tops"]
    known = ["euronext-utp-md", "fix-marketdata", *nyse, *cboe, *iex, "cme-mdp3",
             "nasdaq-totalview-itch", "asx-ntp-itch"]  # fmt: skip
    assert sorted(recovered) == sorted(known), "mend the README on recovery"
    refreshed = [name for name, has in HAS.items() if "refresh" in has]
    snapshots = [*known[:2], *nyse, *cboe, "cme-mdp3", *known[-2:]]
    assert sorted(refreshed) == sorted(snapshots), "mend the README on snapshots"
    only = [name for name, has in HAS.items() if "books" in has]
    assert only == ["euronext-utp-md"], "mend the README's sentences on books"


FIX = """
[gateway]
feed = "fix-marketdata"

[[server]]
name = "rts"
address = "127.0.0.1:7001"

[[server.line]]
name = "R"
group = "239.101.9.1"
port = 30900

[[server]]
name = "mds"
address = "127.0.0.1:7002"

[[channel]]
service = 1
topic = "equities-1"
retransmission = "rts"
refresh = "mds"

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104

[[channel]]
service = 2
topic = "equities-2"
retransmission = "rts"

[[channel.line]]
name = "A"
group = "239.101.1.5"
port = 30104
"""
FIX_LINE = FIX[FIX.index("[[server.line]]") : FIX.index('[[server]]\nname = "mds"')]
ANSWERED_BY_LINES = """
[gateway]
feed = "nyse-integrated-pillar"

[[server]]
name = "rts"
address = "127.0.0.1:7001"
source_id = "YOURS"
product = 7

[[channel]]
service = 3
retransmission = "rts"

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104

[[channel.retransmission_line]]
name = "A"
group = "239.101.3.4"
port = 32104
"""
RETRANSMISSION_LINE = ANSWERED_BY_LINES[ANSWERED_BY_LINES.index("[[channel.retransmission_") :]
CBOE = """
[gateway]
feed = "cboe-byx-pitch"

[[server]]
name = "grp"
address = "127.0.0.1:7001"
session = "0001"
source_id = "USER"
password_file = "FOLDER/password"

[[server]]
name = "spin"
address = "127.0.0.1:7101"
session = "0002"
source_id = "USER"

[[channel]]
service = 3
retransmission = "grp"
refresh = "spin"

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104

[[channel.retransmission_line]]
name = "A"
group = "239.101.3.4"
port = 32104
"""
GLIMPSE = """
[gateway]
feed = "nasdaq-totalview-itch"

[[server]]
name = "requests"
address = "127.0.0.1:7001"

[[server]]
name = "glimpse"
address = "127.0.0.1:7101"
source_id = "MEUSER"
password_file = "FOLDER/password"

[[channel]]
service = 1
retransmission = "requests"
refresh = "glimpse"

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104
"""
UTP = CONFIGURATION.replace("FEED", "euronext-utp-md")


def test_servers_and_their_lines_are_configured_as_each_feed_has_them(tmp_path: Path) -> None:
    def opened(text: str) -> Config:
        return open_config(with_passwords(tmp_path, text))[0]

    fix = opened(FIX)
    assert [each.topic for each in fix.channels] == ["equities-1", "equities-2"]
    assert fix.servers[0].lines[0].group == "239.101.9.1"
    assert opened(FIX.replace(FIX_LINE, ""))
    (channel,) = opened(ANSWERED_BY_LINES).channels
    assert [line.group for line in channel.retransmission_lines] == ["239.101.3.4"]
    assert opened(CBOE).servers[0].password() == "SECRET"
    assert opened(GLIMPSE).servers[1].password() == "SECRET"


@pytest.mark.parametrize(
    ("text", "old", "new", "reason"),
    [
        (FIX, 'topic = "equities-1"\n', "", "18: channel[0]: topic is missing"),
        (FIX, "equities-2", "equities-1", "31: channel[1].topic: answers of rts are those of"),
        (FIX, 'refresh = "mds"', 'refresh = "rts"', "5: server[0]: rts is asked for messages and"),
        (FIX, 'retransmission = "rts"\n', "", "9: server[0].line[0]: no channel has rts for its"),
        (FIX, "fix-marketdata", "euronext-utp-md", "9: server[0].line[0]: retransmission groups"),
        (FIX, "[[channel.line]]", "[[channel.refresh_line]]", "18: channel[0].line: missing"),
        (FIX, FIX, FIX + REFRESH_LINE, "39: channel[1].refresh_line[0]: refresh lines are not kn"),
        (UTP, "service = 1", 'service = 1\ntopic = "equities-1"', "11: channel[0].topic: channels"
         " of FIX feeds alone"),
        (ANSWERED_BY_LINES, RETRANSMISSION_LINE, "", "13: channel[0].retransmission: servers of "
         "nyse-integrated-p"),
        (ANSWERED_BY_LINES, "product = 7", "", "5: server[0]: requests name the feed's ProductID, "
         "which is missing"),
        (ANSWERED_BY_LINES, "product = 7", "product = 256", "9: server[0].product"),
        (ANSWERED_BY_LINES, "service = 3", "service = 300", "5: server[0]: service 300 is no Chan"),
        (ANSWERED_BY_LINES, '"YOURS"', '"TENLETTERS"', "5: server[0]: SourceID 'TENLETTERS' has 10"
         " characters"),
        (ANSWERED_BY_LINES, 'retransmission = "rts"\n', "", "19: channel[0].retransmission_line[0]"
         ": nothing is asked for that could come by it"),
        (ANSWERED_BY_LINES, 'group = "239.101.3.4"\nport = 32104',
         'topology = "t.toml"\nmember = "receiver-0"', "22: channel[0].retransmission_line[0]."
         "topology: a server answers by multicast"),
        (ANSWERED_BY_LINES, "nyse-integrated-pillar", "nasdaq-totalview-itch",
         "20: channel[0].retransmission_line[0]: servers of nasdaq-totalview-itch answer in"),
        (CBOE, 'session = "0001"\n', "", "5: server[0]: Cboe's servers are logged in to by session"
         ", us"),
        (CBOE, '"USER"', '"USERS"', "5: server[0]: source_id, the username, is not 4 ASCII"),
        (CBOE, "FOLDER/password", "FOLDER/nowhere", "5: server[0]: server 'grp': password_file"),
        (CBOE, "FOLDER/password", "FOLDER/long", "5: server[0]: the password is not 10 ASCII"),
        (CBOE, 'password_file = "FOLDER/password"', 'password_env = "NOT_THERE_AT_ALL"',
         "5: server[0]: server 'grp': password_env: there is no environment variable NOT"),
        (CBOE, "password_file", 'password_env = "X"\npassword_file', "10: server[0].password_env: "
         "there is password_file as well"),
        (CBOE, 'refresh = "spin"', 'refresh = "grp"', "5: server[0]: grp is asked for packets and "
         "for snapshots, by two protocols"),
        (GLIMPSE, 'source_id = "MEUSER"\n', "", "9: server[1]: the username is not 6 ASCII charac"),
        (GLIMPSE, 'password_file = "FOLDER/password"\n', "", "9: server[1]: a GLIMPSE server is "
         "logged in to by username and password"),
        (GLIMPSE, "FOLDER/password", "FOLDER/nowhere", "9: server[1]: server 'glimpse': password"),
        (GLIMPSE, "FOLDER/password", "FOLDER/long", "9: server[1]: the password is not 10 ASCII"),
        (GLIMPSE, 'refresh = "glimpse"', 'refresh = "requests"', "5: server[0]: requests is asked "
         "for packets and for snapshots, by two protocols"),
    ],
)  # fmt: skip
def test_what_servers_and_their_lines_cannot_do_is_refused_with_line_and_reason(
    tmp_path: Path, text: str, old: str, new: str, reason: str
) -> None:
    assert old in text
    path = with_passwords(tmp_path, text.replace(old, new))
    found = refusal(open_config, path)
    assert found.startswith(f"{path}:{reason}")
    assert "SECRET" not in found
    assert "MORE THAN" not in found


def test_records_of_a_feed_without_a_book_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    feed = written(tmp_path, EXAMPLE)
    text = CONFIGURATION.replace(SERVER, "").replace("FEED", str(feed))
    path.write_text("[amqp]\nrecords = true\n" + text)
    with pytest.raises(ConfigError, match=r":2: amqp\.records: \w+ has no \[book\] table"):
        config.check(path)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("[amqp]\nconflate = true\n", r"2: amqp\.conflate"),
        ('[amqp]\nwhen_full = "conflate"\n', r"2: amqp\.when_full"),
        (
            '[[publish]]\nname = "x"\nto = "amqp://localhost:5672"\nqueue = "x"\n'
            'when_full = "conflate"\n',
            r"5: publish\[0\]\.when_full",
        ),
    ],
)
def test_conflation_of_a_feed_whose_messages_allow_none_is_refused(
    tmp_path: Path, section: str, key: str
) -> None:
    path = tmp_path / "gw.toml"
    text = section + CONFIGURATION.replace(SERVER, "")
    path.write_text(text.replace("FEED", "nyse-openbook-ultra"))
    with pytest.raises(ConfigError, match=f"{key}: no message of nyse-openbook-ultra can be conf"):
        config.check(path)
    path.write_text(text.replace("FEED", "iex-deep"))
    config.check(path)


#: The keys of a server beside its address, in the order in which they are looked at.
SERVER_KEYS = {
    "source_id": '"ME"',
    "product": "7",
    "session": '"0001"',
    "password_env": '"NOT_THERE"',
    "password_file": '"FOLDER/password"',
}


@pytest.mark.parametrize("key", SERVER_KEYS)
@pytest.mark.parametrize(
    ("feed", "wanted"),
    [
        ("euronext-utp-md", ["source_id"]),
        ("iex-deep", []),
        ("iex-tops", []),
        ("nasdaq-totalview-itch", []),
        ("nyse-integrated-pillar", ["source_id", "product"]),
        ("cboe-byx-pitch", ["source_id", "session", "password_env", "password_file"]),
        ("cme-mdp3", ["source_id", "password_env", "password_file"]),
        ("fix-marketdata", []),
    ],
)
def test_what_a_servers_protocol_has_no_use_for_is_refused(
    tmp_path: Path, feed: str, wanted: list[str], key: str
) -> None:
    lines = RETRANSMISSION_LINE if feed.startswith(("nyse", "cboe")) else ""
    channel = 'service = 1\nretransmission = "rts"\n' + 'topic = "x"\n' * (feed[:3] == "fix")
    text = CONFIGURATION.replace("FEED", feed).replace("service = 1\n", channel) + lines
    given = f'address = "127.0.0.1:7001"\n{key} = {SERVER_KEYS[key]}\n'
    path = with_passwords(tmp_path, text.replace('address = "127.0.0.1:7001"\n', given))
    try:
        open_config(path)
        found = ""
    except ConfigError as error:
        found = str(error)
    refused = f"server[0].{key}: the protocol "
    assert (refused in found) == (key not in wanted), found
