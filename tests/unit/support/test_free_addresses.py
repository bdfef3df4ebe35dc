"""Test processes keep out of one another's way: their groups and ports, and who runs what."""

import ipaddress
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FOLDERS, group_of
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT

TESTS = CHECKOUT / "tests"


def test_each_process_has_a_slot_of_its_own() -> None:
    program = (
        "from tests.support import free_addresses as a; print(a.slot()[0], a.group(), flush=1)"
    )
    holding = [sys.executable, "-c", program + "; input()"]
    mine = free_addresses.group()
    with subprocess.Popen(
        holding, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        number, group = other.stdout.readline().split()
        assert int(number) != free_addresses.slot()[0]
        assert group.split(".")[1] != mine.split(".")[1]
        other.kill()


def test_groups_and_ports_are_given_once() -> None:
    groups = [free_addresses.group() for _ in range(100)]
    assert len({*groups}) == 100
    assert all(ipaddress.ip_address(each).is_multicast for each in groups)
    ports = [free_addresses.port() for _ in range(20)]
    assert len({*ports}) == 20
    assert max(ports) < free_addresses.FIRST_EXCHANGE_PORT


def test_a_port_in_use_is_not_given() -> None:
    with socket.create_server(("127.0.0.1", free_addresses.port())) as taken:
        number = taken.getsockname()[1]
        assert number not in [free_addresses.port() for _ in range(free_addresses.PORTS)]


def test_slots_do_not_overlap() -> None:
    last = free_addresses.SLOTS - 1
    end = free_addresses.FIRST_PORT + free_addresses.PORTS * free_addresses.SLOTS
    assert end <= free_addresses.FIRST_EXCHANGE_PORT
    # Lines and refresh lines of services 101 to 107 come in steps of a thousand.
    assert free_addresses.EXCHANGE_PORTS > 7
    assert free_addresses.EXCHANGE_PORTS * last + 107 < 1_000 + 101
    assert free_addresses.FIRST_BYTE + last < 256


@pytest.mark.parametrize("folder", ["system", "interop"])
def test_files_that_ask_for_brokers_are_of_one_group(folder: str) -> None:
    from tests.support.brokers import BROKERS

    files = [path.relative_to(CHECKOUT) for path in (TESTS / folder).glob("test_*.py")]
    asking = [
        path
        for path in files
        if any(f"({name}:" in (text := path.read_text()) or f" {name}:" in text for name in BROKERS)
    ]
    assert asking
    assert {group_of(str(path)) for path in asking} == {"brokers"}
    assert len({group_of(str(path)) for path in files}) > len(files) // 2


def test_every_folder_of_tests_has_its_turn() -> None:
    assert {path.parent.name for path in TESTS.glob("*/test_*.py")} == {*FOLDERS}
    assert Path(free_addresses.__file__).parents[1] == TESTS
