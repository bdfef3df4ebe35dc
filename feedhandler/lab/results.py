"""The results of a laboratory run, as values, and the two files that hold it.

A `Run` is everything: its configuration, its machine, the measurements of each step, the bars it
met. The report is made from it and from nothing else. `write_run` writes it into a folder as
`run.json` and, for arrays, `run.npz`; `read_run` reads it back.

Times are integer nanoseconds where they are single values, and seconds (float64) where they are an
axis. A *step* is one measurement: one scenario, one exchange, one number of clients, one rate.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct, field

from feedhandler.codecs.errors import PeerError
from feedhandler.histogram import BUCKETS, UPPER_BOUNDS, Histogram, percentiles_of

#: Format version of the files; a reader refuses any other.
FORMAT = 1
#: The files of a run.
JSON_NAME, ARRAYS_NAME = "run.json", "run.npz"

Array = np.ndarray[Any, Any]

Scenario = Literal["packets", "messages"]
Exchange = Literal["direct", "topic"]
#: How latency is measured: as the paper did, broker alone, by control datagrams to one stamping
#: process; or from the gateway's kernel receive stamp to the client's read.
Mode = Literal["paper", "direct"]


def _no_counts() -> Array:
    return np.zeros(BUCKETS, np.uint64)


def _no_array() -> Array:
    return np.zeros(0)


class Latency(Struct, kw_only=True):
    """A distribution of latencies: exact count, sum and extremes, and a histogram.

    `buckets` is u64[BUCKETS] of `feedhandler.histogram`, whose percentiles are within 3 percent.
    """

    count: int = 0
    sum_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    buckets: np.ndarray = field(default_factory=_no_counts)

    @property
    def mean_ns(self) -> float:
        """The mean; 0 where nothing was measured."""
        return self.sum_ns / self.count if self.count else 0.0

    def percentiles(self, *shares: float) -> list[int]:
        """Return the latencies in ns below which these shares (0..1) lie, at most the maximum."""
        return [min(found, self.max_ns) for found in percentiles_of(self.buckets, *shares)]

    def cumulative(self) -> tuple[Array, Array]:
        """Return the cumulative distribution: upper bounds (int64, ns), and shares up to each."""
        filled = np.flatnonzero(self.buckets)
        shares = np.cumsum(self.buckets[filled]) / max(1, int(self.buckets.sum()))
        return UPPER_BOUNDS[filled], shares


def answer_of(histogram: Histogram) -> dict[str, Any]:
    """Return a histogram as a part of a role's answer; `latency_of_answer` reads it."""
    counts = histogram.counts()
    filled = np.flatnonzero(counts)
    return {
        "count": int(histogram.count),
        "sum_ns": int(histogram.total),
        "min_ns": int(histogram.minimum),
        "max_ns": int(histogram.maximum),
        "buckets": filled.tolist(),
        "counts": counts[filled].tolist(),
    }


def latency_of_answer(answer: dict[str, Any]) -> Latency:
    """Return a role's answer as a distribution."""
    buckets = np.zeros(BUCKETS, np.uint64)
    buckets[answer["buckets"]] = answer["counts"]
    figures = {name: answer[name] for name in ("count", "sum_ns", "min_ns", "max_ns")}
    return Latency(buckets=buckets, **figures)


def merged(parts: Iterable[Latency]) -> Latency:
    """Merge several distributions into one."""
    whole = Latency()
    for part in parts:
        if not part.count:
            continue
        whole.min_ns = min(whole.min_ns, part.min_ns) if whole.count else part.min_ns
        whole.max_ns = max(whole.max_ns, part.max_ns)
        whole.count += part.count
        whole.sum_ns += part.sum_ns
        whole.buckets = whole.buckets + part.buckets
    return whole


def load_words(rate_bps: float, pace: float, symbols: str) -> str:
    """Put a load into words: `40 Mbps`, `10x the original pace, symbols 100,5%,all`."""
    if not pace:
        speed = f"{rate_bps / 1e6:g} Mbps"
    else:
        speed = "original pace" if pace == 1 else f"{pace:g}x the original pace"
    return f"{speed}, symbols {symbols}" if symbols else speed


class Sent(Struct, kw_only=True):
    """Datagrams that the replayer sent in the measured part of a step.

    `datagrams` on all lines together, `packets` and `messages` of the stream (each once),
    `payload_bytes` of the stream's packets, `frame_bits` on all lines as Ethernet frames.
    `peak_bps`: the greatest rate that the schedule had, at a recording's own pace within ten
    milliseconds. `behind` sends left more than a millisecond late. `services`: packets by service.
    """

    datagrams: int = 0
    packets: int = 0
    messages: int = 0
    payload_bytes: int = 0
    frame_bits: int = 0
    duration_ns: int = 0
    peak_bps: float = 0.0
    behind: int = 0
    lateness_max_ns: int = 0
    passes: int = 0
    services: dict[int, int] = {}

    @property
    def rate_bps(self) -> float:
        """Rate that was reached, bits of Ethernet frames a second."""
        return self.frame_bits * 1e9 / self.duration_ns if self.duration_ns else 0.0


class ClientResult(Struct, kw_only=True):
    """The result of one client: AMQP messages, each expected once and in order.

    Warm-up included in the counts, excluded from `latency`. `findings` names the first few
    deliveries that were wrong, one line each. `symbols` is how many it wanted, 0: everything.
    """

    number: int
    symbols: int = 0
    expected: int = 0
    received: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    announced_lost: int = 0
    body_bytes: int = 0
    latency: Latency = field(default_factory=Latency)
    findings: list[str] = []


