"""The configuration file: what is accepted, and how what is not is reported."""

import contextlib
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.toml_text import KeyLines
from feedhandler.config import (
    AmqpConfig,
    Config,
    StatsConfig,
    described,
    load_config,
    loopback_config,
    parse_config,
)
from feedhandler.config.observing import MetricsConfig
from feedhandler.config.show import SECTIONS, to_toml
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.retrans.settings import RecoverySettings
from tests.support.checkout import CHECKOUT
from tests.support.refusal import refusal

CHANNEL = """
[[channel]]
service = 104

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104
"""


def refused(text: str) -> str:
    return refusal(parse_config, text, "gw.toml")


def test_a_channel_with_one_line_is_all_that_must_be_said() -> None:
    config = parse_config(CHANNEL)
    assert config.gateway.loop == "uvloop"
    assert config.trading_day.fixed is None
    assert config.amqp.address == ("127.0.0.1", 5672)
    assert [channel.service for channel in config.channels] == [104]
    line = config.channels[0].lines[0]
    assert (line.name, line.group, line.port) == ("A", "239.101.1.4", 30104)
    assert config.interface_of(line) == "127.0.0.1"


def test_a_lines_own_interface_goes_before_the_gateways() -> None:
    config = parse_config(CHANNEL + 'interface = "eth3"\n')
    assert config.interface_of(config.channels[0].lines[0]) == "eth3"


def test_a_line_may_count_the_senders_that_it_refuses() -> None:
    lines = CHANNEL + 'source = "10.1.1.1"\n'
    kernel, count = (
        parse_config(text).channels[0].lines[0]
        for text in (lines, lines + 'source_filter = "count"\n')
    )
    assert (kernel.source_filter, count.source_filter) == ("kernel", "count")


def test_the_printed_configuration_loads_to_the_same_object() -> None:
    config = loopback_config(
        stats=StatsConfig(bind="tcp://127.0.0.1:5571"),
        metrics=MetricsConfig(hosts=("proxy.example", "monitor")),
    )
    assert parse_config(to_toml(config)) == config
    assert parse_config(to_toml(config, comments=True)) == config


def test_loopback_addresses_are_those_of_the_simulated_exchange() -> None:
    config = loopback_config()
    assert [channel.service for channel in config.channels] == list(range(101, 108))


def test_the_example_in_the_docs_has_every_setting_with_its_meaning_and_default() -> None:
    text = (CHECKOUT / "docs" / "gateway.toml").read_text()
    config = parse_config(text)
    head, _, rest = text.partition("\n\n")
    assert rest == to_toml(config, comments=True)
    usual = Config(channels=config.channels, servers=config.servers)
    others = {
        f"[{section}] {key}"
        for section in SECTIONS
        for key, value in msgspec.structs.asdict(getattr(config, section)).items()
        if value != getattr(getattr(usual, section), key)
    }
    assert others == set(re.findall(r"\[\w+\] \w+(?=,| and|\.)", head.replace("\n# ", " ")))
    quotes = config.channels[3]
    assert [(line.name, line.group, line.port) for line in quotes.lines] == [
        ("A", "239.101.1.4", 30104),
        ("B", "239.101.2.4", 31104),
    ]


def test_the_configuration_is_frozen() -> None:
    config = parse_config(CHANNEL)
    with pytest.raises(AttributeError):
        config.gateway.name = "other"  # type: ignore[misc]


def test_the_reference_in_the_docs_names_every_setting() -> None:
    reference = (CHECKOUT / "docs" / "configuration.md").read_text()
    for section in msgspec.structs.fields(Config):
        if section.name in SECTIONS:
            for item in msgspec.structs.fields(type(section.default)):
                assert f"`{item.name}`" in reference, f"{section.name}.{item.name}"


def test_every_setting_of_other_packages_has_its_meaning() -> None:
    for settings in (ArbitrationSettings, RecoverySettings):
        assert [name for name, meaning in described(settings) if not meaning] == []


