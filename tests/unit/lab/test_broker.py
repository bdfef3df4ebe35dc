"""The broker's role: which queues a step has, how the gateway publishes, what there is not."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.config.publishing import check_destinations
from feedhandler.lab import broker as lab_broker
from feedhandler.lab.broker import LabBroker, binding_of, open_broker
from feedhandler.lab.brokers import Absent, Broker, BrokerAdmin, BrokerFailed

PASSWORD = "s3cret/%?"


class Recorded(BrokerAdmin):
    """Keeps what is declared; `refuses` names the call that fails."""

    kind = "rabbitmq-3"
    refuses = ""

    def __init__(self, *address: Any) -> None:
        super().__init__(*(address or ("127.0.0.1", 5672, 0, "feed", PASSWORD, "market")))
        self.calls: list[tuple[Any, ...]] = []

    def _call(self, *call: Any) -> None:
        if call[0] == self.refuses:
            raise BrokerFailed("no")
        self.calls.append(call)

    def version(self) -> str:
        self._call("version")
        return "Test 1.2"

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        self._call("exchange", name, kind)

    def queue(
        self, name: str, exchange: str, *keys: str, durable: bool = True, bytes_max: int = 0
    ) -> None:
        self._call("queue", name, exchange, keys, durable, bytes_max)

    def delete(self, queue: str) -> None:
        self._call("delete", queue)

    def delete_exchange(self, name: str) -> None:
        self._call("delete_exchange", name)

    def source(self, queue: str) -> str:
        return f"from {queue}"


class RecordedArtemis(Recorded):
    kind = "artemis"


# -- queues -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exchange", "grain", "kind", "keys"),
    [
        ("direct", "packet", "direct", ("euronext.101", "euronext.104")),
        ("direct", "message", "topic", ("euronext.101.*", "euronext.104.*")),
        ("topic", "packet", "topic", ("euronext.#",)),
        ("topic", "message", "topic", ("euronext.#",)),
    ],
)
def test_a_client_is_bound_by_a_key_a_service_or_by_a_pattern(
    exchange: Any, grain: str, kind: str, keys: tuple[str, ...]
) -> None:
    found = binding_of(exchange, grain, "euronext", (101, 104))
    assert (found.kind, found.keys) == (kind, keys)


def test_each_client_has_a_bounded_queue_with_all_bindings() -> None:
    admin = Recorded()
    broker = LabBroker(admin, None, [])
    binding = binding_of("direct", "packet", "euronext", (101, 104))
    assert broker.prepare(binding, 2, 500) == [
        ["from feedhandler-lab-1-1"],
        ["from feedhandler-lab-2-1"],
    ]
    name = "feedhandler-lab-direct"
    assert admin.calls[1:] == [
        ("exchange", name, "direct"),
        ("queue", "feedhandler-lab-1-1", name, binding.keys, False, 500),
        ("queue", "feedhandler-lab-2-1", name, binding.keys, False, 500),
    ]


def test_a_client_of_artemis_has_a_queue_for_each_binding() -> None:
    admin = RecordedArtemis()
    broker = LabBroker(admin, None, [])
    (sources,) = broker.prepare(binding_of("direct", "packet", "euronext", (101, 104)), 1, 500)
    assert sources == ["from feedhandler-lab-1-1", "from feedhandler-lab-1-2"]
    assert [call[3] for call in admin.calls if call[0] == "queue"] == [
        ("euronext.101",),
        ("euronext.104",),
    ]
    broker.clear()
    assert "delete_exchange" not in [call[0] for call in admin.calls]


def test_what_was_made_for_a_step_goes_before_the_next_and_at_the_end() -> None:
    admin = Recorded()
    broker = LabBroker(admin, None, [])
    binding = binding_of("topic", "packet", "euronext", (101,))
    broker.prepare(binding, 1, 0)
    admin.calls.clear()
    broker.prepare(binding, 1, 0)
    gone = [("delete", "feedhandler-lab-1-1"), ("delete_exchange", "feedhandler-lab-topic")]
    assert admin.calls[:2] == gone
    admin.calls.clear()
    broker.close()
    assert admin.calls == gone
    broker.close()
    assert admin.calls == gone, "once"


@pytest.mark.parametrize("refuses", ["exchange", "queue", "delete"])
def test_a_management_that_refuses_is_one_line(refuses: str) -> None:
    admin = Recorded()
    broker = LabBroker(admin, None, [])
    binding = binding_of("topic", "packet", "euronext", (101,))
    admin.refuses = refuses

    def go_through() -> None:
        broker.prepare(binding, 1, 0)
        broker.clear()

    with pytest.raises(PeerError, match=r"^Test 1\.2: no$"):
        go_through()


# -- publishing and consuming -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [Recorded, RecordedArtemis])
def test_the_gateway_publishes_everything_with_stamps_and_without_a_password_in_sight(
    kind: type[Recorded],
) -> None:
    broker = LabBroker(kind(), None, [])
    binding = binding_of("topic", "message", "euronext", (101,))
    config = broker.publish(binding, "message", "euronext", 1 << 20, "/secret")
    check_destinations((config,))
    assert config.address == "euronext.#?as=message&quality=0&stamp=1"
    assert config.goal == "feedhandler-lab-topic"
    assert PASSWORD not in config.to
    assert config.password_file == "/secret"
    assert broker.url == "amqp://feed:s3cret%2F%25%3F@127.0.0.1:5672"
    assert broker.hostname == ("127.0.0.1" if kind is RecordedArtemis else "vhost:market")


def test_a_url_without_a_user_has_no_password() -> None:
    admin = Recorded("::1", 5672, 0, "", "", "/")
    broker = LabBroker(admin, None, [])
    config = broker.publish(binding_of("topic", "packet", "e", (1,)), "packet", "e", 1 << 20, "/x")
    assert (config.to, config.password_file) == ("amqp://::1:5672", "")


# -- finding one ------------------------------------------------------------------------------


class Missing(Broker):
    kind = "rabbitmq-3"

    def __init__(self, folder: Path) -> None:
        raise Absent("not installed; apt install it")


class Startable(Broker):
    """Starts nothing."""

    kind = "rabbitmq-4"
    fails = False
    made: ClassVar[list["Startable"]] = []

    def __init__(self, folder: Path) -> None:
        self.folder, self.discarded = folder, False
        BrokerAdmin.__init__(self, "127.0.0.1", 1, 0, "feed", PASSWORD, "market")
        self.made.append(self)

    def start(self) -> None:
        if self.fails:
            raise BrokerFailed("it said why")

    @property
    def pid(self) -> int:
        return 4711

    def version(self) -> str:
        return "Test 4"

    def discard(self) -> None:
        self.discarded = True


def test_the_first_one_that_is_installed_is_started_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lab_broker.STARTED, "rabbitmq", (Missing, Startable))
    found = open_broker("rabbitmq", "", tmp_path / "broker")
    assert (found.kind, found.version, found.pids, found.started) == (
        "rabbitmq-4", "Test 4", [4711], True,
    )  # fmt: skip
    (made,) = Startable.made
    Startable.made.clear()
    assert made.bound, "it ends with us, whatever happens"
    found.close()
    assert made.discarded


def test_a_broker_that_is_not_there_says_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lab_broker.STARTED, "rabbitmq", (Missing,))
    with pytest.raises(UsageError, match=r"apt install it .*--broker-url"):
        open_broker("rabbitmq", "", tmp_path / "broker")


def test_a_broker_that_does_not_start_says_why_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lab_broker.STARTED, "rabbitmq", (Startable,))
    monkeypatch.setattr(Startable, "fails", True)
    with pytest.raises(PeerError, match="broker rabbitmq: it said why"):
        open_broker("rabbitmq", "", tmp_path / "broker")
    assert Startable.made.pop().discarded


@pytest.mark.parametrize(
    "url", ["localhost:5672", "http://localhost", "amqp://", "amqp://a:b@c:x/"]
)
def test_what_is_no_broker_url_is_reported_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no amqp:// URL") as caught:
        open_broker("rabbitmq", url, tmp_path / "broker")
    assert "a:b" not in str(caught.value)


def test_a_broker_at_a_url_that_is_not_there_is_reported_at_once(tmp_path: Path) -> None:
    url = "amqp://us:secret@127.0.0.1"
    with pytest.raises(
        PeerError, match=r"management at 127\.0\.0\.1:1 does not answer: "
    ) as caught:
        open_broker("rabbitmq", url, tmp_path, 1)
    assert "secret" not in str(caught.value)


def test_a_broker_at_a_url_is_asked_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lab_broker.GIVEN, "qpid", Recorded)
    found = open_broker("qpid", "amqp://us%40:p%2F@10.0.0.5:5673/some%2Fwhere", tmp_path, 1234)
    made = found.admin
    assert (made.host, made.port, made.http_port) == ("10.0.0.5", 5673, 1234)
    assert (made.user, made.password, made.vhost) == ("us@", "p/", "some/where")
    assert not found.started
    assert found.pids == [], "another machine's processes are not ours to look at"
    assert open_broker("qpid", "amqp://localhost", tmp_path).admin.vhost == "default"
