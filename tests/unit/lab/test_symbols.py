"""Clients that want some symbols: what they want is drawn by popularity, what they get is known."""

import numpy as np
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.lab import symbols as module
from feedhandler.lab.replayer import generated
from feedhandler.lab.symbols import WorkloadSymbols
from feedhandler.lab.workload import Stretch, Workload, workload_of

UTP = load_feed("euronext-utp-md")
IEX = load_feed("iex-deep")


def utp(sequence: int, service: int, *symbols: int) -> tuple[int, bytes]:
    messages = [
        UTP.encode_message(230, symbol_index=symbol, price=100, price_scale_code=2)
        for symbol in symbols
    ]
    return 0, UTP.encode_packet(sequence=sequence, service=service, messages=messages)


@pytest.fixture
def workload() -> Workload:
    """Symbol 7 in two services, 8 and 9 in one each."""
    return workload_of(
        UTP, [utp(1, 104, 7, 7, 8), utp(1, 105, 9), utp(2, 104, 8), utp(2, 105, 7, 9)]
    )


def test_each_packet_brings_a_client_what_it_has_of_its_symbols(workload: Workload) -> None:
    known = WorkloadSymbols(workload)
    assert (known.words, known.messages.tolist()) == (["7", "8", "9"], [3, 2, 2])
    assert known.wanted(np.array([0])).tolist() == [2, 0, 0, 1]
    assert known.wanted(np.array([1, 2])).tolist() == [1, 1, 1, 1]


def test_direct_names_each_key_there_is_and_topic_each_symbol(workload: Workload) -> None:
    known = WorkloadSymbols(workload)
    assert known.patterns(np.array([0, 1]), "topic") == "euronext.*.7,euronext.*.8"
    assert known.patterns(np.array([0, 1]), "direct") == (
        "euronext.104.7,euronext.105.7,euronext.104.8"
    )


def test_what_such_a_client_must_get_is_known_beforehand(workload: Workload) -> None:
    wanted = WorkloadSymbols(workload).wanted(np.array([0]))
    bases = np.array([10, 20])
    # Two passes, by service: packets 10 .. 13 of 104, 20 .. 23 of 105.
    whole = workload.expect(Stretch(8, 0), bases, messages=False, wanted=wanted)
    assert whole.counts.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]
    single = workload.expect(Stretch(8, 0), bases, messages=True, wanted=wanted)
    assert single.counts.tolist() == [2, 0, 2, 0, 0, 1, 0, 1]


def test_a_choice_follows_seed_and_client_and_prefers_what_trades_most(seed: int) -> None:
    known = WorkloadSymbols(workload_of(UTP, generated(UTP, seed=1, messages=20_000)))
    drawn = known.choose("5%", seed, 3)
    assert drawn is not None
    assert len(drawn) == round(0.05 * len(known.words))
    again, other = known.choose("5%", seed, 3), known.choose("5%", seed, 4)
    assert again is not None
    assert other is not None
    assert again.tolist() == drawn.tolist() != other.tolist()
    assert known.choose("all", seed, 3) is None
    # Drawn blindly, a client would have a mean share; over many clients the drawn have more.
    means = [known.messages[known.choose("5%", seed, n)].mean() for n in range(20)]
    assert np.mean(means) > known.messages.mean()


def test_a_workload_larger_than_one_look_is_looked_at_in_parts(
    monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    monkeypatch.setattr(module, "INDEX_MESSAGES", 3)
    assert WorkloadSymbols(workload).messages.tolist() == [3, 2, 2]


def test_symbols_that_are_text_are_words_of_keys() -> None:
    body = IEX.encode_message("T", symbol="BRK.B", size=1, price=1, trade_id=1, timestamp=1)
    known = WorkloadSymbols(workload_of(IEX, [(0, IEX.encode_packet(sequence=1, messages=[body]))]))
    assert known.words == ["BRK_B"]


def test_where_nothing_has_a_symbol_it_is_said() -> None:
    body = IEX.encode_message("S", system_event="O", timestamp=1)
    workload = workload_of(IEX, [(0, IEX.encode_packet(sequence=1, messages=[body]))])
    with pytest.raises(UsageError, match="no message has a symbol"):
        WorkloadSymbols(workload)
