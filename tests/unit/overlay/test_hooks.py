"""Hooks of the overlay without the kernel: layouts, seals, the twin's rules, refusals."""

import random
import re
from collections.abc import Sequence

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.hooks import abi, attaching, compiling
from feedhandler.overlay.hooks.abi import COUNTERS, Settings
from feedhandler.overlay.hooks.attaching import Request, refusal, settings_of
from feedhandler.overlay.hooks.twin import Deduplicator, Verdict, encode, siphash

C_SOURCE = compiling.SOURCE.read_text()
KEY = bytes(range(16))
GROUP = ("239.77.0.1", 5000)
ALL = (1 << 41) - 1


def test_counters_are_those_of_the_c_program_in_its_order() -> None:
    names = re.findall(r"^    COUNT_(\w+),", C_SOURCE, re.MULTILINE)
    assert tuple(name.lower() for name in names) == COUNTERS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OVERLAY_BYTES", abi.HEADER_BYTES),
        ("PAYLOAD_MAX", abi.PAYLOAD_MAX),
        ("TARGETS_MAX", abi.TARGETS_MAX),
    ],
)
def test_constants_are_those_of_the_c_program(name: str, value: int) -> None:
    match = re.search(rf"^#define {name} (\d+)", C_SOURCE, re.MULTILINE)
    assert match is not None
    assert int(match[1]) == value


@pytest.mark.parametrize(
    ("length", "expected"),
    # From the vectors of SipHash's authors: data is 00 01 02 .., the key 00 to 0f.
    [(0, 0x726FDB47DD0E0E31), (8, 0x93F5F5799A932462), (15, 0xA129CA6149BE45E5)],
)
def test_the_seal_is_siphash_2_4(length: int, expected: int) -> None:
    assert siphash(KEY, bytes(range(length))) == expected


def test_settings_and_targets_come_back_as_they_were_written() -> None:
    settings = Settings(("10.0.0.1", 6000), 7, 2, GROUP, 3, 1300, 1 << 63, 5, -37, KEY, 1024)
    assert Settings.unpack(settings.pack()) == settings
    assert abi.unpack_target(abi.pack_target(GROUP)) == GROUP


@pytest.mark.parametrize(("rate", "slots"), [(1, 1), (2, 2), (3, 4), (1000, 1024), (1024, 1024)])
def test_slots_are_the_power_of_two_not_below_the_rate(rate: int, slots: int) -> None:
    assert abi.slots_for(rate) == slots


FIRST, AGAIN, BELOW, OLD = (
    Verdict.FIRST,
    Verdict.DUPLICATE,
    Verdict.VIOLATION,
    Verdict.OLD_EPOCH,
)


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        pytest.param([(1, 1), (1, 1), (1, 2), (1, 1)], [FIRST, AGAIN, FIRST, AGAIN], id="copies"),
        pytest.param([(1, 2), (1, 1)], [FIRST, FIRST], id="another order"),
        pytest.param([(1, 5), (1, 1)], [FIRST, BELOW], id="a slot that went on"),
        pytest.param([(1, 9), (2, 1), (2, 1)], [FIRST, FIRST, AGAIN], id="a restart"),
        pytest.param([(2, 1), (1, 2), (1, 9)], [FIRST, OLD, OLD], id="an epoch that is over"),
    ],
)
def test_slots_of_four(offered: Sequence[tuple[int, int]], expected: Sequence[Verdict]) -> None:
    twin = Deduplicator(tree=7, slots=4)
    assert [twin.judge(encode(7, epoch, id, b"x")) for epoch, id in offered] == list(expected)
    assert twin.restarts == (1 if {epoch for epoch, _ in offered} == {1, 2} else 0) - (
        offered[0][0] == 2
    )


def test_no_id_is_accepted_twice_whatever_the_order(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        twin = Deduplicator(tree=1, slots=1 << draw.randrange(8))
        accepted = []
        for _ in range(100):
            key = draw.randrange(1, 4), draw.randrange(1, 64)
            if twin.judge(encode(1, *key, b"")) is Verdict.FIRST:
                accepted.append(key)
        assert len(accepted) == len(set(accepted))
        epochs = [epoch for epoch, _ in accepted]
        assert epochs == sorted(epochs)


@pytest.mark.parametrize(
    ("held", "says"),
    [
        pytest.param(0, "CAP_BPF", id="nothing"),
        pytest.param(1 << 12, "CAP_BPF", id="net admin"),
        pytest.param(1 << 39 | 1 << 38, "CAP_BPF", id="bpf alone"),
    ],
)
def test_without_privilege_one_line_says_so_and_what_helps(held: int, says: str) -> None:
    found = refusal(held)
    assert found is not None
    assert says in found[0]
    assert "overlay send" in found[1]
    assert not any("\n" in part for part in found)


def test_what_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching.libbpf, "library", lambda: None)
    monkeypatch.setattr(attaching.shutil, "which", lambda name: None)
    assert refusal(ALL) == ("hooks need clang to be compiled", compiling.PACKAGES)

    def missing() -> None:
        raise OSError("libbpf.so.1: no such file")

    monkeypatch.setattr(attaching.libbpf, "library", missing)
    found = refusal(ALL)
    assert found is not None
    assert "libbpf" in found[0]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"role": "relay"}, "no role"),
        ({"mode": "fast"}, "no mode"),
        ({"to": ()}, "addresses to go to"),
        ({"to": [(f"10.0.1.{at}", 1) for at in range(65)]}, "addresses to go to"),
        ({"to": [GROUP]}, "there twice"),
        ({"to": [("10.0.0.2", 1), ("10.0.0.2", 1)]}, "there twice"),
        ({"key": b"short"}, "a key of 5 bytes"),
        ({"slots": 3}, "slots"),
        ({"slots": abi.SLOTS_MAX * 2}, "slots"),
        ({"match": ("0.0.0.0", 5000)}, "any address"),
        ({"device": "no-such-device"}, "no interface"),
        ({"role": "receive", "to": [GROUP, ("10.0.0.2", 1)]}, "addresses to go to"),
    ],
)
def test_requests_that_are_refused(changed: dict[str, object], says: str) -> None:
    good: dict[str, object] = {
        "role": "send",
        "device": "lo",
        "match": GROUP,
        "to": [("10.0.0.2", 6000)],
        "tree": 1,
    }
    with pytest.raises(UsageError, match=says) as caught:
        settings_of(Request(**{**good, **changed}))  # type: ignore[arg-type]
    assert caught.value.hint


def test_without_clang_compiling_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="clang") as caught:
        compiling.object_file()
    assert "apt-get" in caught.value.hint
