"""The doctor's checks, each shown a host that is ill in one way."""

import socket

import msgspec
import pytest

from feedhandler._compiled import NotCompiledError
from feedhandler.config import LineConfig, ReceiveConfig, loopback_config
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.doctor import cpu_latency, host
from feedhandler.doctor import examination as doctor
from feedhandler.doctor.host import ClockState, InterfaceState, SelfTest
from feedhandler.doctor.memory_bounds import memory_bounds
from feedhandler.ops.scenes import SCENES
from feedhandler.terminal import console
from tests.support.checkout import CHECKOUT


def test_a_sound_host_has_no_failure_on_loopback() -> None:
    checks = list(doctor.all_checks(loopback_config(services=[104]), is_default=True))
    assert not [check for check in checks if check.status == "fail"]


def test_every_configured_line_and_the_port_are_looked_at() -> None:
    checks = {check.name: check for check in doctor.all_checks(loopback_config(services=[104]))}
    assert checks["line 104.A"].status == checks["line 104.B"].status == "ok"
    assert checks["AMQP port 0"].status == "ok"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("euronext", {"line 104.A", "line 104.B", "refresh line 104.A", "refresh line 104.B"}),
        ("fix", {"line 1.A", "line 1.B", "server rts, line R"}),
    ],
)
def test_lines_of_refreshes_and_of_servers_are_looked_at_too(key: str, names: set[str]) -> None:
    checks = {check.name: check for check in doctor.all_checks(SCENES[key].config(16_000))}
    assert {checks[name].status for name in names} == {"ok"}


def test_a_small_receive_buffer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "granted_receive_buffer", lambda wanted: 212_992)
    (check,) = doctor.check_receive_buffer(8 << 20)
    assert check.status == "warn"
    assert check.remedy == "sysctl -w net.core.rmem_max=8388608"


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (None, "no such interface"),
        (InterfaceState("eth9", "10.0.0.1", False, False, True), "eth9 is down"),
        (InterfaceState("eth9", "10.0.0.1", True, False, False), "eth9 does no multicast"),
    ],
)
def test_an_interface_that_cannot_serve_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, state: InterfaceState | None, found: str
) -> None:
    monkeypatch.setattr(host, "interface_state", lambda interface: state)
    (check,) = doctor.check_interface("eth9")
    assert (check.status, check.found) == ("fail", found)
    assert check.remedy


def test_a_strict_reverse_path_filter_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    state = InterfaceState("eth9", "10.0.0.1", True, False, True)
    monkeypatch.setattr(host, "interface_state", lambda interface: state)
    monkeypatch.setattr(host, "strict_reverse_path", lambda name: True)
    monkeypatch.setattr(host, "multicast_self_test", lambda interface: SelfTest(50, True))
    statuses = [check.status for check in doctor.check_interface("eth9")]
    assert statuses == ["ok", "warn", "ok"]


@pytest.mark.parametrize(
    ("result", "status"), [(None, "fail"), (SelfTest(9, False), "warn"), (SelfTest(9, True), "ok")]
)
def test_a_datagram_must_come_back_with_its_stamp(
    monkeypatch: pytest.MonkeyPatch, result: SelfTest | None, status: str
) -> None:
    monkeypatch.setattr(host, "multicast_self_test", lambda interface: result)
    assert list(doctor.check_interface("127.0.0.1"))[-1].status == status


def test_a_network_that_refuses_to_send_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(interface: str) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(host, "multicast_self_test", refuse)
    check = list(doctor.check_interface("127.0.0.1"))[-1]
    assert (check.status, check.found) == ("fail", "sending failed: Network is unreachable")


@pytest.mark.parametrize(
    ("clock", "status"),
    [
        (None, "warn"),
        (ClockState(False, 16_000_000), "warn"),
        (ClockState(True, 50_000), "warn"),
        (ClockState(True, 40), "ok"),
    ],
)
def test_a_clock_that_is_not_disciplined_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, clock: ClockState | None, status: str
) -> None:
    monkeypatch.setattr(host, "clock_state", lambda: clock)
    assert doctor.check_clock().status == status


