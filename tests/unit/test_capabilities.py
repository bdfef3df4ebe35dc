"""What each feed has, and that a configuration that asks for more is refused before the start."""

from pathlib import Path

import pytest

from feedhandler.capabilities import CAPABILITIES, capabilities_of, open_config
from feedhandler.codecs import ConfigError, list_feeds, load_feed
from feedhandler.codecs.loader import FEEDS_FOLDER
from feedhandler.ops import config, feeds, run

#: What is there for every feed; and of the rest, what each built-in one has.
ALL = {"decode", "arbitration", "subscriptions", "replay", "characterise", "names"}
HAS = {
    "euronext-utp-md": ALL
    | {"conflation", "retransmission", "refresh", "books", "exchange", "generate"},
    "fix-marketdata": (ALL | {"tail_loss", "exchange"}) - {"characterise"},
    "iex-deep": ALL | {"conflation", "tail_loss"},
    "nyse-integrated-xdp": ALL | {"conflation"},
    "nyse-openbook-ultra": ALL,
}

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


def test_each_feed_has_what_the_program_can_do_with_it() -> None:
    assert {name: {x for x, has in capabilities_of(load_feed(name)).items() if has}
            for name in list_feeds()} == HAS  # fmt: skip
    assert len({each.name for each in CAPABILITIES}) == len(CAPABILITIES)


@pytest.mark.parametrize("command", [config.check, run.run])
@pytest.mark.parametrize(
    ("feed", "old", "new", "told"),
    [
        ("iex-deep", "", "", "5: server[0]: recovery over TCP is not known of iex-deep (leave out"),
        ("nyse-integrated-xdp", "", "", "5: server[0]: recovery over TCP is not known of nyse-int"),
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
            "3: gateway.feed: unknown feed 'euronext' (known feeds: euronext-",
        ),
    ],
)
def test_what_a_feed_has_not_is_refused_with_line_reason_and_remedy(
    tmp_path: Path, command: object, feed: str, old: str, new: str, told: str
) -> None:
    path = tmp_path / "gw.toml"
    text = (CONFIGURATION.strip("\n") + REFRESH_LINE).replace("FEED", feed).replace(old, new)
    path.write_text("\n" + text)
    with pytest.raises(ConfigError) as caught:
        command(path)  # type: ignore[operator]
    assert str(caught.value).startswith(f"{path}:{told}")
    assert "known of euronext-utp-md: docs/feeds.md" in str(caught.value) or feed == "euronext"


def test_names_are_not_to_be_had_of_a_feed_without_reference_data(tmp_path: Path) -> None:
    text = (FEEDS_FOLDER / "nyse-openbook-ultra.toml").read_text()
    own = tmp_path / "own.toml"
    own.write_text(text.replace("[reference]\ntype = 230", "").replace(
        text[text.index('index = "SymbolIndex"'):text.index("[[times]]")], ""))  # fmt: skip
    path = tmp_path / "gw.toml"
    asked = CONFIGURATION.replace("FEED", str(own)).replace(SERVER, "")
    path.write_text(asked)
    assert open_config(path)[1].reference is None
    path.write_text(asked.replace("[gateway]", '[gateway]\nsymbols = "name"'))
    with pytest.raises(ConfigError, match=r"gw.toml:3: gateway.symbols: nyse-openbook-ultra desc"):
        open_config(path)


def test_the_feeds_command_shows_what_each_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert feeds.run(None, as_json=False) == 0
    table = capsys.readouterr().out
    assert all(each.title in table for each in CAPABILITIES)
    assert feeds.run(None, as_json=True) == 0
    assert '"capabilities": {"decode": true' in capsys.readouterr().out


def test_what_the_readme_says_of_utp_md_alone_it_says_of_no_other_feed() -> None:
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    assert "[docs/feeds.md](docs/feeds.md)" in text
    only = [name for name, has in HAS.items() if {"retransmission", "refresh", "books"} & has]
    assert only == ["euronext-utp-md"], "mend the README's sentences on recovery and books"
