"""Membership of a retransmission group that is joined only when needed."""

import pytest

from feedhandler.fixcast.membership import LINGER_NS, Membership
from feedhandler.retrans.fix.server import NEVER


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(False, 0)], [False]),
        ([(True, 0)], [True]),
        ([(True, 0), (False, 5)], [True, True]),
        ([(True, 0), (False, 5), (False, 4 + LINGER_NS)], [True, True, True]),
        ([(True, 0), (False, 5), (False, 5 + LINGER_NS)], [True, True, False]),
        ([(True, 0), (False, 5), (True, 5 + LINGER_NS)], [True, True, True]),
        ([(True, 0), (False, 5), (True, 9), (False, 10), (False, 9 + LINGER_NS)], [True] * 5),
        ([(True, 0), (True, 3 * LINGER_NS)], [True, True]),
    ],
)
def test_it_is_joined_while_something_is_missing_and_a_while_longer(looks, expected):
    membership = Membership()
    assert [membership.update(*each) for each in looks] == expected


def test_it_wants_to_look_again_when_the_wait_is_over():
    membership = Membership(10)
    assert membership.deadline_ns == NEVER
    membership.update(True, 0)
    assert membership.deadline_ns == NEVER
    membership.update(False, 7)
    assert membership.deadline_ns == 17
    membership.update(False, 17)
    assert (membership.deadline_ns, membership.joins) == (NEVER, 1)
    membership.update(True, 20)
    assert membership.joins == 2
