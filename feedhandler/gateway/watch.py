"""The gateway's own monitoring: health, logged changes, the HTTP endpoint, systemd.

`Watch` checks every `TICK_SECONDS`, in the event loop: how late the loop calls it, which channels
join since when, which servers are connected, whether the gateway is ready. It logs changes
(`operator_log`), and notifies systemd's watchdog while the gateway is live. Changes that polling
would miss are reported by their source: `quality_changed`, `line_changed`.

The stream does not depend on anything here, and nothing here runs longer than about a millisecond
at a time: a scrape of the metrics goes by slices, one scrape at a time, and its result serves all
requests within `KEEP_SECONDS`.
"""

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from feedhandler import operator_log
from feedhandler.addresses import split_address
from feedhandler.counters import STAGES, WebCounter
from feedhandler.histogram import Histogram
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.states import State as ArbitrationState
from feedhandler.observe import health
from feedhandler.observe.health import Facts
from feedhandler.observe.systemd import Notifier
from feedhandler.observe.web import Answer, WebServer, verdict
from feedhandler.operator_log import log_event
from feedhandler.retrans.quality import QualityState, State

if TYPE_CHECKING:
    from feedhandler.gateway.process import Gateway

TICK_SECONDS = 0.25
TICK_NS = round(TICK_SECONDS * 1e9)
#: How long a scrape's result is reused.
KEEP_SECONDS = 0.25
#: Readings taken before the event loop turns.
READINGS_SHARE = 4
#: Text made before the event loop turns: about a slice of samples.
TEXT_SHARE_BYTES = 4096

#: The log level of a change to this quality; to any other: info.
_QUALITY_LEVELS = {
    State.RECOVERING: logging.DEBUG,
    State.STALE: logging.WARNING,
    State.SILENT: logging.WARNING,
}


