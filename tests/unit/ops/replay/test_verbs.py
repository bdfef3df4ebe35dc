"""The verbs of a replay that runs, with a player in whose place a test decides."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.ops.replay.verbs import ReplayVerbs

PATIENCE_S = 60.0


class SlowPlayer:
    """A player whose seeks end when the test says so."""

    def __init__(self) -> None:
        self.ended = False
        self.found: list[int] = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, _timeout_s: float) -> bool:
        return self.ended

    def stop(self) -> None:
        self.ended = True

    def seek(self, at_ns: int) -> int:
        self.begun.release()
        assert self.go_on.acquire(timeout=PATIENCE_S)
        if self.ended:
            raise UsageError("the run has ended")
        self.found.append(at_ns)
        return at_ns

    def progress(self) -> Any:
        names = ("elapsed_ns", "left_ns", "share_done", "sent", "payload_bytes", "lateness_ns",
                 "datagrams_per_second", "lateness_max_ns", "position_ns")  # fmt: skip
        return SimpleNamespace(paused=False, **dict.fromkeys(names, 0))


async def has_begun(player: SlowPlayer) -> None:
    assert await asyncio.to_thread(player.begun.acquire, timeout=PATIENCE_S)


def verbs_of(player: Any) -> dict[str, Any]:
    return ReplayVerbs(player, "x.pcap", 0, "UTC").table()


async def test_a_replay_is_stopped_while_a_seek_is_under_way() -> None:
    player = SlowPlayer()
    verbs = verbs_of(player)
    seek = asyncio.ensure_future(verbs["seek"]({"to": "+1"}))
    await has_begun(player)
    assert verbs["status"]({})["state"] == "playing"
    assert verbs["stop"]({})["state"] == "ended"
    assert not seek.done()
    player.go_on.release()
    with pytest.raises(UsageError, match="the run has ended"):
        await seek


async def test_seeks_are_carried_out_in_the_order_in_which_they_came() -> None:
    player = SlowPlayer()
    verbs = verbs_of(player)
    seeks = [asyncio.ensure_future(verbs["seek"]({"to": f"+{n}"})) for n in (2, 1)]
    for _ in seeks:
        await has_begun(player)
        assert not player.begun.acquire(blocking=False)
        player.go_on.release()
    answers = await asyncio.gather(*seeks)
    assert player.found == [each["position_ns"] for each in answers] == [2 * 10**9, 10**9]
