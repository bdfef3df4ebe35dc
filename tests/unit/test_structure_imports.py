"""Which way imports point, and which modules stay free of I/O and clocks."""

import ast
from pathlib import Path
from typing import Any, TypeGuard

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

#: Each room, and the rooms that it may import besides itself.
ROOMS = {
    "codecs": (),
    "retrans": ("codecs",),
    "replay": ("codecs", "retrans"),
    "feedhandler": ("codecs", "retrans", "replay"),
}

#: Plain state machines and codecs: fed with bytes and with the time as an argument.
CORES = (
    "codecs/columns.py",
    "codecs/description.py",
    "codecs/fix/envelope.py",
    "codecs/errors.py",
    "codecs/explain.py",
    "codecs/feed.py",
    "codecs/fix/datagram.py",
    "codecs/fix/dictionary.py",
    "codecs/fix/fields.py",
    "codecs/fix/encode.py",
    "codecs/fix/entries.py",
    "codecs/fix/explain.py",
    "codecs/fix/framing.py",
    "codecs/fix/index.py",
    "codecs/fix/kinds.py",
    "codecs/fix/reasons.py",
    "codecs/fix/stream.py",
    "codecs/fix/values.py",
    "codecs/kinds.py",
    "codecs/layouts.py",
    "codecs/loader.py",
    "codecs/prices.py",
    "codecs/reference_data.py",
    "codecs/scanner.py",
    "codecs/times.py",
    "codecs/toml_text.py",
    "feedhandler/amqp/durable/dispatch.py",
    "feedhandler/amqp/durable/message_ids.py",
    "feedhandler/amqp/durable/sections.py",
    "feedhandler/amqp/durable/transactions.py",
    "retrans/actions.py",
    "retrans/backoff.py",
    "retrans/events.py",
    "retrans/fix/client.py",
    "retrans/fix/market_data.py",
    "retrans/fix/market_data_client.py",
    "retrans/fix/market_data_requests.py",
    "retrans/fix/market_follower.py",
    "retrans/fix/market_history.py",
    "retrans/fix/market_state.py",
    "retrans/fix/request.py",
    "retrans/fix/resend_client.py",
    "retrans/fix/server.py",
    "retrans/fix/state_client.py",
    "retrans/healing.py",
    "retrans/client.py",
    "retrans/protocol.py",
    "retrans/server.py",
    "retrans/quota.py",
    "retrans/ranges.py",
    "retrans/refresh.py",
    "retrans/refresh_packets.py",
    "retrans/reactions.py",
    "retrans/reconnection.py",
    "retrans/recovery.py",
    "retrans/retransmission.py",
    "retrans/settings.py",
    "retrans/snapshots.py",
    "retrans/states.py",
    "retrans/store.py",
    "replay/state/book.py",
    "replay/state/fix_book.py",
    "replay/state/fix_translation.py",
    "replay/exchange/exchange_blocks.py",
    "replay/exchange/exchange_refresh.py",
    "replay/generating/dice.py",
    "replay/generating/fix_market.py",
    "replay/generating/generator.py",
    "replay/generating/generator_books.py",
    "replay/generating/generator_flow.py",
    "replay/generating/generator_issuers.py",
    "replay/generating/generator_layouts.py",
    "replay/generating/generator_notices.py",
    "replay/generating/generator_snapshots.py",
    "replay/generating/generator_tape.py",
    "replay/generating/generator_closing.py",
    "replay/generating/generator_packets.py",
    "replay/generating/generator_session.py",
    "replay/generating/generator_times.py",
    "replay/playing/inject.py",
    "replay/generating/instruments.py",
    "replay/exchange/ledger.py",
    "replay/exchange/ledger_check.py",
    "replay/state/market.py",
    "replay/state/market_orders.py",
    "replay/state/market_problems.py",
    "replay/state/market_views.py",
    "replay/playing/block_records.py",
    "replay/playing/forecast.py",
    "replay/playing/line_map.py",
    "replay/playing/merge.py",
    "replay/playing/moments.py",
    "replay/playing/numbering.py",
    "replay/playing/pace.py",
    "replay/playing/player_progress.py",
    "replay/generating/profile.py",
    "replay/generating/profile_plan.py",
    "replay/generating/traffic.py",
    "replay/generating/traffic_frames.py",
    "replay/generating/traffic_ledger.py",
    "replay/generating/wirebytes.py",
    "replay/playing/packet_headers.py",
    "replay/playing/player_blocks.py",
    "replay/playing/selection.py",
    "replay/playing/stamps.py",
    "replay/playing/timeline.py",
    "replay/captures/frames.py",
    "replay/playing/frame_headers.py",
    "replay/captures/pcap.py",
    "replay/captures/pcapng.py",
    "feedhandler/journal/block.py",
    "feedhandler/journal/delivery.py",
    "feedhandler/journal/ended.py",
    "feedhandler/journal/layout.py",
    "feedhandler/journal/opening.py",
    "feedhandler/journal/recovery.py",
    "feedhandler/journal/repair.py",
    "feedhandler/journal/segments.py",
    "feedhandler/journal/settings.py",
    "feedhandler/journal/simulated.py",
    "feedhandler/journal/store.py",
    "feedhandler/journal/verify.py",
    "feedhandler/amqp/queueing/backlog.py",
    "feedhandler/amqp/serving/backlogged_link.py",
    "feedhandler/amqp/serving/catchup.py",
    "feedhandler/amqp/queueing/books.py",
    "feedhandler/amqp/queueing/conflation.py",
    "feedhandler/amqp/queueing/pieces.py",
    "feedhandler/amqp/subscribing/columns.py",
    "feedhandler/amqp/subscribing/turn.py",
    "feedhandler/amqp/fanout.py",
    "feedhandler/amqp/splitter.py",
    "feedhandler/amqp/framing.py",
    "feedhandler/amqp/serving/fair.py",
    "feedhandler/amqp/serving/groups.py",
    "feedhandler/amqp/history.py",
    "feedhandler/amqp/subscribing/inbox.py",
    "feedhandler/amqp/outlet.py",
    "feedhandler/amqp/patterns.py",
    "feedhandler/amqp/policies.py",
    "feedhandler/amqp/quality.py",
    "feedhandler/amqp/subscribing/request.py",
    "feedhandler/amqp/subscribing/aftermath.py",
    "feedhandler/amqp/subscribing/hothot.py",
    "feedhandler/amqp/subscribing/join.py",
    "feedhandler/amqp/serving/resume.py",
    "feedhandler/amqp/routing.py",
    "feedhandler/amqp/serving/sasl.py",
    "feedhandler/amqp/security.py",
    "feedhandler/amqp/serving/turns.py",
    "feedhandler/amqp/serving/users.py",
    "feedhandler/amqp/stream.py",
    "feedhandler/amqp/symbols.py",
    "feedhandler/amqp_settings.py",
    "feedhandler/characterise/boundaries.py",
    "feedhandler/characterise/digest.py",
    "feedhandler/characterise/in_order.py",
    "feedhandler/characterise/interarrival.py",
    "feedhandler/characterise/measured_profile.py",
    "feedhandler/characterise/moments.py",
    "feedhandler/characterise/ranges.py",
    "feedhandler/characterise/scale.py",
    "feedhandler/characterise/skew.py",
    "feedhandler/characterise/slices.py",
    "feedhandler/characterise/tables.py",
    "feedhandler/characterise/tally.py",
    "feedhandler/config.py",
    "feedhandler/counters.py",
    "feedhandler/fixcast/crypto.py",
    "feedhandler/fixcast/entitlement.py",
    "feedhandler/fixcast/entitlement_messages.py",
    "feedhandler/fixcast/keys.py",
    "feedhandler/fixcast/sealing.py",
    "feedhandler/fixcast/signing.py",
    "feedhandler/fixcast/captured.py",
    "feedhandler/fixcast/channels.py",
    "feedhandler/fixcast/datagrams.py",
    "feedhandler/fixcast/exchange_plan.py",
    "feedhandler/fixcast/membership.py",
    "feedhandler/fixcast/messages.py",
    "feedhandler/fixcast/pacing.py",
    "feedhandler/fixcast/planner.py",
    "feedhandler/fixcast/receiving.py",
    "feedhandler/fixcast/reception.py",
    "feedhandler/fixcast/send_queue.py",
    "feedhandler/fixcast/sending.py",
    "feedhandler/fixcast/session.py",
    "feedhandler/fixcast/stamping.py",
    "feedhandler/fixcast/values.py",
    "feedhandler/gateway_core.py",
    "feedhandler/overlay/admission.py",
    "feedhandler/overlay/clocks.py",
    "feedhandler/overlay/counters.py",
    "feedhandler/overlay/readings.py",
    "feedhandler/overlay/deduplication.py",
    "feedhandler/overlay/delays.py",
    "feedhandler/overlay/fairness.py",
    "feedhandler/overlay/last_hop.py",
    "feedhandler/overlay/members.py",
    "feedhandler/overlay/merging.py",
    "feedhandler/overlay/release.py",
    "feedhandler/overlay/simulation/cloud.py",
    "feedhandler/overlay/simulation/experiments.py",
    "feedhandler/overlay/simulation/holding.py",
    "feedhandler/overlay/simulation/incast.py",
    "feedhandler/overlay/simulation/last_hop.py",
    "feedhandler/overlay/simulation/trading.py",
    "feedhandler/overlay/simulation/uniform.py",
    "feedhandler/overlay/topology.py",
    "feedhandler/overlay/tree.py",
    "feedhandler/overlay/wire.py",
    "feedhandler/histogram.py",
    "feedhandler/ingest/arbitration.py",
    "feedhandler/ingest/belief.py",
    "feedhandler/ingest/columns.py",
    "feedhandler/ingest/epochs.py",
    "feedhandler/ingest/fingerprint.py",
    "feedhandler/ingest/hold.py",
    "feedhandler/ingest/known.py",
    "feedhandler/ingest/lost.py",
    "feedhandler/ingest/output.py",
    "feedhandler/ingest/packing.py",
    "feedhandler/ingest/quarantine.py",
    "feedhandler/ingest/ring.py",
    "feedhandler/ingest/sequencer.py",
    "feedhandler/ingest/settings.py",
    "feedhandler/ingest/states.py",
    "feedhandler/ingest/watch.py",
    "feedhandler/ingest/withdrawal.py",
    "feedhandler/amqp/publishing/brokers.py",
    "feedhandler/amqp/publishing/destination.py",
    "feedhandler/amqp/publishing/envelope.py",
    "feedhandler/amqp/publishing/journalled.py",
    "feedhandler/amqp/publishing/spill.py",
    "feedhandler/amqp/publishing/spill_items.py",
    "feedhandler/amqp/queueing/shortfall.py",
    "feedhandler/amqp/queueing/stopwatch.py",
    "feedhandler/amqp/queueing/window.py",
    "feedhandler/config_show.py",
    "feedhandler/lab/thresholds.py",
    "feedhandler/lab/paper.py",
    "feedhandler/lab/plan.py",
    "feedhandler/lab/report_loads.py",
    "feedhandler/lab/report_tables.py",
    "feedhandler/lab/workload.py",
    "feedhandler/lab/sweep.py",
    "feedhandler/lab/tally.py",
    "feedhandler/publish_settings.py",
    "feedhandler/capture_blocks.py",
    "feedhandler/capture_files.py",
    "feedhandler/recorder_files.py",
    "feedhandler/recorder_frames.py",
    "feedhandler/recorder_settings.py",
    "feedhandler/recovery/channel.py",
    "feedhandler/recovery/desk.py",
    "feedhandler/recovery/ports.py",
    "feedhandler/recovery/protocols.py",
)
#: What a core never imports: the world outside, and the clock.
WORLD = {"socket", "asyncio", "time", "threading", "proton", "cproton", "uvloop", "zmq", "select"}