def test_the_loopback_configuration_with_recovery_loads_as_it_is_written() -> None:
    config = loopback_config(services=(101, 104), with_servers=True)
    assert parse_config(to_toml(config, comments=True)) == config
    assert [channel.reference for channel in config.channels] == [True, False]
    assert all(channel.refreshes for channel in config.channels)
    assert [server.addresses for server in config.servers] == [
        (("127.0.0.1", 30_001),),
        (("127.0.0.1", 30_002),),
    ]


RECOVERING = """
[[server]]
name = "rts"
address = "127.0.0.1:7001"
source_id = "US"

[[channel]]
service = 104
retransmission = "rts"

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104

[[channel.refresh_line]]
name = "A"
group = "239.101.3.4"
port = 32104
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ('"127.0.0.1:7001"', '"nowhere"', 4, "address"),
        ('"US"', '"US"\nsecondary = "nowhere"', 6, "secondary"),
        ('"US"', '"US"\nsecondary = "127.0.0.1:7001"', 6, "is the primary's address"),
        ('"US"', '"longer than twenty characters"', 5, "20 ASCII characters"),
        ('retransmission = "rts"', 'retransmission = "rfs"', 9, "no server is named 'rfs'"),
        ('retransmission = "rts"', 'refresh = "rfs"', 9, "no server is named 'rfs'"),
        ('"239.101.3.4"', '"10.0.0.1"', 18, "no multicast group"),
        ("port = 32104", "", 16, "missing"),
        (
            '[[server]]\nname = "rts"',
            '[recovery]\nretries = -1\n[[server]]\nname = "rts"',
            3,
            "retries",
        ),
    ],
)
def test_what_is_wrong_about_recovery_is_reported_with_its_line(old, new, line, reason) -> None:
    parse_config(RECOVERING)
    assert old in RECOVERING
    found = refused(RECOVERING.replace(old, new))
    assert f"gw.toml:{line}: " in found
    assert reason in found


def test_two_servers_of_one_name_are_refused() -> None:
    text = RECOVERING.replace(
        "[[channel]]", '[[server]]\nname = "rts"\naddress = "h:1"\n\n[[channel]]'
    )
    with pytest.raises(ConfigError, match="a second server 'rts'"):
        parse_config(text)


def test_a_queue_that_the_largest_block_does_not_fit_into_is_refused() -> None:
    blocks = "[recovery]\nsnapshot_bytes_max = 6_000_000\nstore_bytes = 2_000_000\n"
    reason = r"gw.toml:3: amqp.queue_bytes: 9999999 holds no block .* \(at least 10000000, or "
    for queue, channel in ((10_000_000, RECOVERING), (9_999_999, CHANNEL)):
        parse_config(f"\n[amqp]\nqueue_bytes = {queue}\n{blocks}{channel}")
    with pytest.raises(ConfigError, match=reason):
        parse_config(f"\n[amqp]\nqueue_bytes = 9_999_999\n{blocks}{RECOVERING}", "gw.toml")
    with pytest.raises(ConfigError, match=r"gw.toml:1: amqp.queue_bytes: 67108864 holds no block"):
        parse_config(f"[recovery]\nstore_bytes = 60_000_000\n{RECOVERING}", "gw.toml")


def test_a_trading_day_may_be_text_or_a_toml_date() -> None:
    for written in ('"2026-11-20"', "2026-11-20"):
        config = parse_config(f"[trading_day]\ndate = {written}\n{CHANNEL}")
        assert config.trading_day.fixed is not None
        assert config.trading_day.fixed.isoformat() == "2026-11-20"


#: Lines of a configuration between semicolons, and what is said of it; a channel is added at the
#: end where there is none, or the channel is changed.
WRONG = """
[gatewey] | 1: gatewey: unknown key (did you mean gateway?)
; [amqp]; queue_byte = 1 | 3: amqp.queue_byte: unknown key (did
[amqp]; queue_bytes = "8" | 2: amqp.queue_bytes: wants an integer
[amqp]; queue_bytes = 1 | 2: amqp.queue_bytes: wants an integer >=
[amqp]; history_bytes = 5 | 2: amqp.history_bytes: 5 bytes may not
[receive]; ring_bytes = 5000 | 2: receive.ring_bytes: 5000 is not
[gateway]; loop = "trio" | 2: gateway.loop: cannot be 'trio' (asy
[trading_day]; date = "x" | 2: trading_day.date: 'x' is no date
[trading_day]; zone = "x" | 2: trading_day.zone: zone = 'x': not
[trading_day]; begins_at = "6:00" | 2: trading_day.begins_at: '6:00' is no time
[gateway]; name = "a b" | 2: gateway.name: wants 1 to 64 letters
[gateway]; feed = "" | 2: gateway.feed: empty
[gateway]; interface = "" | 2: gateway.interface: empty
[amqp]; listen = "5672" | 2: amqp.listen: '5672' is not host:port
[amqp]; listen = "h:99999" | 2: amqp.listen: port 99999 is above
[arbitration]; ; hold_packets = 0 | 3: arbitration.hold_packets: mu
[arbitration]; silent_us = "" | 2: arbitration.silent_us: wants an
[stats]; bind = "5571" | 2: stats.bind: '5571' is no ZeroMQ
gateway = 3 | 1: gateway: wants a table
ONLY [channel]; service = 1 | 1: channel: wants an array of tables, got a table
ONLY  | 1: channel: missing (add a [[channel]] table)
ONLY [[channel]]; service = 1 | 1: channel[0].line: missing (add a [[channel.lin
port => prt | 8: channel[0].line[0].prt: unknown key (did
239. => 10. | 7: channel[0].line[0].group: '10.101.1.4' is no
239.101 => x | 7: channel[0].line[0].group: 'x.1.4' is no mult
group = "239.101.1.4" => # | 5: channel[0].line[0].group: missing (add it below
30104 => 0 | 8: channel[0].line[0].port: missing (add it below
CHANNEL; source = "me" | 9: channel[0].line[0].source: 'me' is no IPv4
CHANNEL; source_filter = "count" | 9: channel[0].line[0].source_filter: nothing to count without a s
CHANNEL; source = "10.1.1.1"; source_filter = "none" | 10: channel[0].line[0].source_filter: cannot
CHANNEL; source = "239.1.1.1" | 9: channel[0].line[0].source: 239.1.1.1 is
CHANNEL; CHANNEL | 11: channel[1].service: service 104 is channel[0] already
ONLY [amqp | 1: not TOML:
ONLY [gateway]; name = gateway | 2: not TOML:
[record]; what = "all" | 2: record.what: cannot be 'all' (both, lines or p
[record]; file_bytes = 3 | 2: record.file_bytes: wants an integer >= 1048576
[record]; disk_free_min_share = 1.5 | record.disk_free_min_share: wants a number <= 1
[record]; ring_bytes = 300000 | record.ring_bytes: 300000 is not a power of two
[record]; total_bytes = 4194304 | is less than 4 files of file_bytes (at least 1073741
[health]; ready_when = "lines, nodes" | 2: health.ready_when: unknown condition 'nodes'
[metrics]; listen = "9464" | 2: metrics.listen: '9464' is not host:port
[log]; format = "xml" | 2: log.format: cannot be 'xml' (json or text)
[log]; lines_per_s = 0 | 2: log.lines_per_s: wants an integer >= 1
[control]; bind = "5572" | 2: control.bind: '5572' is no ZeroMQ endpoint
[control]; bind = "ipc://x"; [stats]; bind = "ipc://x" | 2: control.bind: ipc://x is stats.bind
"""


@pytest.mark.parametrize("row", WRONG.split("\n")[1:-1])
def test_what_is_wrong_is_named_with_its_line_and_key(row: str) -> None:
    given, _, said = row.partition(" | ")
    old, changed, new = given.partition(" => ")
    text = given.replace("; ", "\n") + "\n"
    if changed:
        text = CHANNEL.replace(old, new)
    elif "CHANNEL" in text:
        text = text.replace("CHANNEL\n", CHANNEL)
    elif not text.startswith("ONLY"):
        text += CHANNEL
    assert said in refused(text.removeprefix("ONLY "))


def test_two_lines_of_a_channel_may_not_share_name_or_address() -> None:
    line = CHANNEL[CHANNEL.index("[[channel.line]]") :]
    assert "channel[0].line[1].name: a second line 'A'" in refused(CHANNEL + line)
    assert "line[1].group: 239.101.1.4:30104 is line 'A'" in refused(
        CHANNEL + line.replace('"A"', '"B"')
    )


def test_more_lines_than_any_exchange_sends_are_refused() -> None:
    line = CHANNEL[CHANNEL.index("[[channel.line]]") :]
    many = "".join(
        line.replace('"A"', f'"L{n}"').replace("30104", str(30200 + n)) for n in range(8)
    )
    assert "wants at most 8 of them" in refused(CHANNEL + many)


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "gw.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    assert refusal(load_config, path).startswith((f"{path}: not text", f"cannot read {path}: "))


def test_line_numbers_hold_for_inline_tables_and_long_strings() -> None:
    text = 'a = """\nb = 1\n"""\nb = 2\n[[t]]\nx = 1\n[[t]]\nx = 2\n[t.u]\ny = {z = 1}\n'
    lines = KeyLines(text)
    assert lines[("b",)] == 4
    assert lines[("t", 1, "x")] == 8
    assert lines[("t", 1, "u", "y", "z")] == 10
    assert lines[("t", 7)] == 1


def test_line_numbers_reach_into_arrays_of_inline_tables() -> None:
    text = (
        'a = [  # one ] or "two\n  { x = 1, y = [1, 2] },\n\n  { "x" = "}", z = 2020-01-01 10:00,'
        "\n    w = 'three # 3' },\n]\nb = { c = 1 }\n[\"d\" . e]\nf = -1.5\n"
    )
    lines = KeyLines(text)
    expected = {
        ("a",): 1,
        ("a", 0): 2,
        ("a", 0, "y", 1): 2,
        ("a", 1, "z"): 4,
        ("a", 1, "w"): 5,
        ("b", "c"): 7,
        ("d", "e"): 8,
        ("d", "e", "f"): 9,
    }
    assert {path: lines[path] for path in expected} == expected


@given(
    listen=st.integers(0, 65535).map(lambda port: f"[::1]:{port}"),
    queue_bytes=st.integers(4096, 2**32),
    name=st.from_regex(r"\A[A-Za-z0-9_\-]{1,64}\Z"),
)
def test_any_settings_survive_printing_and_loading(
    listen: str, queue_bytes: int, name: str
) -> None:
    config = loopback_config(amqp=AmqpConfig(listen=listen, queue_bytes=queue_bytes))
    config = msgspec.structs.replace(
        config, gateway=msgspec.structs.replace(config.gateway, name=name)
    )
    assert parse_config(to_toml(config)) == config


@given(st.text())
def test_any_text_is_either_a_configuration_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(text)


def test_a_recording_bound_may_be_a_whole_number() -> None:
    config = parse_config("[record]\ndisk_free_min_share = 1\n" + CHANNEL)
    assert config.record.disk_free_min_share == 1.0
    assert config.record.series == ()


PUBLISHED = """
[amqp]
records = {records}

[[publish]]
name = "broker"
to = "amqp://127.0.0.1:5672"
exchange = "market"
as = "{grain}"
{more}
"""


@pytest.mark.parametrize(
    ("records", "grain", "more", "reason"),
    [
        ("false", "mbo", "", "needs order books"),
        ("true", "bbo", 'when_full = "conflate"', "is not offered with as = 'bbo'"),
        ("true", "trades", 'types = "230"', "not records of trades"),
        ("true", "ohlcv", "", "publish[0].as"),
    ],
)
def test_records_that_cannot_be_published_are_refused(
    records: str, grain: str, more: str, reason: str
) -> None:
    text = PUBLISHED.format(records=records, grain=grain, more=more) + CHANNEL
    assert reason in refused(text)


def test_records_are_published_where_books_are_kept() -> None:
    text = PUBLISHED.format(records="true", grain="mbo", more="") + CHANNEL
    assert parse_config(text).publish[0].address.startswith("#?as=mbo")
