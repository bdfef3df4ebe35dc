"""The node's door by itself: what is offered, who decides, and how many may be there."""

import asyncio
import threading
from typing import Any

import pytest

from feedhandler.amqp.serving.fair import FairPool
from feedhandler.amqp.serving.login import BUSY, Admission, Gate
from feedhandler.amqp.serving.sasl import Credentials
from feedhandler.amqp.users import User, Users
from tests.support.node import PATIENCE_S
from tests.support.security import SECRET, gate, user


class Shown:
    """TLS of a client that has shown a certificate with these names."""

    def __init__(self, *names: str) -> None:
        self.peer_names = list(names)


def door(**options: Any) -> Gate:
    """A gate with a user who has a certificate; no file is read."""
    made = gate(user("ann"), plain_without_tls=True, **options)
    people = [made.users.by_password("ann", SECRET), User("bob", certificate="desk 7")]
    made.users = Users([each for each in people if each], made.users.anonymous is not None)
    return made


def entered(made: Gate, *names: str) -> Admission:
    admission = made.enter("10.0.0.1", False)
    admission.tls = Shown(*names)  # type: ignore[assignment]
    return admission


@pytest.mark.parametrize(
    ("names", "name", "comes_in"),
    [
        (("desk 7",), "", True),
        (("desk 7",), "bob", True),
        (("desk 7", "d7.example"), "d7.example", True),
        (("desk 7",), "ann", False),
        (("desk 8",), "", False),
        (("desk 8",), "bob", False),
    ],
)
def test_a_certificate_lets_in_as_its_own_user_only(
    names: tuple[str, ...], name: str, comes_in: bool
) -> None:
    made = door()
    decided = made.at_once(entered(made, *names), Credentials("EXTERNAL", name))
    who = decided.user
    assert (who is not None and who.name == "bob") is comes_in
    assert decided.reason


def test_what_is_offered_depends_on_the_listener_and_on_the_certificate() -> None:
    made = door(anonymous=True)
    plain = made.enter("10.0.0.1", False)
    assert made._mechanisms(plain) == ("PLAIN", "ANONYMOUS")
    assert made._mechanisms(entered(made)) == ("PLAIN", "ANONYMOUS")
    assert made._mechanisms(entered(made, "any")) == ("EXTERNAL", "PLAIN", "ANONYMOUS")
    made = gate(user("ann"), plain_without_tls=False, anonymous=True)
    assert made._mechanisms(made.enter("10.0.0.1", False)) == ("ANONYMOUS",)


async def test_a_password_that_was_right_is_known_at_once_the_next_time() -> None:
    made = door()
    asked = Credentials("PLAIN", "ann", SECRET)
    assert made.at_once(made.enter("10.0.0.1", False), asked) is None
    found = (await made.check("10.0.0.1", asked)).user
    assert found is not None
    known = made.at_once(made.enter("10.0.0.1", False), asked)
    assert known.user is found
    made.close()
    made.close()


def test_who_has_left_makes_room() -> None:
    made = gate(limits={"connections_per_user": 1, "connections_per_address": 2})
    who = User("ann")
    first, second = (made.enter("10.0.0.1", False) for _ in range(2))
    assert made.full("10.0.0.1")
    assert not made.full("10.0.0.2")
    made.welcome(first, who)
    made.welcome(second, who)
    assert not first.excess
    assert second.excess == "user ann has 1 connections already"
    made.leave(second)
    assert not made.full("10.0.0.1")
    made.leave(first)
    assert not made.by_user
    assert not made.by_address


async def test_who_fails_too_often_is_not_heard_on_connections_that_are_there_either() -> None:
    made = gate(user("ann"), plain_without_tls=True, limits={"failed_logins": 2})
    right = Credentials("PLAIN", "ann", SECRET)
    guesses = [made.enter("10.0.0.1", False) for _ in range(4)]
    for each in guesses[:2]:
        made.failed(each)
    late = made.at_once(guesses[2], right)
    assert (late.user, late.temporary) == (None, True)
    waiting = await made.check("10.0.0.1", right)  # asked before the others had failed
    assert (waiting.user, waiting.temporary) == (None, True)
    assert (await made.check("10.0.0.2", right)).user is not None
    made.close()


async def test_an_address_that_fills_the_queue_of_passwords_makes_room_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = gate(user("ann"), plain_without_tls=True)
    made._checks = FairPool(4)
    wrong = Credentials("PLAIN", "ann", "wrong")
    slow, verify = threading.Event(), made.users.by_password

    def by_password(name: str, password: str) -> User | None:
        assert slow.wait(PATIENCE_S)
        return verify(name, password)

    monkeypatch.setattr(made.users, "by_password", by_password)
    guesses = [asyncio.create_task(made.check("10.0.0.1", wrong)) for _ in range(9)]
    await asyncio.sleep(0)
    right = asyncio.create_task(made.check("10.0.0.2", Credentials("PLAIN", "ann", SECRET)))
    await asyncio.sleep(0)
    slow.set()
    assert (await right).user is not None
    outcomes = [await each for each in guesses]
    assert sum(each.temporary for each in outcomes) == 9 - 1 - 3
    assert {each.reason for each in outcomes} == {BUSY, "wrong user or password"}
    made.close()