class Loads(Struct, kw_only=True):
    """One role's load over the measured part, one row for each sample.

    t_s                    seconds since the measured part began
    user_cpu, system_cpu   share of one processor since the sample before (1.0: all of one)
    rss_bytes              resident memory
    net_in_bytes, net_out_bytes
                           through its sockets since the measured part began
    queued_bytes           bytes waiting in its queues, where it reports them (else empty)
    """

    role: str
    processes: int = 1
    t_s: np.ndarray = field(default_factory=_no_array)
    user_cpu: np.ndarray = field(default_factory=_no_array)
    system_cpu: np.ndarray = field(default_factory=_no_array)
    rss_bytes: np.ndarray = field(default_factory=_no_array)
    net_in_bytes: np.ndarray = field(default_factory=_no_array)
    net_out_bytes: np.ndarray = field(default_factory=_no_array)
    queued_bytes: np.ndarray = field(default_factory=_no_array)


class Traffic(Struct, kw_only=True):
    """Bytes through one point of the path during the measured part, for one subscription grain.

    `where` is `gateway`, `broker` or `client`; bytes include the protocol's own.
    """

    where: str
    grain: str
    bytes_in: int = 0
    bytes_out: int = 0


class Verdict(Struct, kw_only=True):
    """One quantity of a step's bar, and whether it was met; `bound_ns` 0: of loss alone."""

    bar: str
    quantity: str
    found_ns: int
    bound_ns: int
    met: bool


class Step(Struct, kw_only=True):
    """One measurement.

    `rate_bps` is as asked, all lines together; where `pace` is given, the capture was played at
    that multiple of its own pace, and `rate_bps` is the mean of that. `symbols`: how many each
    client wanted (`100`, `5%`, `100,all` in turn), everything where empty. `warm_up_s` was sent
    before the `duration_s` that are timed. `latency` is over all clients (in the paper's mode: of
    the control client). `findings` fail the run, unless the step is a sweep's `trial`, which is
    there to find where they begin. `queue_limit_bytes` is of each subscription, 0: none.
    """

    scenario: Scenario
    exchange: Exchange
    clients: int
    broker: str = "embedded"
    mode: Mode = "direct"
    grain: str = "packet"
    rate_bps: float = 0.0
    pace: float = 0.0
    symbols: str = ""
    duration_s: float = 0.0
    warm_up_s: float = 0.0
    started: str = ""
    sent: Sent = field(default_factory=Sent)
    results: list[ClientResult] = []
    latency: Latency = field(default_factory=Latency)
    loads: list[Loads] = []
    traffic: list[Traffic] = []
    queue_limit_bytes: int = 0
    gateway: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    findings: list[str] = []
    trial: bool = False

    @property
    def load(self) -> str:
        """The load for people: how fast, and what clients wanted of it."""
        return load_words(self.rate_bps, self.pace, self.symbols)


class Trial(Struct, kw_only=True):
    """One trial of a sweep: its value, the bound's latency, whether the bound was kept.

    `why` says why not; a loss fails a trial too.
    """

    value: float
    found_ns: int
    held: bool
    why: str = ""


class Sweep(Struct, kw_only=True):
    """A search: up to which `quantity` (`rate` in bit/s, or `clients`) a bound (`p90=1ms`) is kept.

    `held` is the highest that kept it, `failed` the lowest that did not, None where there was none.
    The trials' steps are among the run's, in the same order.
    """

    quantity: Literal["rate", "clients"]
    bound: str
    scenario: Scenario = "packets"
    exchange: Exchange = "direct"
    trials: list[Trial] = []
    held: float | None = None
    failed: float | None = None


class Run(Struct, kw_only=True):
    """Everything of a run.

    `configuration`, `machine`, `versions` and `seeds` are what is needed to repeat it.
    """

    format: int = FORMAT
    started: str = ""
    configuration: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    seeds: dict[str, int] = {}
    steps: list[Step] = []
    sweeps: list[Sweep] = []

    @property
    def findings(self) -> list[str]:
        """Findings that fail the run, each with its step."""
        return [
            f"{step.scenario} to {step.clients}, {step.exchange}: {finding}"
            for step in self.steps
            for finding in step.findings
            if not step.trial
        ]


def write_run(run: Run, folder: Path) -> Path:
    """Write both files into `folder`, which is made; return the path of the JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Array] = {}
    tree = _without_arrays(run, "", arrays)
    np.savez_compressed(folder / ARRAYS_NAME, **arrays)  # type: ignore[arg-type]
    path = folder / JSON_NAME
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=1))
    return path


def _without_arrays(value: Any, index: str, arrays: dict[str, Array]) -> Any:
    """Return `value` with each array replaced by its name in `arrays`: its path in the tree."""
    if isinstance(value, np.ndarray):
        arrays[index] = value
        return {"npz": index}
    inner = f"{index}." if index else ""
    if isinstance(value, Struct):
        names = value.__struct_fields__
        return {name: _without_arrays(getattr(value, name), inner + name, arrays) for name in names}
    if isinstance(value, list):
        return [_without_arrays(each, f"{inner}{at}", arrays) for at, each in enumerate(value)]
    return value


def read_run(folder: Path) -> Run:
    """Read a run as it was written.

    Raises `PeerError` where the file holds no run of this format, `OSError` where it cannot be
    read.
    """
    data = (folder / JSON_NAME).read_bytes()
    with np.load(folder / ARRAYS_NAME) as stored:
        arrays = dict(stored)

    def array(kind: type, values: Any) -> Any:
        if kind is not np.ndarray:
            raise TypeError(f"no {kind.__name__} here")
        return arrays[values["npz"]]

    try:
        run: Run = msgspec.json.decode(data, type=Run, dec_hook=array)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise PeerError(f"{folder / JSON_NAME} holds no run: {error}") from None
    if run.format != FORMAT:
        raise PeerError(f"{folder / JSON_NAME} is of format {run.format}, not {FORMAT}")
    return run
