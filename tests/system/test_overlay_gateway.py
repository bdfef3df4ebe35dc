"""Lines of the gateway that come through the overlay: its arbiter judges them as any two lines.

A market's line goes down a tree; two receivers of it are lines A and B of a gateway, each losing
one packet in ten on the last metres, at random. What the gateway publishes must be what it would
publish of two multicast lines with the same losses: everything that either has, in order, and of
what both lost the gaps.
"""

import asyncio
import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler.config import Config, ControlConfig, LineConfig
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.rpc import ask
from tests.support import free_addresses
from tests.support.gateway import SEQUENCE, Ledger, Market, kill, start, subscribed, until
from tests.support.gateway_here import multicast_sender
from tests.system.test_overlay_commands import planned, running

SERVICE = 104
LOSS = 0.1
#: The first packets are never lost: where a stream begins is not what this is about.
SPARED = 20
PACKETS = 900


class LossyRelay:
    """Sends what comes to a port on to a group, but for what it loses: `lost` and `passed` have the
    numbers. A busy machine may lose others before they come here."""

    def __init__(self, group: str, port: int, seed: int) -> None:
        self.lost: set[int] = set()
        self.passed: set[int] = set()
        self._to = group, port
        self._rng = random.Random(seed)
        self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._in.bind(("127.0.0.1", 0))
        self._out = multicast_sender()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._in.getsockname()
        return f"{host}:{port}"

    def _run(self) -> None:
        while packet := self._in.recv(4_096):
            number = int.from_bytes(packet[SEQUENCE], "big")
            if number > SPARED and self._rng.random() < LOSS:
                self.lost.add(number)
            else:
                self.passed.add(number)
                self._out.sendto(packet, self._to)

    def close(self) -> None:
        self._out.sendto(b"", self._in.getsockname())
        self._thread.join()
        self._in.close()
        self._out.close()


@contextmanager
def relays(seed: int, port: int) -> Iterator[tuple[list[LossyRelay], list[str]]]:
    """Two relays, and the groups they send to."""
    groups = [free_addresses.group(), free_addresses.group()]
    made = [LossyRelay(group, port, seed + n) for n, group in enumerate(groups)]
    try:
        yield made, groups
    finally:
        for each in made:
            each.close()


def patient(config: Config, lines: list[LineConfig], **sections: Any) -> Config:
    """The configuration with other lines for its first channel. On a busy machine the processes of
    one may lag behind the other's by as much as is waited for here."""
    first, *others = config.channels
    first = msgspec.structs.replace(first, lines=tuple(lines))
    waits = ArbitrationSettings(gap_wait_us=1_500_000, start_wait_us=1_500_000)
    return msgspec.structs.replace(config, channels=(first, *others), arbitration=waits, **sections)


@pytest.mark.random
def test_two_lines_of_a_tree_are_arbitrated_as_two_of_multicast(tmp_path: Path, seed: int) -> None:
    tree, path = tmp_path / "tree.toml", tmp_path / "gateway.toml"
    planned(tree, "--hedging", 1)

    async def scenario(market: Market, lossy: list[LossyRelay], groups: list[str]) -> Ledger:
        config = market.config()
        lines = [
            msgspec.structs.replace(line, group=group)
            for line, group in zip(config.channels[0].lines, groups, strict=True)
        ]
        config = patient(config, lines)
        gateway = await start(config, path)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(kill, gateway)
            urls = [f"amqp://{config.amqp.listen}"]
            ledger = await subscribed(stack, market, urls, "packet")
            market.start()
            await until([ledger], lambda one: one.reached[SERVICE] >= PACKETS, "packets")
            market.stop()
        return ledger

    with ExitStack() as stack:
        market = stack.enter_context(Market(1_000))
        lossy, groups = stack.enter_context(relays(seed, market.port))
        stack.enter_context(running("proxy", tree, "proxy-0-0"))
        stack.enter_context(running("proxy", tree, "proxy-0-1"))
        for name, relay in zip(("receiver-0", "receiver-3"), lossy, strict=True):
            stack.enter_context(running("receive", tree, name, "--to", relay.address))
        source = f"{market.groups['A'][SERVICE]}:{market.port}"
        stack.enter_context(
            running("send", tree, "--from", source, "--interface", "127.0.0.1", "--fair", 0)
        )
        ledger = asyncio.run(scenario(market, lossy, groups))
    missing = {n for first, last in ledger.gaps[SERVICE] for n in range(first, last + 1)}
    reached = ledger.reached[SERVICE]
    passed = lossy[0].passed | lossy[1].passed
    assert missing == set(range(1, reached)) - passed
    assert missing & lossy[0].lost & lossy[1].lost
    assert len(lossy[0].lost) > 50
    assert not ledger.gaps[105], "its lines are multicast ones"


def test_a_gateway_receives_from_a_tree_by_itself_though_a_proxy_dies(tmp_path: Path) -> None:
    tree, path = tmp_path / "tree.toml", tmp_path / "gateway.toml"
    planned(tree, "--hedging", 1)
    control = f"ipc://{tmp_path}/control"

    async def scenario(market: Market, proxy: subprocess.Popen[str]) -> Ledger:
        lines = [
            LineConfig(name=name, topology=str(tree), member=member)
            for name, member in (("A", "receiver-0"), ("B", "receiver-3"))
        ]
        config = patient(market.config(), lines, control=ControlConfig(bind=control))
        gateway = await start(config, path)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(kill, gateway)
            urls = [f"amqp://{config.amqp.listen}"]
            ledger = await subscribed(stack, market, urls, "packet")
            market.start()
            await until([ledger], lambda one: one.reached[SERVICE] >= PACKETS // 3, "packets")
            proxy.kill()
            await until([ledger], lambda one: one.reached[SERVICE] >= PACKETS, "packets")
            market.stop()
            await until([ledger], lambda one: one.has(market.sent), "the last packet")
            snapshot = await asyncio.to_thread(ask, control, "status", 60.0)
            overlay = {each["line"]: each for each in snapshot["overlay"]}
            assert set(overlay) == {"104/A", "104/B"}
            assert all(each["delivered"] > PACKETS // 2 for each in overlay.values()), overlay
            assert not any(each["missing"] for each in overlay.values()), overlay
        return ledger

    with ExitStack() as stack:
        market = stack.enter_context(Market(1_000))
        proxy = stack.enter_context(running("proxy", tree, "proxy-0-0"))
        stack.enter_context(running("proxy", tree, "proxy-0-1"))
        source = f"{market.groups['A'][SERVICE]}:{market.port}"
        stack.enter_context(running("send", tree, "--from", source, "--interface", "127.0.0.1"))
        ledger = asyncio.run(scenario(market, proxy))
    ledger.assert_whole()
