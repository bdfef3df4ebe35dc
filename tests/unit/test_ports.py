"""Ports that are chosen now and bound later."""

import socket

import pytest

from feedhandler import ports
from feedhandler.codecs.errors import UsageError


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_given", set())


def test_they_differ_and_lie_below_what_the_kernel_hands_out() -> None:
    found = [port for _ in range(20) for port in ports.free_ports(5)]
    assert len({*found}) == 100
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        assert max(found) < int(file.read().split()[0])


def test_a_listener_keeps_its_port_and_where_all_are_taken_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = ports.free_ports(1)[0]
    with socket.create_server(("127.0.0.1", first)):
        monkeypatch.setattr(ports, "_given", set())
        monkeypatch.setattr(ports, "PORTS", range(first, first + 1))
        with pytest.raises(UsageError, match=f"no ports from {first} to {first} are free"):
            ports.free_ports(1)
    assert ports.free_ports(1) == [first]
    with pytest.raises(UsageError, match="are free"):
        ports.free_ports(1)
