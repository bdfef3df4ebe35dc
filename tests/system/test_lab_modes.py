"""The laboratory's other ways: the paper's measurement, and a broker that runs already."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler import drawing
from feedhandler.codecs.errors import UsageError
from feedhandler.lab import commands as lab
from feedhandler.lab import results
from feedhandler.lab.plan import Plan
from tests.support.brokers import Broker

SHORT: dict[str, Any] = {
    "clients": (1,),
    "duration_s": 0.5,
    "warm_up_s": 0.2,
    "rate_bps": 4e6,
    "generate_messages": 5_000,
    "apart": False,
}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn in `tests/unit/lab/test_report.py`."""
    monkeypatch.setattr(drawing, "available", lambda: False)


def test_the_papers_mode_times_every_odd_message_of_an_odd_packet(tmp_path: Path) -> None:
    plan = Plan(out=tmp_path / "out", scenarios=("messages",), mode="paper", **SHORT)
    assert lab.run(plan) == 0
    (step,) = results.read_run(plan.out).steps
    assert (step.mode, step.verdicts, step.findings) == ("paper", [], [])
    # About one message in five: every second packet, and of five messages the second and fourth.
    share = step.latency.count / step.sent.messages
    assert 0.1 < share < 0.3
    assert 0 <= step.latency.min_ns < step.latency.max_ns
    text = (plan.out / "tables.txt").read_text()
    assert "control datagrams" in text
    assert (plan.out / "report.html").exists()
    assert [each.received for each in step.results] == [each.expected for each in step.results]
    assert {"replayer", "gateway", "clients", "stamper"} == {each.role for each in step.loads}


def test_a_broker_that_runs_is_taken_and_left_as_it_was(rabbitmq3: Broker, tmp_path: Path) -> None:
    plan = Plan(
        out=tmp_path / "out",
        broker="rabbitmq",
        broker_url=rabbitmq3.url,
        broker_management=rabbitmq3.http_port,
        **SHORT,
    )
    assert lab.run(plan) == 0
    run = results.read_run(plan.out)
    (step,) = run.steps
    assert (step.broker, step.findings) == ("rabbitmq-3", [])
    assert all(each.received == each.expected > 0 for each in step.results)
    assert step.latency.count > 0
    assert step.queue_limit_bytes == 500 * 2**20
    loads = {each.role: each for each in step.loads}
    # A broker that is behind may still hold some of it when the last sample is taken.
    assert loads["broker"].net_in_bytes[-1] > 0
    assert loads["broker"].net_out_bytes[-1] > 0
    assert run.versions["broker"].startswith("RabbitMQ 3.")
    for path in plan.out.iterdir():
        content = path.read_bytes()
        for password in (rabbitmq3.password, rabbitmq3.url.split(":")[2].split("@")[0]):
            assert password.encode() not in content, f"a password in {path.name}"
    assert (
        "feedhandler-lab"
        not in msgspec.json.encode(
            rabbitmq3.api("GET", "queues") + rabbitmq3.api("GET", "exchanges")  # type: ignore[attr-defined]
        ).decode()
    )


def test_a_url_without_a_brokers_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="say which it is"):
        lab.run(Plan(out=tmp_path / "out", broker_url="amqp://localhost"))
