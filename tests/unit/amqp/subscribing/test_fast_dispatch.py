"""A subscriber's shortest way from a link to its callback."""

from types import ModuleType
from typing import Any

import numpy
import pytest

from feedhandler.amqp.framing import QUALITY_NOTE, WHOLE_PACKET, Frame, Template
from feedhandler.amqp.subscribing import fast_dispatch
from feedhandler.amqp.subscribing.columns import Batch, Workspace
from feedhandler.amqp.subscribing.inbox import Inbox
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from tests.support.amqp_pair import Pair

PREFIX = b"\x01\x35\x1a\xa8\x00\x01\x00\x68"
PACKETS = Template("euronext.104", "application/vnd.feedhandler.packet", PREFIX)
QUALITY = Template("euronext.104", "application/vnd.feedhandler.quality+json", PREFIX)


class Intake(Pair):
    """A receiving link over a socket pair; `granted` is what was given back."""

    def __init__(self, credit: int) -> None:
        super().__init__(credit=100, address="euronext.#")
        self.credit, self.number = credit, 0
        self.granted: list[int] = []
        self.link, self.inbox = self.receiver, Inbox()

    def bring(self, *bodies: bytes) -> None:
        """Have these on the link; what begins with a brace is a quality message."""
        for body in bodies:
            note = body.startswith(b"{")
            frame = Frame(4_096)
            frame.begin(QUALITY if note else PACKETS, 7, QUALITY_NOTE if note else WHOLE_PACKET, 0)
            frame.append(body, 0, len(body))
            frame.finish(self.number)
            self.number += 1
            data = frame.snapshot()
            self.sender.send(data, 0, len(data))
        self.turn()

    def grant(self, consumed: int) -> None:
        self.granted.append(consumed)


@pytest.fixture
def intake() -> Any:
    made = Intake(credit=5)
    yield made
    made.close()


@pytest.fixture
def module() -> ModuleType:
    return fast_dispatch


def reading(module: ModuleType, intake: Intake, callback: Any) -> Any:
    return module.FastDispatch(intake, callback, None, "packet", Workspace())


def test_what_a_read_brought_is_one_batch_and_credit_goes_back_in_halves(
    module: ModuleType, intake: Intake
) -> None:
    found: list[tuple[int, bytes]] = []
    each = reading(module, intake, lambda batch: found.append((batch.count, bytes(batch.data))))
    for bodies in ((b"one",), (b"two", b"three"), (b"four",)):
        intake.bring(*bodies)
        assert each.dispatch()
        assert intake.link.count == 0
    assert found == [(1, b"one"), (2, b"twothree"), (1, b"four")]
    assert intake.granted == [3], "half of five, rounded up"
    each.return_credit()
    assert intake.granted == [3, 1]


def test_a_quality_message_is_left_to_others_with_what_came_before_it(
    module: ModuleType, intake: Intake
) -> None:
    found: list[Batch] = []
    each = reading(module, intake, found.append)
    intake.bring(b"one", b'{"service":104}', b"two")
    assert not each.dispatch()
    assert found == []
    assert (each.taken, bytes(each.batch.data)) == (1, b"one")
    assert intake.link.count == 3
    assert intake.granted == []


def test_what_the_callback_raises_comes_out_and_the_link_is_empty(
    module: ModuleType, intake: Intake
) -> None:
    def refuse(batch: Batch) -> None:
        raise ValueError("not mine")

    intake.bring(b"one")
    with pytest.raises(ValueError, match="not mine"):
        reading(module, intake, refuse).dispatch()
    assert intake.link.count == 0


def test_a_packet_outside_the_sequence_has_no_position_in_the_stream() -> None:
    frame, data, bounds = Frame(4096), b"", [0]
    for number, sequence in enumerate((7, UNSEQUENCED_BIT | 5)):
        frame.begin(PACKETS, sequence, WHOLE_PACKET, 0)
        frame.append(b"body", 0, 4)
        frame.finish(number)
        data += frame.snapshot()
        bounds.append(len(data))
    inbox = Inbox()
    one, other = inbox.read(memoryview(data), memoryview(numpy.array(bounds)), 2)
    assert (one.unsequenced, other.unsequenced, other.snapshot) == (False, True, False)
    assert inbox.last_tags() == {one.service: one.tag}
