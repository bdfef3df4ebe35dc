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

#: Pure-Python mode: module name to source file, relative to the checkout.
PURE_MODE: dict[str, str] = {
    "feedhandler.amqp.framing": "feedhandler/amqp/framing.py",
    "feedhandler.amqp.serving.catchup": "feedhandler/amqp/serving/catchup.py",
    "feedhandler.amqp.splitter": "feedhandler/amqp/splitter.py",
    "feedhandler.amqp.fanout": "feedhandler/amqp/fanout.py",
    "feedhandler.amqp.outlet": "feedhandler/amqp/outlet.py",
    "feedhandler.amqp.queueing.window": "feedhandler/amqp/queueing/window.py",
    "feedhandler.amqp.publishing.envelope": "feedhandler/amqp/publishing/envelope.py",
    "feedhandler.amqp.queueing.conflation": "feedhandler/amqp/queueing/conflation.py",
    "feedhandler.amqp.queueing.pieces": "feedhandler/amqp/queueing/pieces.py",
    "feedhandler.amqp.queueing.backlog": "feedhandler/amqp/queueing/backlog.py",
    "feedhandler.amqp.serving.backlogged_link": "feedhandler/amqp/serving/backlogged_link.py",
    "feedhandler.amqp.publishing.destination": "feedhandler/amqp/publishing/destination.py",
    "feedhandler.amqp.stream": "feedhandler/amqp/stream.py",
    "feedhandler.amqp.symbols": "feedhandler/amqp/symbols.py",
    "feedhandler.amqp.subscribing.columns": "feedhandler/amqp/subscribing/columns.py",
    "feedhandler.amqp.subscribing.attachment": "feedhandler/amqp/subscribing/attachment.py",
    "feedhandler.amqp.subscribing.hothot": "feedhandler/amqp/subscribing/hothot.py",
    "feedhandler.amqp.subscribing.several": "feedhandler/amqp/subscribing/several.py",
    "feedhandler.amqp.subscribing.subscriber": "feedhandler/amqp/subscribing/subscriber.py",
    "feedhandler.amqp.serving.connection": "feedhandler/amqp/serving/connection.py",
    "feedhandler.amqp.serving.node": "feedhandler/amqp/serving/node.py",
    "feedhandler.amqp.subscribing.inbox": "feedhandler/amqp/subscribing/inbox.py",
    "feedhandler.characterise.boundaries": "feedhandler/characterise/boundaries.py",
    "feedhandler.characterise.scale": "feedhandler/characterise/scale.py",
    "feedhandler.characterise.interarrival": "feedhandler/characterise/interarrival.py",
    "feedhandler.characterise.skew": "feedhandler/characterise/skew.py",
    "feedhandler.characterise.tally": "feedhandler/characterise/tally.py",
    "feedhandler.histogram": "feedhandler/histogram.py",
    "feedhandler.journal.segments": "feedhandler/journal/segments.py",
    "feedhandler.lab.tally": "feedhandler/lab/tally.py",
    "feedhandler.ingest.ring": "feedhandler/ingest/ring.py",
    "feedhandler.ingest.fingerprint": "feedhandler/ingest/fingerprint.py",
    "feedhandler.ingest.hold": "feedhandler/ingest/hold.py",
    "feedhandler.ingest.lost": "feedhandler/ingest/lost.py",
    "feedhandler.ingest.output": "feedhandler/ingest/output.py",
    "feedhandler.ingest.epochs": "feedhandler/ingest/epochs.py",
    "feedhandler.ingest.quarantine": "feedhandler/ingest/quarantine.py",
    "feedhandler.ingest.sequencer": "feedhandler/ingest/sequencer.py",
    "feedhandler.ingest.watch": "feedhandler/ingest/watch.py",
    "feedhandler.ingest.arbitration": "feedhandler/ingest/arbitration.py",
    "feedhandler.ingest.recovered": "feedhandler/ingest/recovered.py",
    "feedhandler.recorder_frames": "feedhandler/recorder_frames.py",
    "feedhandler.retrans.store": "feedhandler/retrans/store.py",
    "feedhandler.retrans.ranges": "feedhandler/retrans/ranges.py",
    "feedhandler.retrans.quota": "feedhandler/retrans/quota.py",
    "feedhandler.retrans.retransmission": "feedhandler/retrans/retransmission.py",
    "feedhandler.retrans.healing": "feedhandler/retrans/healing.py",
    "feedhandler.retrans.snapshots": "feedhandler/retrans/snapshots.py",
    "feedhandler.retrans.refresh_packets": "feedhandler/retrans/refresh_packets.py",
    "feedhandler.retrans.refresh": "feedhandler/retrans/refresh.py",
    "feedhandler.retrans.recovery": "feedhandler/retrans/recovery.py",
    "feedhandler.retrans.protocol": "feedhandler/retrans/protocol.py",
    "feedhandler.retrans.client": "feedhandler/retrans/client.py",
    "feedhandler.replay.frames": "feedhandler/replay/frames.py",
    "feedhandler.replay.frame_headers": "feedhandler/replay/frame_headers.py",
    "feedhandler.replay.pcap": "feedhandler/replay/pcap.py",
    "feedhandler.replay.pcapng": "feedhandler/replay/pcapng.py",
    "feedhandler.replay.packet_headers": "feedhandler/replay/packet_headers.py",
    "feedhandler.replay.block_records": "feedhandler/replay/block_records.py",
    "feedhandler.replay.dice": "feedhandler/replay/dice.py",
    "feedhandler.replay.generator_tape": "feedhandler/replay/generator_tape.py",
    "feedhandler.replay.generator_books": "feedhandler/replay/generator_books.py",
    "feedhandler.replay.generator_issuers": "feedhandler/replay/generator_issuers.py",
    "feedhandler.replay.deflate": "feedhandler/replay/deflate.py",
    "feedhandler.replay.generator_flow": "feedhandler/replay/generator_flow.py",
    "feedhandler.replay.traffic_frames": "feedhandler/replay/traffic_frames.py",
    "feedhandler.replay.market": "feedhandler/replay/market.py",
    "feedhandler.replay.market_orders": "feedhandler/replay/market_orders.py",
    "feedhandler.codecs.scanner": "feedhandler/codecs/scanner.py",
    "feedhandler.codecs.columns": "feedhandler/codecs/columns.py",
}

#: Modules that need C headers and so exist compiled only.
COMPILED_ONLY: dict[str, str] = {
    "feedhandler.ingest.receiver": "feedhandler/ingest/receiver.pyx",
    "feedhandler.replay.frame_sender": "feedhandler/replay/frame_sender.pyx",
    "feedhandler.replay.sender": "feedhandler/replay/sender.pyx",
    "feedhandler.replay.sender_loop": "feedhandler/replay/sender_loop.pyx",
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
