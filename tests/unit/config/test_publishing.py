"""The settings of a destination: what is refused, and that no password is ever shown."""

from pathlib import Path

import msgspec
import pytest

from feedhandler.amqp.brokers import (
    ARTEMIS,
    KINDS,
    QPID,
    RABBITMQ_3,
    RABBITMQ_4,
    hides_unroutable,
    hostname_of,
    kind_of,
    product_of,
    unlike,
    way_to,
)
from feedhandler.codecs.errors import ConfigError
from feedhandler.config import load_config, loopback_config, parse_config
from feedhandler.config.publishing import PublishConfig
from feedhandler.config.show import to_toml
from feedhandler.gateway import Gateway
from tests.support.checkout import CHECKOUT

BASE = to_toml(loopback_config(services=(104,)))
SPILL = {"when_full": "journal", "journal_folder": "/var/lib/feedhandler/firm"}
SECRET = "hunter/2%"
WHERE = "amqp://feed:hunter%2F2%25@127.0.0.1:5673/market"


def table(**keys: object) -> str:
    """A whole configuration with one destination."""
    keys = {"name": "firm", "to": WHERE, "exchange": "x", **keys}
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in keys.items()]
    return "\n".join([BASE, "[[publish]]", *lines])


def refusal(**keys: object) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_config(table(**keys))
    return f"{refused.value} {refused.value.hint}"


def destination(**keys: object) -> PublishConfig:
    (made,) = parse_config(table(**keys)).publish
    return made


def test_a_url_is_taken_apart_and_its_escapes_undone() -> None:
    settings = destination().resolved()
    assert (settings.host, settings.port, settings.vhost) == ("127.0.0.1", 5673, "market")
    assert (settings.user, settings.password) == ("feed", SECRET)
    assert destination(to="amqp://[::1]").broker_address.shown == "[::1]:5672"


def test_no_password_is_shown_anywhere() -> None:
    config = parse_config(table())
    shown = [
        repr(config),
        str(config),
        repr(config.publish[0].broker_address),
        to_toml(config, True),
    ]
    shown.append(repr(config.publish[0].resolved()))
    for text in shown:
        assert SECRET not in text
        assert "hunter" not in text
    assert 'to = "amqp://feed:***@127.0.0.1:5673/market"' in shown[3]


