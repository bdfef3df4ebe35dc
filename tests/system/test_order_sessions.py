"""A generated TotalView-ITCH session in real time, both lines lossy, through a gateway."""

import asyncio
from pathlib import Path

import uvloop

import feedhandler
from feedhandler.config import AmqpConfig, ChannelConfig, Config, GatewaySettings, LineConfig
from feedhandler.config.show import to_toml
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.replay.exchange.ledger import read_ledger
from feedhandler.replay.exchange.simulated import Exchange, ExchangePlan
from feedhandler.replay.generating.order_session import CHANNEL
from feedhandler.replay.playing.inject import LineFaults
from tests.support import places
from tests.support.gateway import amqp_url, run_command

FEED = "nasdaq-totalview-itch"
RUN_SECONDS = 120


def plan(ledger: Path) -> ExchangePlan:
    """A few seconds, 10 % loss on each line, never of the same packet."""
    groups = [places.group().rsplit(".", 1)[0] for _ in "AB"]
    return ExchangePlan(
        feed=FEED,
        seed=11,
        seconds=2.0,
        messages_per_s=500.0,
        instruments=20,
        faults=(LineFaults(loss=0.1), LineFaults(loss=0.1)),
        spare_shared=True,
        ledger=ledger,
        group_prefixes=(groups[0], groups[1]),
        base_ports=(places.port(), places.port()),
    )


def configuration(sent: ExchangePlan) -> Config:
    addresses = [(name, *sent.address(name, CHANNEL)) for name in "AB"]
    lines = tuple(LineConfig(name=n, group=group, port=port) for n, group, port in addresses)
    return Config(
        gateway=GatewaySettings(feed=FEED),
        arbitration=ArbitrationSettings(gap_wait_us=2_000_000, start_wait_us=100_000),
        amqp=AmqpConfig(listen="127.0.0.1:0"),
        channels=(ChannelConfig(service=1, lines=lines),),
    )


def test_every_message_of_a_lossy_itch_session_arrives_once_and_in_order(tmp_path: Path) -> None:
    sent = plan(tmp_path / "sent.ledger")

    async def run() -> tuple[list[int], int, int]:
        path = tmp_path / "gateway.toml"
        path.write_text(to_toml(configuration(sent)))
        gateway = await run_command("run", str(path))
        numbers: list[int] = []
        try:
            url = await amqp_url(gateway)
            exchange = Exchange(sent)
            async with (
                asyncio.timeout(RUN_SECONDS),
                feedhandler.subscribe(
                    url, "itch.#", as_="message", quality=False, reconnect=False
                ) as messages,
            ):
                running = asyncio.create_task(asyncio.to_thread(exchange.run))
                async for message in messages:
                    numbers.append(message.own_sequence)
                    # The session's last message is its end.
                    if message.type == "S" and message.record().event_code == "C":
                        break
                result = await running
            return numbers, result.messages[CHANNEL], result.lines["A"].dropped
        finally:
            gateway.terminate()
            await asyncio.wait_for(gateway.wait(), 60)

    numbers, count, dropped = uvloop.run(run())
    assert dropped > 5
    assert numbers == list(range(1, count + 1))
    assert len(read_ledger(sent.ledger).records) == count
