"""docker-compose.yml by the compose specification, as Docker Compose's own loader has it; and what
its gateway publishes to its RabbitMQ."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from feedhandler.config import load_config
from tests.support import publish as publish_kit
from tests.support.brokers import RabbitMQ
from tests.support.checkout import CHECKOUT
from tests.support.foreign_clients import go_command


def load(path: Path) -> subprocess.CompletedProcess[str]:
    """Run the compose loader on a file and return its result; skip where it is not built."""
    words = [*go_command("compose").words, str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_compose_file_is_one_by_the_specification() -> None:
    done = load(CHECKOUT / "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    project: dict[str, Any] = json.loads(done.stdout)
    assert len(project["services"]) == 8
    for service in project["services"].values():
        assert service["logging"]["options"] == {"max-file": "3", "max-size": "10m"}


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("    logging: *logging", "    loging: *logging", "loging"),
        ("condition: service_started", "condition: started", "condition"),
        ("      rabbitmq:\n", "      rabbit:\n", "rabbit"),
        ('max-file: "3"', "max-file: [3]", "logging"),
    ],
)
def test_a_mistake_in_the_compose_file_is_found(
    right: str, wrong: str, reason: str, tmp_path: Path
) -> None:
    text = (CHECKOUT / "docker-compose.yml").read_text()
    assert right in text
    path = tmp_path / "docker-compose.yml"
    path.write_text(text.replace(right, wrong, 1))
    done = load(path)
    assert done.returncode == 1
    assert reason in done.stderr


async def test_a_real_rabbitmq_with_its_definitions_keeps_what_its_gateway_publishes(
    rabbitmq4: RabbitMQ,
) -> None:
    definitions = json.loads((CHECKOUT / "docs" / "rabbitmq.compose.json").read_text())
    (destination,) = load_config(CHECKOUT / "docs" / "gateway.compose.toml").publish
    settings = structs.asdict(destination)
    settings["to"] = settings["to"].replace("rabbitmq:5672", f"127.0.0.1:{rabbitmq4.port}")
    assert settings["to"] != destination.to
    rabbitmq4.api("POST", "definitions", definitions)
    async with publish_kit.publishing(rabbitmq4, **settings) as rig:
        await rig.up()
        await rig.both(1, 100)
        await rig.confirmed()
        # This broker confirms only what a queue has taken.
        assert rig.seen["confirmed"] == 2 + 2 * 100
        assert rig.seen["abandoned"] == rig.seen["dropped"] == 0