@pytest.mark.parametrize(
    "to",
    [
        "http://feed:hunter@x", "amqp://feed:hunter@x:port", "amqp://feed:hunter@x/y?z=1",
        "amqps://feed:hunter@broker..firm",
    ],
)  # fmt: skip
def test_a_wrong_url_is_refused_without_being_repeated(to: str) -> None:
    refused = refusal(to=to)
    assert "publish[0].to" in refused
    assert "hunter" not in refused


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"exchange": ""}, "publish[0].exchange: empty"),
        ({"queue": "q"}, "publish[0].queue: beside exchange"),
        ({"exchange": "", "queue": "q", "topic": "t"}, "publish[0].queue: beside topic"),
        ({"kind": "artemis"}, "publish[0].exchange: Artemis has no exchanges"),
        ({"kind": "rabbitmq-4", "exchange": "", "topic": "t"}, "RabbitMQ has no topics"),
        ({"kind": "qpid", "exchange": "", "topic": "t"}, 'exchange = "amq.topic"'),
        ({"kind": "artemis", "exchange": "", "topic": "t"}, "publish[0].to: names a virtual host"),
        (
            {"kind": "qpid", "management": "http://h"},
            "publish[0].management: only RabbitMQ 3 is asked",
        ),
        ({"password_env": "X"}, "more than one password"),
        ({"to": "amqp://127.0.0.1", "password_env": "X"}, "a password but no user"),
        ({"to": "amqp://feed:x@10.0.0.1"}, "unencrypted to another machine"),
        ({"to": "amqps://feed:x@10.0.0.1", "management": "http://10.0.0.1"}, "management: would"),
        ({"to": "amqp://127.0.0.1", "ca": "ca.pem"}, "ca: says nothing without TLS"),
        ({"to": "amqps://10.0.0.1", "certificate": "c.pem"}, "key: missing"),
        ({"to": "amqps://10.0.0.1", "key": "k.pem"}, "certificate: missing"),
        ({"management": "10.0.0.1:15672"}, "no http:// or https:// URL"),
        ({"management": "http://u:p@h"}, "may not hold a user"),
        ({"kind": "rabbitmq-3"}, "wants management"),
        ({"kind": "sparrow"}, "publish[0].kind"),
        ({"queue_bytes": 65_536}, "less than two batches"),
        ({"window": 10_001}, "publish[0].window"),
        ({"as": "bundle"}, "publish[0].as"),
        ({"grain": "batch"}, "unknown key"),
        ({"when_full": "sink"}, "publish[0].when_full"),
        ({"when_full": "journal"}, "journal_folder: missing"),
        ({"journal_folder": "/x"}, "journal_folder: says nothing by itself"),
        ({**SPILL, "batch_max_bytes": 5 << 20}, "batch_max_bytes: is more than an item"),
        ({**SPILL, "queue_bytes": 1 << 20}, "queue_bytes: is too little"),
        ({**SPILL, "journal_bytes_max": 1 << 20}, "publish[0].journal_bytes_max"),
        ({**SPILL, "journal_durability": "quick"}, "publish[0].journal_durability"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(keys: dict[str, object], reason: str) -> None:
    assert reason in refusal(**keys)


@pytest.mark.parametrize("policy", ["", "drop_oldest", "detach", "conflate"])
def test_what_gives_way_reaches_the_destination_by_the_configuration(policy: str) -> None:
    keys = {"when_full": policy} if policy else {}
    config = parse_config(table(**keys))
    assert parse_config(to_toml(config, True)).publish[0].when_full == (policy or "drop_oldest")
    gateway = Gateway(config)
    made = gateway.publishers.all[0].destination
    assert made.policy == (policy or "drop_oldest")
    assert (made.conflation is not None) == (policy == "conflate")
    assert (gateway.fanout.book_cache is not None) == (policy == "conflate"), (
        "books only where needed"
    )
    assert {"behind_seconds": 0.0, "full_seconds": 0.0, "detached": 0, "conflated": 0}.items() <= (
        gateway.snapshot()["destinations"][0].items()
    )


def test_a_policy_that_tells_by_quality_messages_wants_them() -> None:
    assert "[0].when_full: conflate announces" in refusal(when_full="conflate", quality=False)


def test_a_journal_is_for_destinations_and_not_for_links() -> None:
    assert 'when_full = "detach"' in BASE
    text = BASE.replace('when_full = "detach"', 'when_full = "journal"')
    with pytest.raises(ConfigError, match=r"amqp\.when_full: journal is a policy of \[\[publish"):
        parse_config(text)


def test_two_destinations_do_not_share_a_journal(tmp_path: Path) -> None:
    one = table(**SPILL)
    other = one.replace('"firm"', '"other"').replace('"/var', '"/var/../var')
    with pytest.raises(ConfigError, match=r"publish\[1\]\.journal_folder: a second journal"):
        parse_config(one + "\n" + other.partition(BASE)[2])


def test_a_journal_reaches_the_destination_by_the_configuration(tmp_path: Path) -> None:
    config = parse_config(table(**SPILL, journal_max_us=500))
    (again,) = parse_config(to_toml(config, True)).publish
    assert (again.journal_folder, again.journal_max_us) == (SPILL["journal_folder"], 500)
    gateway = Gateway(config)
    (publisher,) = gateway.publishers.all
    assert publisher.spill_runner is not None
    assert publisher.spill_runner.spill.wait_ns == 500_000
    assert publisher.destination.policy == "journal"
    (snapshot,) = gateway.snapshot()["destinations"]
    assert (snapshot["journal"], snapshot["journal_backlog"], snapshot["spilled"]) == (
        "MEMORY",
        0,
        0,
    )


def test_two_destinations_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="a second destination 'firm'"):
        parse_config(table() + "\n" + table().partition(BASE)[2])


def test_a_password_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    monkeypatch.setenv("FIRM_PASSWORD", SECRET)
    for source in ({"password_env": "FIRM_PASSWORD"}, {"password_file": str(file)}):
        made = destination(to="amqp://feed@127.0.0.1/market", **source)
        assert made.resolved().password == SECRET
        config = parse_config(table(to="amqp://feed@127.0.0.1/market", **source))
        assert parse_config(to_toml(config)) == config


