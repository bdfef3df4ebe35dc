"""Which modules are compiled, and how to run them interpreted.

Each module named here is an ordinary Python file with Cython annotations. The build compiles it;
the same file also runs interpreted as its reference twin. `FEEDHANDLER_PURE=1` in the environment
makes every import take the interpreted file; `load_interpreted` gives a test the twin beside the
compiled module, in one process.

`setup.py` reads the two tables below without importing the package, so this file imports only
the standard library.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

#: Modules in pure-Python mode.
_PURE_NAMES = (
    "feedhandler.amqp.framing",
    "feedhandler.amqp.serving.catchup",
    "feedhandler.amqp.splitter",
    "feedhandler.amqp.fanout",
    "feedhandler.amqp.outlet",
    "feedhandler.amqp.queueing.window",
    "feedhandler.amqp.publishing.envelope",
    "feedhandler.amqp.queueing.conflation",
    "feedhandler.amqp.queueing.pieces",
    "feedhandler.amqp.queueing.backlog",
    "feedhandler.amqp.serving.backlogged_link",
    "feedhandler.amqp.publishing.destination",
    "feedhandler.amqp.publishing.journalled",
    "feedhandler.amqp.stream",
    "feedhandler.amqp.symbols",
    "feedhandler.amqp.subscribing.columns",
    "feedhandler.amqp.subscribing.attachment",
    "feedhandler.amqp.subscribing.hothot",
    "feedhandler.amqp.subscribing.several",
    "feedhandler.amqp.subscribing.subscriber",
    "feedhandler.amqp.subscribing.turn",
    "feedhandler.amqp.serving.connection",
    "feedhandler.amqp.serving.node",
    "feedhandler.amqp.subscribing.inbox",
    "feedhandler.characterise.boundaries",
    "feedhandler.characterise.scale",
    "feedhandler.characterise.interarrival",
    "feedhandler.characterise.skew",
    "feedhandler.characterise.tally",
    "feedhandler.histogram",
    "feedhandler.journal.acknowledgement",
    "feedhandler.journal.mutex",
    "feedhandler.journal.producers",
    "feedhandler.journal.reading",
    "feedhandler.journal.scatter",
    "feedhandler.journal.segments",
    "feedhandler.journal.waiting",
    "feedhandler.journal.writer",
    "feedhandler.lab.tally",
    "feedhandler.ingest.ring",
    "feedhandler.ingest.fingerprint",
    "feedhandler.ingest.hold",
    "feedhandler.ingest.lost",
    "feedhandler.ingest.output",
    "feedhandler.ingest.epochs",
    "feedhandler.ingest.quarantine",
    "feedhandler.ingest.sequencer",
    "feedhandler.ingest.watch",
    "feedhandler.ingest.arbitration",
    "feedhandler.ingest.recovered",
    "feedhandler.recorder_frames",
    "feedhandler.retrans.store",
    "feedhandler.retrans.ranges",
    "feedhandler.retrans.quota",
    "feedhandler.retrans.retransmission",
    "feedhandler.retrans.healing",
    "feedhandler.retrans.snapshots",
    "feedhandler.retrans.refresh_packets",
    "feedhandler.retrans.refresh",
    "feedhandler.retrans.recovery",
    "feedhandler.retrans.protocol",
    "feedhandler.retrans.client",
    "feedhandler.replay.captures.frames",
    "feedhandler.replay.playing.frame_headers",
    "feedhandler.replay.captures.pcap",
    "feedhandler.replay.captures.pcapng",
    "feedhandler.replay.playing.packet_headers",
    "feedhandler.replay.playing.block_records",
    "feedhandler.replay.generating.dice",
    "feedhandler.replay.generating.generator_tape",
    "feedhandler.replay.generating.generator_books",
    "feedhandler.replay.generating.generator_issuers",
    "feedhandler.replay.generating.generator_flow",
    "feedhandler.replay.generating.traffic_frames",
    "feedhandler.replay.state.market",
    "feedhandler.replay.state.market_orders",
    "feedhandler.codecs.scanner",
    "feedhandler.codecs.columns",
)
#: Module name to source file, relative to the checkout.
PURE_MODE: dict[str, str] = {name: f"{name.replace('.', '/')}.py" for name in _PURE_NAMES}

#: Modules that need C headers and so exist compiled only.
COMPILED_ONLY: dict[str, str] = {
    "feedhandler.ingest.receiver": "feedhandler/ingest/receiver.pyx",
    "feedhandler.replay.playing.frame_sender": "feedhandler/replay/playing/frame_sender.pyx",
    "feedhandler.replay.playing.sender": "feedhandler/replay/playing/sender.pyx",
    "feedhandler.replay.playing.sender_loop": "feedhandler/replay/playing/sender_loop.pyx",
    "feedhandler.amqp.proton": "feedhandler/amqp/proton.pyx",
}


def _source_of(name: str) -> str:
    """The path of a pure-mode module's Python file."""
    package_folder = os.path.dirname(os.path.abspath(__file__))
    return os.path.join(os.path.dirname(package_folder), PURE_MODE[name])


class _InterpretedFinder(importlib.abc.MetaPathFinder):
    """Finds the `.py` of a compiled module before the extension beside it is seen."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PURE_MODE:
            return None
        return importlib.util.spec_from_file_location(name, _source_of(name))


def prefer_interpreted() -> None:
    """Make every later import of a pure-mode module take its Python file."""
    if not any(isinstance(finder, _InterpretedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _InterpretedFinder())


def load_interpreted(name: str) -> ModuleType:
    """The interpreted twin of compiled module `name`, as a module object of its own.

    Modules that it imports come as they are loaded already (compiled, unless told otherwise).
    Raises `KeyError` for a module that is not in `PURE_MODE`.
    """
    twin_name = name + "__interpreted"
    if twin_name in sys.modules:
        return sys.modules[twin_name]
    spec = importlib.util.spec_from_file_location(twin_name, _source_of(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[twin_name] = module
    spec.loader.exec_module(module)
    return module
