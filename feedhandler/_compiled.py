"""The compiled units: the modules of each, and how those are imported or run interpreted.

A *unit* is one shared library, `feedhandler/_units/<unit>.<platform>.so`, that holds several
compiled modules. Each module named here is an ordinary Python file with Cython annotations (or a
`.pyx`, where it needs C headers); its source is what to read and edit, and the same file also
runs interpreted as the reference twin. A finder at the front of `sys.meta_path` maps a module's
name to its unit.

`FEEDHANDLER_PURE=1` in the environment makes every import take the interpreted file;
`load_interpreted` loads the twin beside the compiled module in one process, for tests.

`setup.py` reads `UNITS` without importing the package, so this file imports only the standard
library.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

#: Unit to its modules, without the leading `feedhandler.`. The first unit also holds Cython's own
#: run-time code (`_cython_utility`), which all others import.
UNITS: dict[str, tuple[str, ...]] = {
    "codecs": (
        "codecs.columns",
        "codecs.feed_table",
        "codecs.fix.datagram",
        "codecs.fix.encode",
        "codecs.fix.entries",
        "codecs.fix.framing",
        "codecs.fix.index",
        "codecs.fix.values",
        "codecs.message_symbols",
        "codecs.fix_runs",
        "codecs.fix_scanning",
        "codecs.layout_sizes",
        "codecs.message_walk",
        "codecs.scanner",
        "histogram",
        "recording.frame_writer",
        "replay.captures.frames",
    ),
    "ingest": (
        "ingest.arbitration",
        "ingest.belief",
        "ingest.epochs",
        "ingest.fingerprint",
        "ingest.hold",
        "ingest.known",
        "ingest.lost",
        "ingest.output",
        "ingest.packing",
        "ingest.quarantine",
        "ingest.receiver",
        "ingest.recovered",
        "ingest.ring",
        "ingest.sequencer",
        "ingest.watch",
        "ingest.withdrawal",
    ),
    "retrans": (
        "retrans.client",
        "retrans.healing",
        "retrans.protocol",
        "retrans.quota",
        "retrans.ranges",
        "retrans.recovery",
        "retrans.refresh",
        "retrans.refresh_packets",
        "retrans.retransmission",
        "retrans.snapshots",
        "retrans.store",
    ),
    "amqp": (
        "amqp.durable.values",
        "amqp.fanout",
        "amqp.framing",
        "amqp.record_sink",
        "amqp.sender_queue",
        "amqp.proton",
        "amqp.publishing.destination",
        "amqp.publishing.envelope",
        "amqp.publishing.spill_destination",
        "amqp.queueing.backlog",
        "amqp.queueing.conflation",
        "amqp.queueing.message_splitter",
        "amqp.queueing.unsettled_map",
        "amqp.serving.backlogged_link",
        "amqp.serving.catchup",
        "amqp.splitter",
        "amqp.stream",
        "amqp.symbols",
    ),
    "subscribing": (
        "amqp.subscribing.columns",
        "amqp.subscribing.inbox",
        "amqp.subscribing.fast_dispatch",
    ),
    "fixcast": (
        "fixcast.pacing",
        "fixcast.send_queue",
        "fixcast.stamping",
        "fixcast.system_calls",
    ),
    "overlay": (
        "overlay.forwarding",
        "overlay.io_uring",
        "overlay.judging",
        "overlay.port",
        "overlay.release",
        "overlay.releasing",
    ),
    "journal": (
        "journal.commit_waiter",
        "journal.mutex",
        "journal.commit_scheduler",
        "journal.reading",
        "journal.scatter",
        "journal.segments",
        "journal.pending_batch",
        "journal.writer",
    ),
    "exchange": (
        "replay.captures.packet_headers",
        "replay.generating.books",
        "replay.generating.deals",
        "replay.generating.prng",
        "replay.generating.flow",
        "replay.generating.issuers",
        "replay.generating.tape",
        "replay.playing.sender",
        "replay.playing.sender_loop",
    ),
    "captures": (
        "replay.captures.pcap",
        "replay.captures.pcapng",
        "replay.generating.traffic_frames",
        "replay.playing.block_records",
        "replay.playing.frame_headers",
        "replay.playing.frame_sender",
    ),
    "market": (
        "amqp.level_queue",
        "amqp.record_fanout",
        "market.depth_book",
        "market.fix_normaliser",
        "market.latest_messages",
        "market.normaliser",
        "market.order_messages",
        "market.order_table",
        "market.records",
        "market.stream_reader",
        "market.wire_rules",
    ),
    "characterise": (
        "characterise.boundaries",
        "characterise.interarrival",
        "characterise.skew",
        "characterise.tally",
    ),
    "keyed": (
        "keyed.dispatch",
        "keyed.heap",
        "keyed.key_table",
    ),
    "lab": ("lab.tally",),
}
#: Prefixes of modules that spend their time in calls, of Python's API and of proton's, not in loops
#: over bytes: the C compiler's -O2 doubles their compile time and gains nothing.
CALLS_NOT_LOOPS = (
    "amqp.proton",
    "amqp.publishing.",
    "amqp.queueing.conflation",
    "amqp.queueing.message_splitter",
    "amqp.serving.",
    "amqp.subscribing.fast_dispatch",
    "journal.commit_waiter",
    "journal.mutex",
    "journal.commit_scheduler",
    "journal.scatter",
    "journal.pending_batch",
    "lab.",
    "recording.frame_writer",
    "replay.playing.",
    "retrans.client",
    "retrans.healing",
    "retrans.protocol",
    "retrans.quota",
    "retrans.recovery",
    "retrans.refresh",
    "retrans.retransmission",
    "retrans.snapshots",
)
#: Modules that need C headers and so exist compiled only.
_COMPILED_ONLY_NAMES = frozenset(
    {
        "amqp.proton",
        "fixcast.system_calls",
        "ingest.receiver",
        "overlay.forwarding",
        "overlay.io_uring",
        "overlay.judging",
        "overlay.port",
        "replay.playing.frame_sender",
        "replay.playing.sender",
        "replay.playing.sender_loop",
    }
)
#: Plain Python modules whose integers compiled modules use as C constants: `setup.py` runs
#: them and writes the `.pxd` of each. They import the standard library and one another.
CONSTANTS = (
    "codecs.fix.kinds",
    "codecs.fix.reasons",
    "codecs.kinds",
    "ingest.answers",
    "ingest.columns",
    "ingest.records",
    "ingest.slots",
    "ingest.states",
    "keyed.slot_states",
    "replay.captures.status",
    "replay.generating.indexes",
    "replay.playing.progress",
    "retrans.entries",
)
#: Modules whose interpreted twins call functions of others that compiled ones do not show to Python
#: (they take pointers): those are then interpreted, too.
TWINS_OF_TWINS: dict[str, tuple[str, ...]] = {
    "codecs.fix.framing": ("codecs.fix.values",),
    "codecs.fix.datagram": ("codecs.fix.values", "codecs.fix.framing"),
    "codecs.fix.index": ("codecs.fix.values", "codecs.fix.framing"),
    "codecs.fix.entries": ("codecs.fix.values", "codecs.fix.framing", "codecs.fix.index"),
    "codecs.fix_runs": ("codecs.fix.values", "codecs.fix.framing", "codecs.fix.datagram"),
    "codecs.feed_table": ("codecs.fix_runs", "codecs.layout_sizes"),
    "codecs.fix_scanning": ("codecs.fix_runs", "codecs.feed_table"),
    "codecs.scanner": (
        "codecs.feed_table",
        "codecs.fix_runs",
        "codecs.fix_scanning",
        "codecs.layout_sizes",
    ),
    "codecs.message_symbols": (
        "codecs.feed_table",
        "codecs.fix_runs",
        "codecs.fix_scanning",
        "codecs.layout_sizes",
        "codecs.scanner",
    ),
    "codecs.message_walk": (
        "codecs.feed_table",
        "codecs.fix_runs",
        "codecs.fix_scanning",
        "codecs.layout_sizes",
        "codecs.scanner",
    ),
    "market.normaliser": ("market.wire_rules",),
    "market.fix_normaliser": ("market.normaliser", "market.wire_rules"),
    "market.records": ("market.depth_book", "market.normaliser", "market.wire_rules"),
    "market.order_messages": (
        "market.depth_book",
        "market.normaliser",
        "market.records",
        "market.wire_rules",
    ),
    "market.stream_reader": (
        "market.depth_book",
        "market.latest_messages",
        "market.normaliser",
        "market.order_messages",
        "market.records",
        "market.wire_rules",
    ),
    "fixcast.stamping": ("codecs.fix.values", "codecs.fix.framing"),
    "overlay.releasing": ("overlay.release",),
    "fixcast.send_queue": ("codecs.fix.values", "codecs.fix.framing", "fixcast.stamping"),
}
#: Cython's own run-time code (memory views and the like), compiled once for all.
UTILITY = "feedhandler._cython_utility"
UTILITY_UNIT = next(iter(UNITS))

#: Module name to source file, relative to the checkout: in pure-Python mode, and compiled only.
PURE_MODE: dict[str, str] = {}
COMPILED_ONLY: dict[str, str] = {}
#: Module name to the unit that holds it.
UNIT_OF: dict[str, str] = {UTILITY: UTILITY_UNIT}
for _unit, _names in UNITS.items():
    for _name in _names:
        _full = f"feedhandler.{_name}"
        UNIT_OF[_full] = _unit
        if _name in _COMPILED_ONLY_NAMES:
            COMPILED_ONLY[_full] = f"{_full.replace('.', '/')}.pyx"
        else:
            PURE_MODE[_full] = f"{_full.replace('.', '/')}.py"

_PACKAGE_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]


def unit_path(unit: str) -> str:
    """Return the path of a unit's shared library, whether it exists or not."""
    return os.path.join(_PACKAGE_FOLDER, "_units", unit + _SUFFIX)


