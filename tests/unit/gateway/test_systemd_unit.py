"""The unit file: systemd takes it, and it says what the gateway does."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feedhandler.terminal.console import ExitCode
from tests.support.checkout import CHECKOUT

UNIT = CHECKOUT / "docs" / "feedhandler.service"


@pytest.fixture(scope="module")
def unit() -> configparser.RawConfigParser:
    """The unit, which has no key twice in a section."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("no systemd-analyze here")
    copy = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/feedhandler/bin/feedhandler", sys.executable)
    copy.write_text(text.replace("network-online.target", "").replace("time-sync.target", ""))
    done = subprocess.run(
        [verifier, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=200
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not complaints


def test_it_has_the_three_sections_and_starts_the_run_command(
    unit: configparser.RawConfigParser,
) -> None:
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert unit["Service"]["Type"] == "notify"
    words = unit["Service"]["ExecStart"].split()
    assert words[0].startswith("/")
    assert words[1] == "run"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_a_wrong_configuration_is_not_started_again(unit: configparser.RawConfigParser) -> None:
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == ExitCode.USAGE


def test_the_times_fit_the_gateways(unit: configparser.RawConfigParser) -> None:
    from feedhandler.gateway import STOP_SECONDS
    from feedhandler.gateway.watch import TICK_SECONDS
    from feedhandler.observe.health import LOOP_LAG_NS_MAX

    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) > 2 * STOP_SECONDS
    assert float(service["WatchdogSec"]) / 2 > 4 * TICK_SECONDS
    assert float(service["WatchdogSec"]) > LOOP_LAG_NS_MAX / 1e9


def test_it_runs_hardened_and_bounded(unit: configparser.RawConfigParser) -> None:
    service = unit["Service"]
    assert service["User"] != "root"
    assert service["CapabilityBoundingSet"] == ""
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "LockPersonality"):
        assert service[key] == "yes"
    assert {"LimitNOFILE", "MemoryMax", "TasksMax"} <= set(service)