LINKS = {"codecs": "../codecs", "replay": "../replay", "retrans": "../retrans"}


def imported(path: Path) -> set[str]:
    """Full names of what a module imports, `from a import b` as `a.b` too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are by full name"
            names.add(str(node.module))
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.replace("cython.cimports.", "") for name in names}


def pyx_imports(path: Path) -> set[str]:
    """As `imported`, for Cython's own syntax, which `ast` does not read."""
    names: set[str] = set()
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) > 1 and words[0] in ("import", "cimport", "from"):
            names.add(words[1])
    return names


def room_of(name: str) -> str | None:
    """The room that an import reaches into; None for what lies outside the project."""
    parts = name.split(".")
    if parts[0] != "feedhandler":
        assert parts[0] not in ("retrans", "replay"), f"{name}: rooms are below feedhandler"
        return None
    inner = parts[1] if len(parts) > 1 else ""
    return inner if inner in ROOMS else "feedhandler"


def modules(room: str) -> list[Path]:
    """Every module of a room, links not followed."""
    found = []
    for pattern in ("*.py", "*.pyx", "*.pxd"):
        for path in sorted((CHECKOUT / room).rglob(pattern)):
            inside = path.relative_to(CHECKOUT / room).parts[0]
            if room != "feedhandler" or inside not in LINKS:
                found.append(path)
    return found