def missing_units() -> list[str]:
    """Return the units that are not compiled, in the order of the table."""
    return [unit for unit in UNITS if not os.path.exists(unit_path(unit))]


#: Signs in the error of importing a unit that was compiled from other sources than another unit.
_STALE_SIGNS = (
    "dynamic module does not define module export function",
    "size changed, may indicate binary incompatibility",
    "has wrong signature",
    "__pyx_capi__",
)


def build_fault(error: Exception) -> str:
    """Return the fault of the compiled units that caused `error`; empty where none did."""
    if isinstance(error, NotCompiledError):
        return str(error)
    if isinstance(error, ImportError | ValueError | TypeError | AttributeError):
        text = str(error)
        if any(sign in text for sign in _STALE_SIGNS):
            return f"modules are compiled from different sources: {text}"
    return ""


def source_of(name: str) -> str:
    """Return the path of a pure-mode module's Python file."""
    return os.path.join(os.path.dirname(_PACKAGE_FOLDER), PURE_MODE[name])


class NotCompiledError(ImportError):
    """An import of a module whose unit is not compiled here, while others are."""


class _UnitFinder:
    """A finder of compiled modules in their units, before the `.py` beside their names is found.

    Where no unit at all is compiled, the modules run interpreted. Where some are and this one is
    not, compiled and interpreted types would meet: it raises `NotCompiledError` instead, unless
    `FEEDHANDLER_MIXED` is set (for one unit under a sanitizer).
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        unit = UNIT_OF.get(name)
        if unit is None:
            return None
        library = unit_path(unit)
        if not os.path.exists(library):
            if len(missing_units()) == len(UNITS) or os.environ.get("FEEDHANDLER_MIXED"):
                allow_cimports()
                return None
            raise NotCompiledError(f"{name} is not compiled, but other modules are", name=name)
        loader = importlib.machinery.ExtensionFileLoader(name, library)
        return importlib.util.spec_from_file_location(name, library, loader=loader)


class _InterpretedFinder:
    """A finder of a compiled module's `.py`, asked before `_UnitFinder`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in PURE_MODE:
            return None
        allow_cimports()
        return importlib.util.spec_from_file_location(name, source_of(name))


