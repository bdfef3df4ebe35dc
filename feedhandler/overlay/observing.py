"""Monitoring of a member: metrics and health over HTTP, status on a control socket.

Both are served by a thread with its own event loop (`side_loop`), which only reads what the
member's thread counts. A member is live while its loop turns, and ready once something from its
tree's sender has come recently: heartbeats are ten a second.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from feedhandler.addresses import is_endpoint, split_address
from feedhandler.codecs.errors import ConfigError
from feedhandler.observe import metrics
from feedhandler.observe.metrics import Gathering, Reading
from feedhandler.observe.web import Answer, WebServer, verdict
from feedhandler.overlay.members import Receiver
from feedhandler.overlay.readings import counts_of, gauges_of, parts_of
from feedhandler.overlay.running import Loop
from feedhandler.overlay.topology import Member
from feedhandler.rpc import ControlSocket, kept
from feedhandler.side_loop import SideLoop

METRICS, CONTROL = "--metrics", "--control"
#: A loop that has not turned for this long counts as standing still.
STILL_NS = 5_000_000_000
#: Silence of the sender, ten heartbeats, after which the member is cut off or the sender gone.
SILENT_SECONDS = 1.0
_SCOPES = ("overlay_member", "control", "web")


class MemberWatch:
    """Monitoring of one member: `readings` are its metrics, `snapshot` its status.

    `serving` serves both.
    """

    def __init__(self, me: Member, loop: Loop) -> None:
        self.me = me
        self._loop = loop
        self._web: WebServer | None = None
        self._control: ControlSocket | None = None

    def readings(self) -> Iterator[Reading]:
        """Yield what the member counts and measures, in each of its trees."""
        for tree in self._trees():
            labels = str(tree.pop("tree")), self.me.name
            yield Reading("overlay_member", tree, labels)
        if self._control is not None:
            yield Reading("control", self._control.counts)
        if self._web is not None:
            yield Reading("web", self._web.counts())

    def _trees(self) -> Iterator[dict[str, Any]]:
        now_ns = time.time_ns()
        for index, part in enumerate(parts_of(self._loop.member)):
            counts = counts_of(part, None if index else self._loop.port)
            yield {"tree": part.topology.tree, **gauges_of(part, now_ns), **counts}

    def not_live(self) -> list[str]:
        """Return the reasons why the member is not live."""
        still_ns = abs(time.time_ns() - self._loop.turned_ns)
        return [f"its loop stands still for {still_ns / 1e9:.0f} s"] if still_ns > STILL_NS else []

    def not_ready(self) -> list[str]:
        """Return the reasons why the member is not ready."""
        silent = [(each["tree"], each.get("silent_seconds", 0.0)) for each in self._trees()]
        return self.not_live() + [
            f"tree {tree}: nothing of the sender for {seconds:.0f} s"
            for tree, seconds in silent
            if seconds > SILENT_SECONDS
        ]

    def snapshot(self) -> dict[str, Any]:
        """Return the `status` of the control socket."""
        parts = parts_of(self._loop.member)
        apart = {n for part in parts if not isinstance(part, Receiver) for n in part.reports.apart}
        return {
            "member": self.me.name,
            "role": self.me.role,
            "address": f"{self.me.address[0]}:{self.me.address[1]}",
            "not_live": self.not_live(),
            "not_ready": self.not_ready(),
            "set_apart": sorted(apart),
            "trees": list(self._trees()),
        }

    # -- serving ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def serving(self, address: str, endpoint: str) -> Iterator[None]:
        """Serve metrics at `address` (host:port) and the control socket at `endpoint`; "": not.

        Raises `ConfigError` where one is invalid or cannot be used.
        """
        if endpoint and not is_endpoint(endpoint):
            hint = "for example ipc:///run/proxy.ipc or tcp://127.0.0.1:5574"
            raise ConfigError(f"{CONTROL}: {endpoint!r} is no ZeroMQ endpoint", hint)
        if address:
            try:
                listen = split_address(address)
            except ValueError as error:
                raise ConfigError(f"{METRICS}: {error}", "for example 127.0.0.1:9464") from None
            pages = {"/metrics": self._metrics, "/live": self._live, "/ready": self._ready}
            self._web = WebServer(listen, pages, setting=METRICS)
        if endpoint:
            self._control = ControlSocket(endpoint, {"status": kept(self.snapshot)}, CONTROL)
        with SideLoop(self._served, "observing"):
            yield

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as ending:
            if self._web is not None:
                self._web.start()
                ending.push_async_callback(self._web.close)
            if self._control is not None:
                self._control.open()
                ending.callback(self._control.close)
            yield

    async def _metrics(self) -> Answer:
        gathering = Gathering(_SCOPES)
        for reading in self.readings():
            gathering.add(reading)
        families = [each for each in gathering.families() if each.samples]
        return Answer(b"".join(metrics.text(families)), content_type=metrics.CONTENT_TYPE)

    async def _live(self) -> Answer:
        return verdict("live", self.not_live())

    async def _ready(self) -> Answer:
        return verdict("ready", self.not_ready())
