"""Answers of RabbitMQ's management API: none of them ends the publisher that asks."""

from typing import Any

import pytest

from feedhandler.amqp.publishing.rabbitmq_management import Management

BOUND: dict[str, Any] = {"exchanges": {"arguments": {}}, "exchanges/bindings/source": [{}]}


class Answering(Management):
    """A management API that answers with these values, by what is asked for."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__("http://broker:15672", "", "ann", "secret")
        self._answers = answers

    def _get(self, kind: str, name: str, part: str = "") -> tuple[int, Any]:
        found = self._answers[f"{kind}{part}"]
        if isinstance(found, Exception):
            raise found
        return 200, found


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, None),
        ({"exchanges/bindings/source": []}, "nothing is bound to exchange 'market'"),
        ({"exchanges": {"arguments": {"alternate-exchange": "rest"}}}, None),
        ({"exchanges": {"policy": "p"}, "policies": {"definition": {}}}, None),
        ({"exchanges": {"arguments": None}}, "is not its JSON"),
        ({"exchanges": []}, "is not its JSON"),
        ({"exchanges": "found"}, "is not its JSON"),
        ({"exchanges": {"policy": "p"}, "policies": {"definition": 1}}, "is not its JSON"),
        ({"exchanges": ValueError("no JSON")}, "is not its JSON"),
        ({"exchanges": RecursionError("too deep")}, "is not its JSON"),
        ({"exchanges": TimeoutError("timed out")}, "cannot be asked: timed out"),
    ],
)
def test_whatever_it_answers_is_a_problem_or_none(more: dict[str, Any], problem: str) -> None:
    found = Answering(BOUND | more).problem("exchange", "market")
    assert found == problem or (found is not None and problem in found)