def test_a_line_that_cannot_be_joined_is_a_failure() -> None:
    line = LineConfig(name="A", group="239.101.1.4", port=30_104)
    check = doctor.check_join("line 104.A", line, "no-such-card")
    assert check.status == "fail"
    assert "no-such-card" in check.found


def test_a_port_that_is_taken_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert doctor.check_port(taken.getsockname()).status == "fail"
    assert doctor.check_port(("127.0.0.1", 0)).status == "ok"


def test_too_few_descriptors_are_a_warning() -> None:
    assert doctor.check_descriptors(1).status == "ok"
    assert doctor.check_descriptors(2**40).status in ("warn", "ok")


def test_one_processor_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert doctor.check_cpus().status == "warn"


def test_a_processor_that_is_not_here_is_a_failure() -> None:
    config = loopback_config()
    assert not list(doctor.check_pinned(config))
    pinned = msgspec.structs.replace(config, receive=ReceiveConfig(cpu=4095))
    (check,) = doctor.check_pinned(pinned)
    assert (check.name, check.status) == ("receive.cpu", "fail")
    assert check.remedy.startswith("one of ")
    assert check in list(doctor.all_checks(pinned, is_default=True))


def test_modules_that_run_interpreted_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PURE_MODE", {"feedhandler.config": ""})
    monkeypatch.setattr(doctor, "COMPILED_ONLY", {})
    (check,) = doctor.check_modules()
    assert check.status == "warn"
    monkeypatch.setattr(doctor, "COMPILED_ONLY", {"feedhandler.not_there": ""})
    (check,) = doctor.check_modules()
    assert (check.status, check.remedy) == ("fail", "make build")


def test_a_unit_that_is_missing_beside_others_fails_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "missing_units", lambda: ["characterise"])
    (check,) = doctor.check_modules()
    assert (check.status, check.remedy) == ("fail", "make build")
    assert "characterise" in check.found


@pytest.mark.parametrize(
    "error",
    [
        NotCompiledError("feedhandler.codecs.columns is not compiled, but other modules are"),
        ImportError("dynamic module does not define module export function (PyInit_ring)"),
        ValueError("x.Hold size changed, may indicate binary incompatibility. Expected 96"),
    ],
)
def test_units_that_do_not_fit_are_one_line_with_the_remedy(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert console.report(error) == console.ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "make build" in said


def test_the_kernels_answers_make_sense() -> None:
    loopback = host.interface_state("127.0.0.1")
    assert loopback is not None
    assert loopback.is_loopback
    assert loopback.is_up
    assert host.interface_state(loopback.name) == loopback
    assert host.granted_receive_buffer(65_536) >= 65_536
    assert isinstance(host.has_net_admin(), bool)
    assert isinstance(host.strict_reverse_path(loopback.name), bool)


def test_the_sum_of_all_bounds_is_printed() -> None:
    config = loopback_config(services=[104])
    assert config.waiting_bytes_max == config.amqp.max_links * config.amqp.queue_bytes
    check = doctor.check_queues(config)
    assert f"{config.waiting_bytes_max:,} bytes at most" in check.found
    bounds = memory_bounds(config)
    (check,) = doctor.check_memory(config)
    assert f"{sum(each.most for each in bounds):,} bytes at most" in check.found
    assert f"queues of links {config.waiting_bytes_max:,}" in check.found


def test_every_bound_of_memory_is_documented() -> None:
    queue = DurableQueueConfig(name="NAME", folder="/nowhere")
    config = msgspec.structs.replace(loopback_config(services=[104]), queues=(queue,))
    page = (CHECKOUT / "docs" / "flow-control.md").read_text()
    assert not [each for each in memory_bounds(config) if f"| {each.name} |" not in page]


@pytest.mark.parametrize(
    ("wanted", "fault", "status"),
    [(True, "no such file", "warn"), (True, "", "ok"), (False, "no such file", "ok")],
)
def test_processors_that_cannot_be_kept_awake_are_a_warning_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, fault: str, status: str
) -> None:
    monkeypatch.setattr(cpu_latency, "fault", lambda: fault)
    check = doctor.check_awake(wanted)
    assert check.status == status
    assert bool(check.remedy) == (status == "warn")
