"""Fixtures of all tests: real captures, real brokers, requirements that must not be skipped; and
names of their own for tests that run in several processes.

`FEEDHANDLER_REQUIRE` is a comma list of `captures`, `brokers`, `clients`, `java`, `wheel`,
`hooks`: a test that would skip for want of one of them fails instead. `FEEDHANDLER_CAPTURES` names
the captures folder; without it a folder `shared/captures` beside the checkout is used where there
is one.
"""

import asyncio
import functools
import gc
import importlib.util
import inspect
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvloop

from feedhandler import operator_log
from tests.support.brokers import BROKERS, Absent, Artemis, Broker, BrokerJ, RabbitMQ3, RabbitMQ4
from tests.support.checkout import CHECKOUT
from tests.support.needs import absent
from tests.support.seeds import rerun, seed_of

#: Spark's Java lives for seconds here: it had better not spend them, and the other processor, on
#: making its own code faster. Commands in processes of their own have it too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
#: Tests start hundreds of processes that import numpy. None multiplies matrices: threads for that,
#: which spin while they wait, take a third of the time that a command needs to start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
#: For every Spark session of the tests: one partition for each processor, not 200, and no web page.
SPARK_DEFAULTS = "spark.sql.shuffle.partitions 2\nspark.ui.enabled false\n"
#: In which order folders' tests begin where several processes share them: those that wait most,
#: and take longest, first.
FOLDERS = ("interop", "system", "fuzz", "simulation", "unit")

# How long an example takes is the machine's, not the code's. Whoever draws anew tries more.
hypothesis.settings.register_profile(
    "untimed",
    deadline=None,
    max_examples=100 if os.environ.get("FRESH") else 25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("untimed")

# Collecting makes a million objects that stay, and the collector would go through them meanwhile (a
# third of the time that collecting takes) and again during tests.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws the same each time, unless told otherwise; nothing is lost to haste."""
    # A shell starts a job in the background with SIGINT ignored, and children inherit that: no test
    # of an interrupt would ever hear one.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The end of an operator log waits for its lines, however late a busy machine writes them.
    operator_log.CLOSE_SECONDS = 60.0
    if config.getoption("hypothesis_seed", "") is None:
        config.option.hypothesis_seed = str(seed_of("hypothesis"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, by its fixture `run` where it has one.

    What is marked `gateways_loop` runs on uvloop, as a gateway does, and all else on asyncio's.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }
    marked = pyfuncitem.get_closest_marker("gateways_loop")
    run = pyfuncitem.funcargs.get("run", uvloop.run if marked else asyncio.run)
    run(pyfuncitem.obj(**given))
    return True


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of a random test, printed with the command that runs it again."""
    test = request.node.nodeid
    number = seed_of(test)
    print(rerun(test, number))
    return number


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real captures (`iex/`, `nyse/`)."""
    folder = Path(os.environ.get("FEEDHANDLER_CAPTURES", CHECKOUT.parent / "shared" / "captures"))
    if not folder.is_dir():
        absent("captures", f"no captures at {folder}; set FEEDHANDLER_CAPTURES to their folder")
    return folder


@pytest.fixture(scope="session")
def venues(captures: Path) -> Path:
    """The folder of other venues' packets, a folder a feed, beside that of the captures."""
    folder = captures.parent / "venues"
    if not folder.is_dir():
        absent("captures", f"no packets of other venues at {folder}")
    return folder


def brokers_of(item: Any) -> set[str]:
    """The brokers that a collected test asks for, by a fixture's name or as a parameter."""
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return BROKERS.keys() & {*item.fixturenames, *(each for each in chosen if type(each) is str)}


def pytest_collection_finish() -> None:
    """From here on garbage is collected, out of what tests make."""
    gc.freeze()
    gc.enable()


@functools.cache
def group_of(path: str) -> str:
    """Return the name of the group of test files that one process runs as a whole.

    All files with brokers, which tests stop, freeze and kill, are one; any other is its own.
    """
    return "brokers" if "from tests.support.brokers" in (CHECKOUT / path).read_text() else path


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Mark the random tests. Where processes share the tests, what takes longest comes first: for
    the last minute there are small groups left, for whoever is idle."""
    for each in items:
        given = each.callspec.params if hasattr(each, "callspec") else {}
        if "seed" in each.fixturenames and given.get("seed") is None:
            each.add_marker("random")
    if hasattr(config, "workerinput"):

        def turn(item: Any) -> tuple[bool, int]:
            path = item.path.relative_to(CHECKOUT)
            return group_of(str(path)) != "brokers", FOLDERS.index(path.parts[1])

        items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand groups to processes, one when they have done with one, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.fixture(scope="session")
def brokers(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    broker_certificates: Any,
) -> Iterator[Callable[[str], Any]]:
    """Gives the running broker of a name; the first who asks starts all that are needed.

    They start side by side, and stay to the end of the session: a test leaves them running, and
    takes names for its exchanges and queues that no other test has.
    """
    asked = {name for item in request.session.items for name in brokers_of(item)}
    running: list[Broker] = []

    def started(name: str) -> Broker:
        broker = BROKERS[name](tmp_path_factory.mktemp(name))
        running.append(broker)
        if isinstance(broker, RabbitMQ3):
            broker.serve_tls(broker_certificates.ca, *broker_certificates.issue("127.0.0.1"))
        broker.start()
        return broker

    with ThreadPoolExecutor(max_workers=2) as pool:
        starting: dict[str, Future[Broker]] = {}

        def get(name: str) -> Broker:
            wanted = {name} if starting else {name, *asked}
            for each in BROKERS:
                if each in wanted and each not in starting:
                    starting[each] = pool.submit(started, each)
            try:
                return starting[name].result()
            except Absent as error:
                absent("brokers", str(error))
                raise

        try:
            yield get
        finally:
            for each in starting.values():
                each.cancel()
            wait(starting.values())
            for broker in running:
                broker.discard()


@pytest.fixture(scope="session")
def broker_certificates(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The CA of what brokers have for TLS, and whose certificates they believe."""
    from tests.support.security import Certificates

    return Certificates(tmp_path_factory.mktemp("broker-certificates"), "broker")


@pytest.fixture(scope="session")
def rabbitmq3(brokers: Callable[[str], Any]) -> RabbitMQ3:
    """RabbitMQ 3.10."""
    return brokers("rabbitmq3")


@pytest.fixture(scope="session")
def rabbitmq4(brokers: Callable[[str], Any]) -> RabbitMQ4:
    """RabbitMQ 4.0."""
    return brokers("rabbitmq4")


@pytest.fixture(scope="session")
def artemis(brokers: Callable[[str], Any]) -> Artemis:
    """ActiveMQ Artemis."""
    return brokers("artemis")


@pytest.fixture(scope="session")
def brokerj(brokers: Callable[[str], Any]) -> BrokerJ:
    """Qpid Broker-J."""
    return brokers("brokerj")


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """No test leaves a signal to somebody else than it found: the next test would not hear it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    after = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    assert after == before, "a signal's handler was left behind"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One small Spark session for all who need one."""
    if importlib.util.find_spec("pyspark") is None:
        absent("java", "pyspark is not installed")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        absent("java", "no Java found; Spark needs 17 or later")
    from feedhandler.characterise import register
    from feedhandler.characterise.cluster import spark_session

    folder = tmp_path_factory.mktemp("spark")
    (folder / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
    with pytest.MonkeyPatch.context() as patch:
        # Children that start a Spark of their own have it too.
        patch.setenv("SPARK_CONF_DIR", str(folder))
        session = spark_session("local[2]", memory="1g")
        register(session)
        yield session
        session.stop()