#: The prefix of an import that the Cython compiler resolves.
_CIMPORTS = "cython.cimports."


class _CimportFinder:
    """A finder of `cython.cimports` for interpreted modules.

    `from cython.cimports.feedhandler.x import y` then imports from `feedhandler.x`, compiled or
    not.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not (name + ".").startswith(f"{_CIMPORTS}feedhandler."):
            return None
        return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave making the module to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # The import returns what `sys.modules` holds when this returns.
        sys.modules[name] = importlib.import_module(name.removeprefix(_CIMPORTS))


def allow_cimports() -> None:
    """Install `_CimportFinder`, unless it is; needed before a module runs interpreted."""
    if any(isinstance(finder, _CimportFinder) for finder in sys.meta_path):
        return
    import cython  # noqa: F401 - brings `cython.cimports`

    # It is no real module, and the import system looks for a spec in each parent package.
    vars(sys.modules["cython.cimports"]).setdefault("__spec__", None)
    sys.meta_path.insert(0, _CimportFinder())


def require_units(names: Sequence[str]) -> None:
    """Raise `NotCompiledError` where some of these units are not compiled, but others are.

    For commands that start processes: an error of the finder in a child process reaches the parent
    only as the child's death.
    """
    missing = missing_units()
    lacking = [unit for unit in missing if unit in names]
    if lacking and len(missing) < len(UNITS) and not os.environ.get("FEEDHANDLER_MIXED"):
        what = "unit" if len(lacking) == 1 else "units"
        raise NotCompiledError(f"{what} {', '.join(lacking)} not compiled, but others are")


def install_finder() -> None:
    """Make later imports find compiled modules in their units; once a process."""
    if not any(isinstance(finder, _UnitFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _UnitFinder())


def prefer_interpreted() -> None:
    """Make every later import of a pure-mode module take its Python file."""
    if not any(isinstance(finder, _InterpretedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _InterpretedFinder())


def load_interpreted(name: str) -> ModuleType:
    """Load the interpreted twin of compiled module `name`, as a module object of its own.

    Its imports resolve to the modules that are loaded already (compiled, unless configured
    otherwise), except for its `TWINS_OF_TWINS`. Raises `KeyError` for a module that is not in
    `PURE_MODE`.
    """
    twin_name = name + "__interpreted"
    if twin_name in sys.modules:
        return sys.modules[twin_name]
    allow_cimports()
    spec = importlib.util.spec_from_file_location(twin_name, source_of(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[twin_name] = module
    needed = TWINS_OF_TWINS.get(name.removeprefix("feedhandler."), ())
    twins = {each: load_interpreted(each) for each in map("feedhandler.{}".format, needed)}
    with _standing_for(twins):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _standing_for(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Make imports of these names resolve to these modules while the context lasts.

    Importing one under its `cython.cimports` name also sets it as an attribute of its package; that
    is restored, too.
    """
    names = [*modules, *(_CIMPORTS + name for name in modules)]
    before = {name: sys.modules.pop(name, None) for name in names}
    parents = [(importlib.import_module(name.rpartition(".")[0]), name) for name in modules]
    attributes = [(vars(each), name.rpartition(".")[2]) for each, name in parents]
    had = [space.get(attribute) for space, attribute in attributes]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for (space, attribute), module in zip(attributes, had, strict=True):
            space.pop(attribute, None)
            if module is not None:
                space[attribute] = module
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
