"""Users, what is theirs, their passwords, and who has tried too often."""

import random
from typing import Any

import pytest

from feedhandler.amqp import users as module
from feedhandler.amqp.routing import AddressError, Subscription, parse_address
from feedhandler.amqp.users import (
    EVERYTHING,
    SCRYPT_BYTES_MAX,
    THROTTLED_MAX,
    Entitlement,
    RateLimit,
    Throttle,
    User,
    Users,
    admit,
    entitlement_of,
    hash_password,
    parse_hash,
    verify,
)
from tests.support.patterns import matches

FEEDS, SERVICES, SYMBOLS = ("iex", "nyse"), ("1", "2", "3"), ("AAPL", "MSFT", "MS", "-", "9")
WORDS = {
    "feed": [*FEEDS, "*", "#", "cme"],
    "service": [*SERVICES, "*", "#", "7"],
    "symbol": [*SYMBOLS, "*", "#", "IBM"],
}


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCRYPT_N", 16)


def asked(address: str) -> Subscription:
    return parse_address(address, int)


def entitled(*services: str, symbols: tuple[str, ...] = ("*",)) -> Entitlement:
    return entitlement_of(services, symbols)


# -- entitlements ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("services", "symbols", "key", "allowed"),
    [
        (("iex.1",), ("*",), ("iex", "1", "AAPL"), True),
        (("iex.1",), ("*",), ("iex", "1", "-"), True),
        (("iex.1",), ("*",), ("iex", "2", "AAPL"), False),
        (("iex.*",), ("AAPL",), ("iex", "2", "AAPL"), True),
        (("iex.*",), ("AAPL",), ("iex", "2", "-"), False),
        (("iex.*",), ("AAPL", "-"), ("iex", "2", "-"), True),
        (("*.1", "nyse.2"), ("MS*",), ("nyse", "2", "MSFT"), True),
        (("*.1", "nyse.2"), ("MS*",), ("nyse", "3", "MSFT"), False),
        (("#",), ("MS*",), ("nyse", "3", "AAPL"), False),
    ],
)
def test_what_is_granted_is_allowed_and_nothing_else(
    services: tuple[str, ...], symbols: tuple[str, ...], key: tuple[str, str, str], allowed: bool
) -> None:
    user = User("ann", entitlement_of(services, symbols))
    assert user.allows(*key) is allowed


