"""Processors are kept awake while a file is held open; where that cannot be, it is reported."""

import os
from pathlib import Path

import pytest

from feedhandler.doctor import cpu_latency
from feedhandler.doctor.cpu_latency import DEVICE, staying_awake


def held_open(path: Path) -> bool:
    """Return whether this process has `path` open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return str(path) in found


def test_no_wait_at_all_is_asked_for_while_the_file_is_held_open(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.write_bytes(b"")
    with staying_awake(device) as why:
        assert why == ""
        assert held_open(device)
        assert device.read_bytes() == bytes(4)
    assert not held_open(device)


def test_an_error_meanwhile_lets_go_of_it(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.write_bytes(b"")
    with pytest.raises(ZeroDivisionError), staying_awake(device):
        1 / 0  # noqa: B018
    assert not held_open(device)


def test_a_kernel_without_it_is_reported_and_no_file_is_made(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    with staying_awake(device) as why:
        assert why == f"{device}: no such file or directory"
    assert cpu_latency.fault(device) == why
    assert not device.exists()


def test_what_may_not_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.write_bytes(b"")
    assert cpu_latency.fault(device) == ""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cpu_latency.fault(device) == f"{device}: permission denied"


def test_the_kernel_counts_a_holder() -> None:
    if fault := cpu_latency.fault():
        pytest.skip(fault)
    with staying_awake() as why:
        assert why == ""
        # The kernel answers what all holders together ask for.
        held = os.open(DEVICE, os.O_RDONLY)
        try:
            assert int.from_bytes(os.read(held, 4), "little") == 0
        finally:
            os.close(held)
