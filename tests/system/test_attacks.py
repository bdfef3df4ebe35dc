"""One client's nonsense harms no other client: a gateway process with a feed and a good
subscriber, and beside it each attack of `tests/support/attacks.py`, a round of it.

Whatever the attack, the good subscriber gets every packet in order, the gateway keeps within the
sum of its bounds, no error of ours comes up, and nothing of the attacker is left. How late
deliveries are meanwhile, with log-ins that cost what they do, is `make attacks`'.
"""

from collections.abc import Iterator

import pytest

from tests.support.attack_rig import AttackRig
from tests.support.attacks import ATTACKS
from tests.support.security import cheap_hash


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackRig]:
    with AttackRig(tmp_path_factory.mktemp("attacked"), hashed=cheap_hash) as rig:
        yield rig


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_harms_no_other_client(rig: AttackRig, name: str) -> None:
    assert not rig.attack(name).problems
