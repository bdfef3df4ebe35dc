"""The checks of `test_fixcast` bite: who does one thing wrong is caught by them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from test_fixcast import CROWDED, World, check_a_common_loss, check_own_losses, play

from feedhandler.fixcast import receiving, reception
from feedhandler.fixcast.reception import Deliver, Ended, Lost, Reception, Skipped
from feedhandler.retrans.fix.client import Requester
from feedhandler.retrans.fix.server import ResendServer

#: Seeds that are played until one catches the fault: none with a hundred receivers.
SEEDS = range(CROWDED - 1)
Sabotage = Callable[[pytest.MonkeyPatch], None]


def put_otherwise(change: Callable[[Any], list[Any]]) -> Sabotage:
    """Return a sabotage that gives out, in place of each event, what `change` makes of it."""

    def sabotage(patch: pytest.MonkeyPatch) -> None:
        put = Reception._put

        def changed(self: Reception, event: Any, first: int, end: int) -> None:
            start = len(self._events)
            put(self, event, first, end)
            self._events[start:] = [new for old in self._events[start:] for new in change(old)]

        patch.setattr(Reception, "_put", changed)

    return sabotage


def on_delivery(change: Callable[[Deliver], list[Any]]) -> Sabotage:
    return put_otherwise(
        lambda event: change(event) if isinstance(event, Deliver) and event.number == 7 else [event]
    )


def on_loss(change: Callable[[Lost], list[Any]]) -> Sabotage:
    return put_otherwise(lambda event: change(event) if isinstance(event, Lost) else [event])


def lose_what_came(patch: pytest.MonkeyPatch) -> None:
    deliver = Reception._deliver

    def lost(self: Reception, message: Any, now_ns: int) -> None:
        if message.number != 7:
            deliver(self, message, now_ns)
            return
        self.top = 8
        self._put(Lost(7, 7), 7, 8)

    def came(self: Reception, message: Any) -> bool:
        return message.number == 7 or is_copy(self, message)

    is_copy = Reception._is_copy
    patch.setattr(Reception, "_deliver", lost)
    patch.setattr(Reception, "_is_copy", came)


def give_up_at_once_what_one_line_lacks(patch: pytest.MonkeyPatch) -> None:
    """No gap waits for the other line, and none is asked for."""
    asked_from_ns = Reception._asked_from_ns
    patch.setattr(Reception, "_given_up_ns", lambda self, gap: asked_from_ns(self, gap) - 10**12)


def let_nothing_wait(patch: pytest.MonkeyPatch) -> None:
    put = Reception._put

    def at_once(self: Reception, event: Any, first: int, end: int) -> None:
        if self.settings.ordered and isinstance(event, Deliver):
            self._events.append(event)
            self.floor = max(self.floor, end)
        else:
            put(self, event, first, end)

    patch.setattr(Reception, "_put", at_once)


def believe_no_new_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reception, "_renumber", lambda self, number: None)


def believe_every_old_message(patch: pytest.MonkeyPatch) -> None:
    """A single message that does not fit begins a new epoch."""
    patch.setattr(reception, "EVIDENCE_LEAST", 1)
    patch.setattr(Reception, "_is_copy", lambda self, message: False)
    patch.setattr(Reception, "_epoch_ns", lambda self: 0 if self._evidence else 1 << 62)
    patch.setattr(
        Reception,
        "_weigh",
        lambda self, message, now_ns: (
            self._evidence.append(message), self._weigh_epoch(now_ns),
        ),
    )  # fmt: skip


def read_what_is_of_another_topic(patch: pytest.MonkeyPatch) -> None:
    made = receiving.ChannelReceiver.__init__

    def careless(self: Any, name: str, topic: bytes, *rest: Any) -> None:
        made(self, name, b"", *rest)

    patch.setattr(receiving.ChannelReceiver, "__init__", careless)


def believe_every_checksum(patch: pytest.MonkeyPatch) -> None:
    """A message that was changed on its way is read all the same."""
    read = receiving.read_datagram

    def repaired(data: bytes, frame: Any) -> Any:
        found, fault = read(data, frame)
        if fault:
            begins = data.split(b"8=FIXT.1.1\x01")[1:]
            fixed = (b"8=FIXT.1.1\x01" + each[:-7] for each in begins)
            data = b"".join(b"%b10=%03d\x01" % (each, sum(each) & 255) for each in fixed)
            found, fault = read(data, frame)
        return found, fault

    patch.setattr(receiving, "read_datagram", repaired)


def ask_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requester, "tick", lambda self, now_ns: [])


def answer_the_first_of_a_range_alone(patch: pytest.MonkeyPatch) -> None:
    messages = ResendServer._messages
    patch.setattr(ResendServer, "_messages", lambda *args: messages(*args)[:1])


def forget_the_end(patch: pytest.MonkeyPatch) -> None:
    def bearing(self: Reception, message: Any, position: Any) -> Any:
        heard = original(self, message, position)
        self._events[:] = [
            Ended(each.next + 1) if isinstance(each, Ended) else each for each in self._events
        ]
        return heard

    original = Reception._bearing
    patch.setattr(Reception, "_bearing", bearing)


FAULTS: dict[str, Sabotage] = {
    "a message is swallowed": on_delivery(lambda event: []),
    "a message is delivered twice": on_delivery(lambda event: [event, event]),
    "a bit is turned": on_delivery(
        lambda event: [event._replace(body=event.body[:30] + b"!" + event.body[31:])]
    ),
    "a message has its neighbour's number": on_delivery(
        lambda event: [event._replace(number=event.number + 1)]
    ),
    "a loss is not declared": on_loss(lambda event: []),
    "a loss is declared as skipped": on_loss(lambda event: [Skipped(*event)]),
    "a loss is declared by half": on_loss(lambda event: [event._replace(last=event.first)]),
    "what came is declared lost": lose_what_came,
    "gaps are given up at once": give_up_at_once_what_one_line_lacks,
    "nothing waits for what is missing": let_nothing_wait,
    "a new epoch is not believed": believe_no_new_epoch,
    "every old message is a new epoch": believe_every_old_message,
    "another topic's messages are read": read_what_is_of_another_topic,
    "a CheckSum is not checked": believe_every_checksum,
    "nothing is asked for": ask_for_nothing,
    "an answer is cut short": answer_the_first_of_a_range_alone,
    "the end has another number": forget_the_end,
}


def is_caught(check: Callable[[], object]) -> bool:
    """Return whether the check fails, or the world cannot go on."""
    try:
        check()
    except (AssertionError, KeyError, RecursionError, TypeError):
        return True
    return False


def play_seed(seed: int) -> None:
    """Play a seed's world."""
    play(World(seed))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_receiver_or_a_server_that_does_one_thing_wrong_is_caught(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[fault](monkeypatch)
    assert any(is_caught(partial(play_seed, each)) for each in SEEDS), "nothing was noticed"


# -- the economy -----------------------------------------------------------------------------------


def ask_without_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requester, "_wait_ns", lambda self: 0)


