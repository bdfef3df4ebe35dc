"""Control of a running replay: its verbs, and the socket that takes them.

The protocol is that of the gateway's control socket (`rpc`). Verbs: `status`, `pause`, `resume`,
`seek` (with `to`, a moment as `--from` takes it) and `stop`. Each answers with the status after it.
The effect is complete when the answer comes: after `pause` nothing is sent, after `seek` nothing
from before it, after `stop` nothing at all.

A player's threads have no event loop, so the socket has a thread with a loop of its own. A seek may
read for long: it runs on a thread, and the other verbs are answered meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from feedhandler.addresses import is_endpoint
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.replay.playing.player import Player
from feedhandler.replay.playing.time_spec import EXAMPLES, parse_time_spec, rfc3339_text
from feedhandler.rpc import ControlSocket, Verb
from feedhandler.side_loop import SideLoop
from feedhandler.terminal.console import in_daemon_thread

#: The option that gives the endpoint, named in errors about it.
SETTING = "--control"
#: How long `stop` waits for the last datagram that may be on its way.
STOP_WAIT_S = 1.0


class ReplayVerbs:
    """The verbs of a running replay.

    `title` names what is played, `start_ns` is the recorded time of its first datagram and `zone`
    the time zone that times of day are meant in.
    """

    def __init__(self, player: Player, title: str, start_ns: int, zone: str) -> None:
        self._player = player
        self._title = title
        self._start_ns = start_ns
        self._zone = zone
        self._seeking = asyncio.Lock()  # one seek after the other, as they came

    def table(self) -> dict[str, Verb]:
        """Return the verbs by name."""
        return {
            "status": lambda _request: self.status(),
            "pause": lambda _request: self._after(self._player.pause),
            "resume": lambda _request: self._after(self._player.resume),
            "seek": self._seek,
            "stop": lambda _request: self._after(self._stop),
        }

    def status(self) -> dict[str, Any]:
        """Return the replay's state, position and counts."""
        progress = self._player.progress()
        ended = self._player.wait(0)
        state = "ended" if ended else "paused" if progress.paused else "playing"
        position = progress.position_ns
        return {
            "state": state,
            "playing": self._title,
            "position": rfc3339_text(position) if position is not None else None,
            "position_ns": position,
            "elapsed_ns": progress.elapsed_ns,
            "left_ns": progress.left_ns,
            "share_done": progress.share_done,
            "sent": progress.sent,
            "payload_bytes": progress.payload_bytes,
            "datagrams_per_second": progress.datagrams_per_second,
            "lateness_ns": progress.lateness_ns,
            "lateness_max_ns": progress.lateness_max_ns,
        }

    def _after(self, act: Callable[[], object]) -> dict[str, Any]:
        if self._player.wait(0):
            raise UsageError("the run has ended", "start it again")
        act()
        return self.status()

    def _stop(self) -> None:
        self._player.stop()
        self._player.wait(STOP_WAIT_S)

    async def _seek(self, request: Mapping[str, Any]) -> dict[str, Any]:
        text = request.get("to")
        if not isinstance(text, str):
            raise UsageError("nowhere to go to", 'say {"do": "seek", "to": T}; ' + EXAMPLES)
        at_ns = parse_time_spec(text).at_ns(self._start_ns, self._zone)
        async with self._seeking:
            first_ns = await in_daemon_thread(lambda: self._player.seek(at_ns))
        return {**self.status(), "position": rfc3339_text(first_ns), "position_ns": first_ns}


class ReplayControl:
    """A control socket at `bind` on a thread of its own, open while the context lasts.

    Raises `ConfigError` where the endpoint cannot be bound. `endpoint` is where it is bound.
    """

    def __init__(self, bind: str, verbs: Mapping[str, Verb]) -> None:
        if not is_endpoint(bind):
            hint = "for example ipc:///tmp/replay or tcp://127.0.0.1:5573"
            raise ConfigError(f"{SETTING}: {bind!r} is no ZeroMQ endpoint", hint)
        self.endpoint = bind
        self._verbs = verbs
        self._side = SideLoop(self._answering, "replay-control")

    def __enter__(self) -> "ReplayControl":
        self.endpoint = self._side.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._side.__exit__(*error)

    @contextlib.asynccontextmanager
    async def _answering(self) -> AsyncIterator[str]:
        control = ControlSocket(self.endpoint, self._verbs, SETTING)
        control.open()
        try:
            yield control.endpoint
        finally:
            await control.closed()  # not for the thread of a seek: its answer is not needed