#: The table of compiled units, and packages whose names are imported late.
ROOMLESS = ("feedhandler._compiled", "feedhandler._lazy")


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    allowed = {room, *ROOMS[room]}
    for path in modules(room):
        names = imported(path) if path.suffix == ".py" else pyx_imports(path)
        for name in names:
            # These belong to no room: they import the standard library only.
            if (
                name.startswith(("feedhandler._compiled", "feedhandler._lazy"))
                or name == "feedhandler"
            ):
                continue
            target = room_of(name)
            assert target is None or target in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("core", CORES)
def test_cores_know_no_socket_loop_thread_or_clock(core: str) -> None:
    for name in imported(CHECKOUT / core):
        assert name.split(".")[0] not in WORLD, f"{core} imports {name}"


def test_the_simulation_drives_the_core_that_ships_and_has_no_wiring_of_its_own() -> None:
    core = "feedhandler.gateway_core.GatewayCore"
    simulation = CHECKOUT / "tests" / "simulation"
    for path in (CHECKOUT / "feedhandler" / "gateway.py", simulation / "gateway_cores.py"):
        assert core in imported(path), path
    # What the desk has done by others, and the core by nobody else.
    wiring = {"open_stream", "close_stream", "withhold", "admit", "renumber", "next_sequence"}
    for path in simulation.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            assert not isinstance(node, ast.FunctionDef) or node.name not in wiring, path
            made = node.func.id if _is_plain_call(node) else ""
            assert made not in ("Desk", "Fanout", "RequestClient"), path


def _is_plain_call(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@pytest.mark.parametrize(("link", "target"), LINKS.items())
def test_the_rooms_are_linked_below_feedhandler(link: str, target: str) -> None:
    path = CHECKOUT / "feedhandler" / link
    assert path.is_symlink()
    assert str(path.readlink()) == target
    assert (path / "__init__.py").exists()