def hear_nothing_of_others(patch: pytest.MonkeyPatch) -> None:
    """Make requesters ask all the same for what came by others' requests."""
    patch.setattr(Requester, "settled", lambda *args: None)


def answer_everybody(patch: pytest.MonkeyPatch) -> None:
    ask_without_waiting(patch)
    patch.setattr(
        ResendServer, "_fresh", lambda self, channel, whose, first, last, now_ns: [(first, last)]
    )


def ask_again_at_once(patch: pytest.MonkeyPatch) -> None:
    tick = Requester.tick
    patch.setattr(Requester, "tick", lambda self, now_ns: tick(self, now_ns) * 2)


def ask_for_each_number(patch: pytest.MonkeyPatch) -> None:
    missing = Requester.missing

    def one_by_one(self: Requester, first: int, last: int, now_ns: int) -> None:
        for number in range(first, last + 1):
            missing(self, number, number, now_ns)

    patch.setattr(Requester, "missing", one_by_one)


COMMON_LOSS: dict[str, Sabotage] = {
    "all ask at once": ask_without_waiting,
    "what others asked for is asked for too": hear_nothing_of_others,
    "everybody is answered": answer_everybody,
}
OWN_LOSS: dict[str, Sabotage] = {
    "a request is made twice": ask_again_at_once,
    "each number is asked for alone": ask_for_each_number,
    "nothing is asked for": ask_for_nothing,
}


@pytest.mark.parametrize("fault", COMMON_LOSS)
def test_a_common_loss_that_costs_more_is_caught(
    fault: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    COMMON_LOSS[fault](monkeypatch)
    assert is_caught(lambda: check_a_common_loss(seed, 15)), "nothing was noticed"


@pytest.mark.parametrize("fault", OWN_LOSS)
def test_a_loss_that_is_asked_for_more_often_is_caught(
    fault: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    OWN_LOSS[fault](monkeypatch)
    assert is_caught(lambda: check_own_losses(seed, (0.5, 0.3))), "nothing was noticed"
