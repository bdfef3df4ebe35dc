"""The bench beside Aeron: what it says where Aeron cannot run, and its clock of other processes."""

import os
import shutil
import subprocess
import time

import pytest

from bench import bench_overlay_aeron as bench


def without(monkeypatch: pytest.MonkeyPatch, *tools: str) -> None:
    """A machine that has not built the Java program, and lacks these tools."""
    monkeypatch.setattr(shutil, "which", lambda name: None if name in tools else f"/bin/{name}")
    monkeypatch.setattr(bench, "java_classes", lambda name: None)


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        (("java", "javac", "mvn"), "no java; apt install default-jdk-headless"),
        (("mvn",), "Aeron is not installed, and there is no mvn to fetch it with"),
        (("javac",), "Aeron is not installed, and there is no javac to fetch it with"),
    ],
)
def test_a_machine_without_the_tools_skips_it(
    tools: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without(monkeypatch, *tools)
    assert bench.run() == {"problems": [], "skipped": reason}
    assert capsys.readouterr().out == f"  skipped: {reason}\n"


def test_what_cannot_be_fetched_skips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str) -> None:
        raise subprocess.CalledProcessError(1, ["mvn", "-q"])

    without(monkeypatch)
    monkeypatch.setattr(bench, "install_java", install)
    assert bench.run()["skipped"] == "Aeron cannot be fetched: mvn failed"


def test_processor_time_of_a_process_is_what_it_measures_itself() -> None:
    before = time.process_time_ns()
    found = bench._processor_ns([os.getpid()])
    assert before <= found <= time.process_time_ns()
