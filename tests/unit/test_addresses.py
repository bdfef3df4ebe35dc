"""`host:port` as operators write it: what it means, and what is refused, wherever it is taken."""

from collections.abc import Callable
from typing import Any

import pytest

from feedhandler.addresses import split_address
from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.fixcast.channels import host_and_port
from feedhandler.lab.control import connected
from feedhandler.overlay.topology_file import address_of, ipv4_address_of

SPLIT = {
    "10.0.0.5:7000": ("10.0.0.5", 7000),
    "gateway.example:1": ("gateway.example", 1),
    "[::1]:65535": ("::1", 65535),
    "[fe80::1%eth0]:5671": ("fe80::1%eth0", 5671),
}
REFUSED = ["", "host", ":7000", "[]:7000", "::1:7000", "[::1]", "host:", "host:x", "host:-1",
           "host:65536", "host:7000 ", "host:\u0667", "rts..exchange:7000",
           f"{'x' * 64}:7000"]  # fmt: skip


@pytest.mark.parametrize("split", [split_address, address_of, host_and_port])
@pytest.mark.parametrize(("text", "address"), SPLIT.items())
def test_host_and_port_are_split_without_the_brackets_of_ipv6(
    split: Callable[[str], Any], text: str, address: tuple[str, int]
) -> None:
    assert split(text) == address


@pytest.mark.parametrize("split", [split_address, address_of, host_and_port, connected])
@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused(split: Callable[[str], Any], text: str) -> None:
    with pytest.raises((ValueError, FeedhandlerError)):
        split(text)


def test_port_0_is_to_listen_at_and_not_to_connect_to() -> None:
    assert split_address("host:0") == ("host", 0)
    with pytest.raises(ValueError, match="port 0 is none to connect to"):
        split_address("host:0", port_min=1)
    for split in (address_of, host_and_port):
        with pytest.raises(FeedhandlerError, match="'host:0' is no"):
            split("host:0")


def test_a_member_of_an_overlay_has_an_address_of_ipv4() -> None:
    for text in ("[::1]:7000", "host:7000"):
        with pytest.raises(FeedhandlerError, match="is no IPv4 address"):
            ipv4_address_of(text)