@pytest.mark.parametrize(
    ("services", "symbols"),
    [
        (("iex",), ("*",)),
        (("iex.",), ("*",)),
        (("iex.1.AAPL",), ("*",)),
        (("iex.#",), ("*",)),
        (("iex.1*",), ("*",)),
        (("iex.1",), ("",)),
        (("iex.1",), ("A.B",)),
        (("iex.1",), ("*A",)),
        (("iex.1",), ("#",)),
    ],
)
def test_what_is_no_entitlement_is_said_so(
    services: tuple[str, ...], symbols: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        entitlement_of(services, symbols)


def random_entitlement(chance: random.Random) -> Entitlement:
    services = tuple(
        f"{chance.choice((*FEEDS, '*'))}.{chance.choice((*SERVICES, '*'))}"
        for _ in range(chance.randrange(1, 3))
    )
    symbols = tuple(
        chance.choice((*SYMBOLS, "*", "M*", "MS*", "A*")) for _ in range(chance.randrange(1, 3))
    )
    return entitlement_of(services, symbols)


def random_pattern(chance: random.Random) -> tuple[str, ...]:
    if chance.random() < 0.2:
        return tuple(chance.choice(("#", "*", "iex", "1")) for _ in range(chance.randrange(1, 6)))
    kinds = ("feed", "service", "symbol")[: chance.randrange(2, 4)]
    return tuple(chance.choice(WORDS[kind]) for kind in kinds)


def test_admission_and_delivery_agree_with_every_key_tried(seed: int) -> None:
    chance = random.Random(seed)
    keys = [(f, s, y) for f in FEEDS for s in SERVICES for y in (*SYMBOLS, "MSX", "AB")]
    for _ in range(600):
        entitlement, pattern = random_entitlement(chance), random_pattern(chance)
        wanted = Subscription((pattern,))
        got = [
            key
            for key in keys
            if (matches(pattern, key) or matches(pattern, key[:2])) and entitlement.allows(*key)
        ]
        if not entitlement.meets(pattern):
            assert not got, (entitlement, pattern)
            continue
        narrow, narrowed = admit(User("ann", entitlement), wanted)
        assert [key for key in keys if narrow.wants_symbol(*key)] == got
        for feed, service, _ in keys:
            whole = narrow.wants_service(feed, service)
            if whole:
                assert all(narrow.wants_symbol(feed, service, s) for s in (*SYMBOLS, "MSX"))
            named = narrow.named(feed, service)
            mine = {key[2] for key in got if key[:2] == (feed, service)}
            assert narrow.concerns(feed, service) or not mine
            assert named is None or mine <= named
            assert entitlement.concerns(feed, service) or not narrow.concerns(feed, service)
        if not narrowed:
            missed = [key for key in keys if wanted.wants_symbol(*key) and key not in got]
            assert not missed, (entitlement, pattern)


def test_a_user_who_may_have_everything_costs_the_routing_nothing() -> None:
    wanted = asked("iex.1,#?as=message")
    assert admit(User("ann"), wanted) == (wanted, False)
    assert admit(User("ann", entitled("#")), wanted)[0].entitlement is None
    assert EVERYTHING.covers(("#",))


@pytest.mark.parametrize(
    ("address", "narrowed"),
    [
        ("iex.1", False),
        ("iex.1.AAPL", False),
        ("iex.1.#", False),
        ("#", True),
        ("iex.*", True),
        ("*.1", True),
        ("iex.#", True),
    ],
)
def test_a_pattern_that_reaches_further_is_narrowed(address: str, narrowed: bool) -> None:
    user = User("ann", entitled("iex.1"))
    got, less = admit(user, asked(address))
    assert less is narrowed
    assert got.entitlement == user.entitlement


@pytest.mark.parametrize(
    ("address", "narrowed"),
    [("iex.1", True), ("iex.1.AAPL", False), ("iex.1.*", True), ("iex.*.AAPL", True)],
)
def test_a_service_is_narrowed_to_the_users_symbols(address: str, narrowed: bool) -> None:
    user = User("ann", entitled("iex.1", symbols=("AAPL", "MS*")))
    assert admit(user, asked(address))[1] is narrowed


@pytest.mark.parametrize(
    "address",
    ["iex.2", "nyse.1", "iex.1.IBM", "iex.1,iex.2", "cme.#", "*.2", "iex.1.AAPL.x", "#.IBM", "iex"],
)
def test_a_pattern_outside_is_refused_with_what_is_not_allowed(address: str) -> None:
    user = User("ann", entitled("iex.1", symbols=("AAPL", "MS*")))
    with pytest.raises(AddressError) as refusal:
        admit(user, asked(address))
    assert refusal.value.condition == "amqp:unauthorized-access"
    assert refusal.value.message == f"user ann is not entitled to {address.split(',')[-1]}"


def test_a_pattern_of_many_wildcards_is_judged_quickly() -> None:
    entitlement = entitled(*(f"iex.{n}" for n in range(200)), symbols=("A",))
    assert entitlement.meets(("#",) * 16)
    assert not entitlement.meets((*("#",) * 15, "B"))


# -- passwords ------------------------------------------------------------------------------


def test_a_password_is_known_by_its_hash_and_two_hashes_of_it_differ() -> None:
    first, second = hash_password("secret"), hash_password("secret")
    assert first != second
    assert "secret" not in first
    assert verify("secret", first)
    assert not verify("Secret", first)
    assert not verify("", first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("secret", "no hash"),
        ("scrypt$16$8$1$c2FsdA==", "no hash"),
        ("bcrypt$16$8$1$c2FsdA==$a2V5", "no hash"),
        ("scrypt$15$8$1$c2FsdA==$a2V5", "no hash"),
        ("scrypt$1$8$1$c2FsdA==$a2V5", "no hash"),
        ("scrypt$16$0$1$c2FsdA==$a2V5", "no hash"),
        ("scrypt$16$8$0$c2FsdA==$a2V5", "no hash"),
        ("scrypt$x$8$1$c2FsdA==$a2V5", "no hash"),
        ("scrypt$16$8$1$?$a2V5", "no hash"),
        ("scrypt$16$8$1$$a2V5", "no hash"),
        ("scrypt$16777216$8$1$c2FsdA==$a2V5", f"{SCRYPT_BYTES_MAX >> 20} MiB"),
    ],
)
def test_what_is_no_hash_is_refused_without_being_shown(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        parse_hash(text)
    assert "c2FsdA" not in str(error.value)


def people(anonymous: bool = False) -> Users:
    return Users(
        [
            User("ann", password=hash_password("secret")),
            User("bob", certificate="bob.example"),
            User("eve", certificate="eve@example"),
        ],
        anonymous,
    )


def test_the_right_password_finds_the_user_and_is_known_again() -> None:
    users = people()
    assert users.passwords
    assert users.remembered("ann", "secret") is None
    found = users.by_password("ann", "secret")
    assert found.name == "ann"
    assert users.remembered("ann", "secret") is found
    assert users.remembered("ann", "Secret") is None
    assert users.remembered("bob", "secret") is None


@pytest.mark.parametrize(
    ("name", "password"),
    [("ann", "wrong"), ("ann", ""), ("nobody", "secret"), ("bob", ""), ("ann", "s" * 5000)],
)
def test_a_wrong_password_and_a_user_that_is_not_there_cost_the_same(
    name: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = people()
    costs: list[tuple[Any, ...]] = []
    real = module._scrypt
    monkeypatch.setattr(
        module, "_scrypt", lambda *of: (costs.append((*of[2:5], len(of[1]))), real(*of))[1]
    )
    assert users.by_password(name, password) is None
    assert [cost[:3] for cost in costs] == [(16, 8, 1)]
    assert users.by_password(name, password) is None
    assert costs[0] == costs[1]


def test_no_user_has_a_password_where_none_is_configured() -> None:
    users = Users([], True)
    assert not users.passwords
    assert not users.certificates
    assert users.by_password("ann", "secret") is None
    assert users.anonymous == User("anonymous")


def test_anonymous_is_who_is_called_so_and_only_where_that_is_configured() -> None:
    limited = User("anonymous", entitled("iex.1"))
    assert Users([limited], True).anonymous is limited
    assert Users([limited], False).anonymous is None
    assert people().anonymous is None


def test_a_certificate_stands_for_one_user_or_for_none() -> None:
    users = people()
    assert users.certificates
    bob = users.by_certificate(["desk 7", "bob.example"])
    assert bob.name == "bob"
    assert users.by_certificate(["bob.example", "bob.example"]) is bob
    assert users.by_certificate(["nobody.example"]) is None
    assert users.by_certificate([]) is None
    assert users.by_certificate(["bob.example", "eve@example"]) is None


def test_a_users_hash_is_in_no_text() -> None:
    user = User("ann", password=hash_password("secret"))
    assert "scrypt" not in repr(user)


# -- who has tried too often ------------------------------------------------------------------

SECOND = 1_000_000_000


def test_who_fails_too_often_is_not_heard_for_a_while() -> None:
    throttle = Throttle(3, 60 * SECOND)
    assert not throttle.shut("10.0.0.1", 0)
    for second in range(3):
        assert not throttle.shut("10.0.0.1", second * SECOND)
        throttle.failed("10.0.0.1", second * SECOND)
    assert throttle.shut("10.0.0.1", 3 * SECOND)
    assert throttle.shut("10.0.0.1", 59 * SECOND)
    assert not throttle.shut("10.0.0.2", 3 * SECOND)
    assert not throttle.shut("10.0.0.1", 60 * SECOND)
    throttle.failed("10.0.0.1", 61 * SECOND)
    throttle.failed("10.0.0.1", 130 * SECOND)
    assert not throttle.shut("10.0.0.1", 131 * SECOND)


def test_failures_of_any_number_of_addresses_take_bounded_room() -> None:
    throttle = Throttle(1, 60 * SECOND)
    for number in range(THROTTLED_MAX + 10):
        throttle.failed(str(number), number)
    assert not throttle.shut("9", 10_000)
    assert throttle.shut("10", 10_000)
    assert throttle.shut(str(THROTTLED_MAX + 9), 10_000)


def test_a_bucket_lets_so_many_a_second_through_and_twice_as_many_at_once() -> None:
    bucket = RateLimit(10, 0)
    assert sum(bucket.try_acquire(0) for _ in range(100)) == 20
    assert sum(bucket.try_acquire(SECOND // 2) for _ in range(100)) == 5
    assert sum(bucket.try_acquire(100 * SECOND) for _ in range(100)) == 20


def test_a_bucket_without_a_bound_lets_everything_through() -> None:
    bucket = RateLimit(0, 0)
    assert all(bucket.try_acquire(0) for _ in range(1000))
