"""Qpid JMS, Vert.x Proton and Rust's fe2o3-amqp against the node: a stream, and a durable queue.

Each library's program goes through all of its scenarios in one process, once; the tests look at
what it has reported.
"""

import asyncio
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.interop.install import JAVA_PROGRAMS
from tests.support.durable import QueueRig, orders, running
from tests.support.foreign_clients import Client, Message, java_command, rust_command, started
from tests.support.node import PATIENCE_S

#: Packets of the stream, and messages of the queue, as the programs have it.
PACKETS, CREDIT, ORDERS = 40, 5, 10
NUMBERS = [f"order {number}" for number in range(ORDERS)]
#: Messages more that JMS puts and takes in transactions.
IN_TRANSACTIONS = 3
#: What a program is refused, with which condition and with which words. The first two are asked for
#: by all, the others are JMS's alone.
REFUSALS = {
    "unknown source": ("not-found", "no queue is named 'nothing'"),
    "producer to a stream": ("not-allowed", "only at queue.NAME"),
    "unknown target": ("not-found", "no queue is named 'nothing'"),
    "browser": ("not-implemented", "queue orders cannot be browsed"),
    "selector": ("not-implemented", "queue orders has no filters or selectors: jms-selector"),
    "no-local": ("not-implemented", "queue orders has no filters or selectors: no-local"),
    "temporary queue": ("not-implemented", "no temporary queues or topics"),
}

every_program = pytest.mark.parametrize("kind", ["jms", "vertx", "rust"])


@dataclass
class Played:
    """Reports of a program, in order, with what it was sent and what the node counted."""

    reported: list[dict[str, Any]]
    messages: dict[str, list[Message]]
    packets: list[bytes]
    shared: list[bytes]
    sent_for_credit: int
    status: int
    counters: dict[str, int]
    queue: dict[str, Any]

    def bodies(self, event: str) -> list[str]:
        """The queue's messages that it reported by this event."""
        return [each["body"] for each in self.reported if each["event"] == event]


@functools.cache
def played(kind: str) -> Played:
    """Let a program go through its scenarios."""
    command = java_command(kind) if kind in JAVA_PROGRAMS else rust_command()

    async def scenario(folder: Path) -> Played:
        async with (
            running(orders(folder / "orders"), orders(folder / "out", name="out")) as rig,
            started(command, str(rig.port)) as program,
        ):
            made = await accompany(rig, program, kind)
            await rig.until(lambda: not rig.node.connections, "the connection's end")
            made.counters, made.queue = rig.node.counters(), rig.orders.snapshot()
            return made

    with tempfile.TemporaryDirectory() as folder:
        return uvloop.run(scenario(Path(folder)))


async def accompany(rig: QueueRig, program: Client, kind: str) -> Played:
    """Publish when the program has subscribed, and hear it to its end."""
    await program.hear("subscribed")
    packets, shared, sent = rig.packets(1, PACKETS), [], CREDIT
    await rig.deliver()
    if kind == "jms":  # its consumers have credit of their own making
        await program.hear("shared")
        shared = rig.packets(PACKETS + 1, PACKETS + 20)
        await rig.deliver()
    else:
        await program.hear("used")
        sent = rig.count("sent")
        program.order("go on")
    await program.hear("closed")
    status = await asyncio.wait_for(program.process.wait(), PATIENCE_S)
    return Played(program.reported, program.messages, packets, shared, sent, status, {}, {})


@every_program
def test_a_stream_comes_whole_and_in_order_within_its_credit(kind: str) -> None:
    made = played(kind)
    got = made.messages["feed"]
    if kind == "jms":
        quality, *got = got
        assert quality.content == "quality+json"
        assert quality.body.startswith(b'{"state":"WAITING"')
    assert [each.body for each in got] == made.packets
    assert [each.sequence for each in got] == list(range(1, PACKETS + 1))
    assert {(each.subject, each.content) for each in got} == {("euronext.104", "packet")}
    assert made.sent_for_credit == CREDIT


@every_program
def test_what_is_put_into_a_durable_queue_is_taken_once_and_in_order(kind: str) -> None:
    made = played(kind)
    acknowledged = made.bodies("recovered") + made.bodies("taken")
    assert acknowledged == NUMBERS
    count = ORDERS + (IN_TRANSACTIONS if kind == "jms" else 0)
    assert (made.queue["put"], made.queue["delivered"], made.queue["depth"]) == (count, count, 0)


@every_program
def test_what_is_refused_is_refused_with_the_reason_and_the_connection_lives_on(kind: str) -> None:
    made = played(kind)
    refusals = {
        each["what"]: each["answer"] for each in made.reported if each["event"] == "refused"
    }
    expected = REFUSALS if kind == "jms" else dict(list(REFUSALS.items())[:2])
    assert refusals.keys() == expected.keys()
    for what, (condition, words) in expected.items():
        assert words in refusals[what], what
        # fe2o3-amqp has names of its own for AMQP's conditions.
        assert condition.replace("-", "") in refusals[what].replace("-", "").lower(), what
    assert made.counters["links_refused"] == len(expected)


@every_program
def test_it_leaves_in_an_orderly_way(kind: str) -> None:
    made = played(kind)
    assert made.status == 0
    if kind != "rust":  # see `ask` in main.rs
        assert made.counters["connections_failed"] == 0


@pytest.mark.parametrize("kind", ["vertx", "rust"])
def test_a_released_message_comes_again_first(kind: str) -> None:
    assert played(kind).bodies("left") == NUMBERS[:1]


def test_jms_gets_again_what_it_has_not_acknowledged() -> None:
    made = played("jms")
    assert made.bodies("first") == made.bodies("recovered") == NUMBERS[:3]
    assert made.bodies("left") == NUMBERS[3:4]
    last = {each["body"]: each for each in made.reported if "again" in each}
    # The rest was fetched ahead by consumers that closed, and never given to the program.
    assert [last[body]["again"] for body in NUMBERS] == [True] * 4 + [False] * (ORDERS - 4)
    assert [last[body]["number"] for body in NUMBERS] == list(range(ORDERS))
    assert last["order 9"]["correlation"] == "desk 9"


def test_jms_sessions_that_are_transacted_commit_all_and_roll_all_back() -> None:
    made = played("jms")
    for attempt in (0, 1):
        got = [each for each in made.reported if each["event"] == f"attempt {attempt}"]
        assert [each["body"] for each in got] == NUMBERS[:IN_TRANSACTIONS]
        assert {each["again"] for each in got} == {attempt == 1}
    results = [each["text"] for each in made.reported if each["event"] == "result"]
    assert results == [f"done 1 {count}" for count in range(IN_TRANSACTIONS)]
    assert [each["text"] for each in made.reported if each["event"] == "left over"] == ["nothing"]


def test_jms_consumers_share_a_subscription() -> None:
    made = played("jms")
    one, other = made.messages["member 0"], made.messages["member 1"]
    assert one
    assert other
    tags = [each.tag for each in one + other]
    assert len(tags) == len(set(tags)) == 5 * len(made.shared)
    # A symbol's messages go to one member.
    assert not {each.subject for each in one} & {each.subject for each in other}