def test_a_password_that_is_not_there_is_reported_with_the_remedy(tmp_path: Path) -> None:
    made = destination(to="amqp://feed@127.0.0.1", password_env="NOT_THERE_AT_ALL")
    with pytest.raises(ConfigError, match="no environment variable NOT_THERE_AT_ALL"):
        made.resolved()
    for content in (None, b"\xff", b"x" * 5000):
        file = tmp_path / "password"
        if content is not None:
            file.write_bytes(content)
        made = destination(to="amqp://feed@127.0.0.1", password_file=str(file))
        with pytest.raises(ConfigError, match="password_file"):
            made.resolved()


def test_what_is_published_is_said_in_a_subscriptions_words() -> None:
    assert destination().address == "#?as=packet&quality=1"
    made = destination(patterns="euronext.104", types="230,240", quality=False, **{"as": "message"})
    assert made.address == "euronext.104?as=message&quality=0&types=230,240"


def test_the_example_of_the_page_is_accepted(tmp_path: Path) -> None:
    page = CHECKOUT / "docs" / "publishing.md"
    example = page.read_text().partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "gateway.toml"
    file.write_text(f"{BASE}\n{example}")
    assert load_config(file).publish[0].name == "firm"


# -- what differs between brokers -------------------------------------------------------------


def test_every_kind_is_known_by_what_it_says_of_itself() -> None:
    said = {
        RABBITMQ_3: {"product": "RabbitMQ", "version": "3.10.8"},
        RABBITMQ_4: {"product": "RabbitMQ", "version": "4.0.5"},
        ARTEMIS: {"product": "apache-activemq-artemis", "version": "2.40.0"},
        QPID: {"product": "qpid-broker-j", "version": "9.2.1"},
    }
    assert {kind: kind_of(properties) for kind, properties in said.items()} == {
        kind: kind for kind in KINDS
    }
    assert kind_of({"product": "RabbitMQ", "version": "5.0"}) is None
    assert kind_of({}) is None
    assert product_of(said[RABBITMQ_3]) == "RabbitMQ 3.10.8"


def test_addresses_of_rabbitmq_escape_what_would_end_a_name() -> None:
    assert way_to(RABBITMQ_3, "exchange", "amq.topic", True).address == "/exchange/amq.topic"
    assert way_to(RABBITMQ_3, "exchange", "a/b c", True).address == "/exchange/a%2Fb%20c"
    way = way_to(RABBITMQ_4, "exchange", "a/b c", True)
    assert way.address == ""
    assert way.to is not None
    assert way.to("euronext.104/x%") == "/exchanges/a%2Fb%20c/euronext.104%2Fx%25"
    assert way_to(RABBITMQ_4, "queue", "a/b", True).address == "/queues/a%2Fb"


def test_a_queue_of_rabbitmq_3_is_declared_or_wanted() -> None:
    made = way_to(RABBITMQ_3, "queue", "a b", True)
    assert (made.address, made.durable) == ("/queue/a%20b", True)
    assert way_to(RABBITMQ_3, "queue", "a b", False).address == "/amq/queue/a%20b"


def test_every_form_has_a_way_or_a_word_instead() -> None:
    for kind in KINDS:
        for form in ("exchange", "topic", "queue"):
            if (wrong := unlike(kind, form)) is None:
                way = way_to(kind, form, "name", True)
                assert way.address or way.to is not None
            else:
                assert all(wrong)
    assert unlike("auto", "topic") is None
    assert [kind for kind in KINDS if hides_unroutable(kind)] == [RABBITMQ_3]


def test_virtual_hosts_are_asked_for_in_each_brokers_way() -> None:
    assert hostname_of(RABBITMQ_4, "broker", "market") == "vhost:market"
    assert hostname_of("", "broker", "market") == "vhost:market"
    assert hostname_of(QPID, "broker", "market") == "market"
    for kind in KINDS:
        assert hostname_of(kind, "broker", "") == "broker"


def test_where_messages_go_is_said_by_one_of_three_keys() -> None:
    assert (destination().form, destination().goal) == ("exchange", "x")
    made = destination(exchange="", topic="md")
    assert (made.form, made.goal) == ("topic", "md")
    made = destination(exchange="", queue="q")
    assert (made.form, made.goal) == ("queue", "q")


def test_a_password_goes_to_another_machine_over_tls() -> None:
    settings = destination(to="amqps://feed:x@10.0.0.1", management="https://10.0.0.1").resolved()
    assert (settings.port, settings.encrypted, settings.password) == (5671, True, "x")
