"""`[[queue]]`: what may be said of a durable queue, what is refused, and what users may do."""

from pathlib import Path

import pytest

from feedhandler.amqp.durable.queues import grants
from feedhandler.amqp.durable.stored import StoredQueue
from feedhandler.amqp.users import EVERY_QUEUE, User
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.config import Config, loopback_config, parse_config
from feedhandler.config.amqp import UserConfig
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.config.show import to_toml
from feedhandler.gateway import Gateway
from feedhandler.gateway.readings import readings
from feedhandler.observe.metrics import SCOPES

BASE = to_toml(loopback_config(services=(104,)))
HASH = "scrypt$16$8$1$c2l4dGVlbiBieXRlcyBvZg==$c2l4dGVlbiBieXRlcyBvZg=="


def table(*lines: str) -> str:
    return f'[[queue]]\nname = "orders"\nfolder = "/q/orders"\n{chr(10).join(lines)}\n'


def made(*tables: str) -> Config:
    return parse_config("\n".join([BASE, *tables]))


def test_a_queue_needs_a_name_and_a_folder_and_has_defaults_for_the_rest() -> None:
    (queue,) = made(table()).queues
    assert (queue.name, queue.folder) == ("orders", "/q/orders")
    settings = queue.settings()
    assert (settings.durability, settings.block_bytes) == ("durable", 64 << 20)


def test_what_is_shown_is_read_back() -> None:
    config = made(table('paths = ["/a", "/b"]', 'day_zone = "Europe/Paris"', 'day_end = "17:40"'))
    assert parse_config(to_toml(config, comments=True)) == config


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ((table(), table()), r"queue\[1\].name: a second queue 'orders'"),
        ((table(), table().replace('"orders"', '"other"')), r"queue\[1\].folder: .* another"),
        ((table().replace("/q/orders", ""),), r"queue\[0\].folder: empty"),
        ((table('dead = "orders"'),), r"queue\[0\].dead: no other queue is named 'orders'"),
        ((table('dead = "graves"'),), r"queue\[0\].dead: no other queue is named 'graves'"),
        (
            (
                table('dead = "graves"'),
                table("message_bytes_max = 1024", "block_bytes = 1048576").replace(
                    "orders", "graves"
                ),
            ),
            r"queue\[0\].dead: a block of 'graves' holds 1011712 bytes, and a message .* 1048576",
        ),
        ((table("blocks = 9", "blocks_max = 3"),), r"queue\[0\].blocks_max: 3 is less than"),
        ((table('day_zone = "UTC"'),), r"queue\[0\].day_end: empty, though there is a day_zone"),
        (
            (table('day_zone = "Nowhere"', 'day_end = "17:00"'),),
            r"queue\[0\].day_end: day_zone = 'Nowhere'",
        ),
        ((table("block_bytes = 1048577"),), r"queue\[0\].block_bytes"),
        (
            (table("block_bytes = 1048576", "message_bytes_max = 1048576"),),
            r"queue\[0\].message_bytes_max: 1048576 is more than a block of 1048576 holds",
        ),
        ((table('durability = "none"'),), r"queue\[0\].durability"),
        ((table("colour = 1"),), r"queue\[0\].colour: unknown key"),
        ((table().replace('"orders"', '"a.b"'),), r"queue\[0\].name: wants 1 to 64 letters"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_key(tables: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(*tables)


def users(**rights: object) -> str:
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in rights.items()]
    head = f'[[amqp.users]]\nname = "ann"\npassword = "{HASH}"\n'
    return head + "\n".join(lines) + "\n"


def with_user(**rights: object) -> Config:
    opened = BASE.replace("plain_without_tls = false", "plain_without_tls = true")
    return parse_config("\n".join([opened, table(), users(**rights)]))


def test_a_user_may_have_queues_and_no_services() -> None:
    (user,) = with_user(services=[], put=["orders"], cancel=["*"]).amqp.users
    rights = user.user("", 0).queues
    assert (rights.put, rights.get, rights.cancel) == ({"orders"}, set(), {"*"})
    assert grants(rights.put, "orders")
    assert not grants(rights.put, "others")
    assert grants(rights.cancel, "others")


def test_a_user_with_nothing_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing could be received"):
        with_user(services=[])


@pytest.mark.parametrize("key", ["put", "get", "cancel"])
def test_a_right_to_a_queue_that_is_not_there_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"users\[0\].{key}: no queue is named 'ordres'"):
        with_user(services=["*"], **{key: ["ordres"]})


def test_who_is_not_limited_may_have_every_queue() -> None:
    assert User("anonymous").queues == EVERY_QUEUE
    assert UserConfig(name="a", services=("*",)).user("", 0).queues != EVERY_QUEUE


@pytest.mark.parametrize(
    ("lines", "zone", "end"),
    [
        ((), "", ""),
        (('day_end = "trading-day"',), "America/New_York", "18:00"),
        (('day_end = "16:00"',), "America/New_York", "16:00"),
        (('day_end = "17:40"', 'day_zone = "Europe/Paris"'), "Europe/Paris", "17:40"),
    ],
)
def test_a_queues_day_is_the_trading_day_unless_it_says_otherwise(
    lines: tuple[str, ...], zone: str, end: str
) -> None:
    evening = TradingDay("America/New_York", "18:00")
    found = made(table(*lines)).queues[0].resolved(evening)
    assert (found.day_zone, found.day_end) == (zone, end)
    assert bool(found.settings().day_began_ns(10**18)) == bool(end)


def test_a_queues_settings_are_its_folders(tmp_path: Path) -> None:
    config = DurableQueueConfig(name="q", folder=str(tmp_path), durability="fast", paths=("/a",))
    assert not config.settings().durable
    assert config.settings().paths == ("/a",)


async def test_a_gateway_tells_its_queues_figures_open_or_not(tmp_path: Path) -> None:
    queues = (DurableQueueConfig(name="orders", folder=str(tmp_path), block_bytes=1 << 20),)
    gateway = Gateway(loopback_config(services=(104,), queues=queues))
    figures = gateway.snapshot()["queues"]
    assert [(each["name"], each["state"]) for each in figures] == [("orders", "stopped")]
    assert "not open" in gateway.watch.facts().queues_stopped["orders"]
    await gateway.queues.open()
    assert gateway.watch.facts().queues_stopped == {}
    read = [each for each in readings(gateway) if getattr(each, "scope", "") == "queue"]
    await gateway.queues.close()
    (reading,) = read
    assert reading.labels == ("orders",)
    assert set(reading.values) == set(SCOPES["queue"].counts) | set(SCOPES["queue"].gauges)
    assert reading.values["up"] == 1


def test_a_queue_is_of_a_kind() -> None:
    with pytest.raises(TypeError, match="abstract"):
        StoredQueue(DurableQueueConfig(name="queue.a", folder="a"), lambda: None)  # type: ignore[abstract]