class Watch:
    """The monitor of `gateway` while `run` lasts; `serving` and `stopping` set its phase."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        config = gateway.config
        self.phase = "starting"
        #: Stages that are timed here: how late the loop runs a timer.
        self.stages = {"lag": Histogram()}
        assert set(self.stages) < set(STAGES)
        self.web: WebServer | None = None
        if config.metrics.listen:
            # Who is never scraped need not load it; who is had better not wait for it then.
            importlib.import_module("feedhandler.gateway.readings")
            pages = {"/metrics": self._metrics, "/live": self._live, "/ready": self._ready}
            address = split_address(config.metrics.listen)
            self.web = WebServer(address, pages, config.metrics.hosts)
        self._notifier = Notifier()
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = self._watchdog_ns = 0
        self._joining_since: dict[int, int] = {}
        self._servers_up: dict[str, bool] = {}
        self._was_ready: bool | None = None
        self._scraping: asyncio.Lock
        self._scraped = b""
        self._scraped_at = self._scrape_seconds = 0.0
        for quality in gateway.qualities:
            quality.on_change = self.quality_changed

    # -- running ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Watch while the context lasts. Raises `ConfigError` where the address cannot be bound."""
        self._loop = asyncio.get_running_loop()
        self._scraping = asyncio.Lock()
        if self.web is not None:
            self.web.start()
        self._due_ns = time.monotonic_ns()
        self._tick()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self.web is not None:
                await self.web.close()
            self._notifier.close()

    def serving(self) -> None:
        """Note that lines are joined and the node listens, and notify systemd."""
        self.phase = "serving"
        channels = self._gateway.config.channels
        self._notifier.ready(f"serving {len(channels)} channels")

    def stopping(self) -> None:
        """Note that the gateway is stopping, and notify systemd."""
        self.phase = "stopping"
        self._notifier.stopping()
        log_event("stopping", f"{self._gateway.config.gateway.name}: stopping", logging.DEBUG)

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        self.stages["lag"].record(now_ns - self._due_ns)
        try:
            self._look(now_ns)
        except Exception as error:
            # The stream goes on without being watched; an exception in a timer would end it.
            log_event("watch", f"internal error: {type(error).__name__}: {error}", logging.ERROR)
        # At fixed intervals; after a standstill from now on, not once for each missed tick.
        self._due_ns = max(self._due_ns + TICK_NS, now_ns)
        wait_ns = max(0, self._due_ns - time.monotonic_ns())
        self._timer = self._loop.call_later(wait_ns / 1e9, self._tick)

    def _look(self, now_ns: int) -> None:
        self._report_servers()
        self._report_readiness()
        operator_log.current().tick()
        wanted_ns = self._notifier.watchdog_ns
        if wanted_ns and now_ns - self._watchdog_ns >= wanted_ns - TICK_NS:
            self._watchdog_ns = now_ns
            if not self.not_live():
                self._notifier.watchdog()

    def _note_joining(self, now_ns: int) -> None:
        arbiters = self._gateway.receiver.arbiters
        for channel, arbiter in zip(self._gateway.config.channels, arbiters, strict=False):
            if arbiter.state == ArbitrationState.JOINING:
                self._joining_since.setdefault(channel.service, now_ns)
            else:
                self._joining_since.pop(channel.service, None)

    def _servers(self) -> dict[str, bool]:
        """Return each server's name, and whether there is a connection to it."""
        servers = self._gateway.core.recovery_snapshot(self._gateway.runner.now_ns())["servers"]
        return {name: server["up"] for name, server in servers.items()}

    # -- health -----------------------------------------------------------------------------

    def facts(self) -> Facts:
        """Collect the facts that health is judged by, as of now."""
        gateway, now_ns = self._gateway, time.monotonic_ns()
        self._note_joining(now_ns)
        receiver, recorder = gateway.receiver, gateway.recorder
        lag_ns = max(0, now_ns - self._due_ns) if self._timer is not None else 0
        return Facts(
            phase=self.phase,
            receiving=receiver.running,
            receive_error="" if receiver.error is None else str(receiver.error),
            listening=gateway.node.listening,
            loop_lag_ns=lag_ns,
            joining_ns={s: now_ns - since for s, since in self._joining_since.items()},
            quality={quality.service: quality.state.value for quality in gateway.qualities},
            closed=[stream.service for stream in gateway.streams if stream.closed],
            servers=self._servers(),
            queues_stopped={q.name: q.fault for q in gateway.queues.all.values() if q.fault},
            recording_stopped=recorder.reason if recorder.state == "stopped" else "",
        )

    def not_live(self) -> list[str]:
        """Return why the gateway is not live; empty where it is."""
        return health.not_live(self.facts())

    def not_ready(self) -> list[str]:
        """Return why the gateway is not ready; empty where it is."""
        return health.not_ready(self.facts(), self._gateway.config.health)

    def health(self) -> dict[str, Any]:
        """Return both judgements with their reasons, for the control socket's verb."""
        live, ready = self.not_live(), self.not_ready()
        return {
            "live": {"ok": not live, "reasons": live},
            "ready": {"ok": not ready, "reasons": ready},
        }

    # -- what is logged ---------------------------------------------------------------------

    def _report_readiness(self) -> None:
        if self.phase != "serving":
            return
        reasons = self.not_ready()
        if self._was_ready == (not reasons):
            return
        if reasons:
            log_event("health", f"not ready: {'; '.join(reasons)}", ready=False)
        elif self._was_ready is not None:
            log_event("health", "ready again", logging.INFO, ready=True)
        self._notifier.status(f"not ready: {reasons[0]}" if reasons else "ready")
        self._was_ready = not reasons

    def _report_servers(self) -> None:
        if self.phase == "stopping":
            return
        for name, up in self._servers().items():
            if up == self._servers_up.get(name, False):
                continue
            self._servers_up[name] = up
            if up:
                on_demand = self._gateway.core.servers[name].on_demand
                text = f"server {name}: " + ("connected to at need" if on_demand else "connected")
                log_event("server_up", text, logging.INFO, server=name)
            else:
                log_event("server_down", f"server {name}: connection lost", server=name)

    def quality_changed(self, quality: QualityState, before: State) -> None:
        """Log that the quality of a service's stream changed."""
        state, service = quality.state, quality.service
        recovered = (before, state) == (State.RECOVERING, State.OK)
        level = logging.DEBUG if recovered else _QUALITY_LEVELS.get(state, logging.INFO)
        log_event(
            "quality",
            f"service {service}: {state.value}, was {before.value}",
            level,
            service=service,
            state=state.value,
            before=before.value,
            next=quality.next,
            lost_ranges=quality.lost_ranges,
            lost_numbers=quality.lost_total,
            doubt=quality.doubt,
        )

    def line_changed(self, kind: int, channel_index: int, number: int) -> None:
        """Log that a line fell silent or is back, if the ring's control event says so."""
        if kind not in (RecordKind.LINE_SILENT, RecordKind.LINE_BACK):
            return
        channels = self._gateway.receiver.channels
        lines = channels[channel_index].lines
        if number >= len(lines):
            return
        name, is_refresh = lines[number].name, channel_index >= len(self._gateway.streams)
        level = logging.WARNING if kind == RecordKind.LINE_SILENT else logging.INFO
        # Refresh lines are silent between refreshes.
        level = logging.DEBUG if is_refresh else level
        service = channels[channel_index].service
        if kind == RecordKind.LINE_SILENT:
            log_event("line_silent", f"line {name}: silent", level, line=name, service=service)
        else:
            log_event("line_back", f"line {name}: back", level, line=name, service=service)

    # -- pages ------------------------------------------------------------------------------

    async def _live(self) -> Answer:
        return verdict("live", self.not_live())

    async def _ready(self) -> Answer:
        return verdict("ready", self.not_ready())

    async def _metrics(self) -> Answer:
        """Return the last scrape's text if it is recent, else scrape anew."""
        from feedhandler.observe.metrics import CONTENT_TYPE

        async with self._scraping:
            if not self._scraped or self._loop.time() - self._scraped_at >= KEEP_SECONDS:
                began = self._loop.time()
                self._scraped = await self._scrape()
                self._scraped_at = self._loop.time()
                self._scrape_seconds = self._scraped_at - began
        return Answer(self._scraped, content_type=CONTENT_TYPE)

    async def _scrape(self) -> bytes:
        from feedhandler.gateway.readings import readings
        from feedhandler.observe import metrics

        assert self.web is not None
        self.web.count(WebCounter.SCRAPES)
        gathering = metrics.Gathering()
        await asyncio.sleep(0)
        for number, reading in enumerate(readings(self._gateway), 1):
            gathering.add(reading)
            if number % READINGS_SHARE == 0:
                await asyncio.sleep(0)
        pieces = []
        size = 0
        for piece in metrics.text(gathering.families()):
            pieces.append(piece)
            size += len(piece)
            if size >= TEXT_SHARE_BYTES:
                size = 0
                await asyncio.sleep(0)
        return b"".join(pieces)

    def web_counts(self) -> dict[str, float]:
        """Return the endpoint's counters, and the seconds that the last scrape took."""
        counts: dict[str, float] = dict(self.web.counts()) if self.web is not None else {}
        return {**counts, "gather_seconds": self._scrape_seconds}
