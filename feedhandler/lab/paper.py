"""The source paper's results, to set a run's figures beside: tables 4 to 7, loads, setting.

The figures are data (`paper.toml`), as the source prints them: latencies in milliseconds, of the
broker alone. What the paper has no figure for is None, and a report leaves that cell empty.
"""

from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct


class PaperRow(Struct, frozen=True):
    """Latency with this number of clients, milliseconds."""

    clients: int
    mean: float
    min: float
    max: float
    p50: float
    p90: float


class PaperTable(Struct, frozen=True):
    """One table: `number` as in the paper, a row for each number of clients."""

    number: int
    scenario: str
    exchange: str
    rows: tuple[PaperRow, ...]

    def row(self, clients: int) -> PaperRow | None:
        """Return the row for this number of clients; None where the paper has none."""
        return next((row for row in self.rows if row.clients == clients), None)


class PaperLoads(Struct, frozen=True):
    """Loads of one scenario.

    The broker's are ranges in percent of all its processors; bytes are megabytes a second,
    `client_mb_s` of one client.
    """

    broker_user_pct: tuple[float, float]
    broker_system_pct: tuple[float, float]
    replay_mb_s: float
    gateway_publish_mb_s: float
    client_mb_s: float


class PaperSetting(Struct, frozen=True):
    """The paper's replay and its broker's limits."""

    rate_mbps: float
    packets: int
    unique_packets: int
    messages: int
    mean_packet_bytes: float
    mean_message_bytes: float
    messages_per_packet: float
    broker_queue_limit_mib: int
    broker_processors: int


class Paper(Struct, frozen=True):
    """All figures that are taken from the paper."""

    source: str
    setting: PaperSetting
    tables: tuple[PaperTable, ...]
    loads: dict[str, PaperLoads]

    def table(self, scenario: str, exchange: str) -> PaperTable:
        """Return the table of a scenario and an exchange, which the paper has for each."""
        return next(
            table
            for table in self.tables
            if (table.scenario, table.exchange) == (scenario, exchange)
        )


@cache
def paper() -> Paper:
    """Return the paper's figures, read once."""
    data = files("feedhandler.lab").joinpath("paper.toml").read_bytes()
    return msgspec.toml.decode(data, type=Paper)
