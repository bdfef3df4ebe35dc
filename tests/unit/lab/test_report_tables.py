"""Tables of a laboratory run: the paper's beside ours, loads, bytes, bars."""

import csv
import io

import msgspec
import numpy
import pytest

from feedhandler.histogram import Histogram
from feedhandler.lab import report_loads, report_tables, thresholds
from feedhandler.lab.paper import paper
from feedhandler.lab.results import (
    ClientResult,
    Latency,
    Loads,
    Run,
    Sent,
    Step,
    Sweep,
    Traffic,
    Verdict,
)
from tests.support import report
from tests.support.report import latency_of


def exact(clients: int = 10, **more: object) -> Step:
    """A step of three deliveries: 20, 40 and 60 ns."""
    histogram = Histogram()
    for value in (20, 40, 60):
        histogram.record(value)
    found = {"scenario": "packets", "exchange": "direct", "rate_bps": 40e6, **more}
    return Step(clients=clients, latency=latency_of(histogram), **found)  # type: ignore[arg-type]


# -- the paper --------------------------------------------------------------------------------


def test_the_papers_tables_are_there_as_it_prints_them() -> None:
    found = {(each.number, each.scenario, each.exchange) for each in paper().tables}
    assert found == {
        (4, "packets", "direct"),
        (5, "packets", "topic"),
        (6, "messages", "direct"),
        (7, "messages", "topic"),
    }
    for table in paper().tables:
        expected = report.CLIENTS[table.scenario]
        assert tuple(row.clients for row in table.rows) == expected
        for row in table.rows:
            assert row.min < row.p50 < row.p90 < row.max
    last = paper().table("messages", "direct").row(5)
    assert last is not None
    assert (last.p50, last.p90, last.max) == (53.199, 125.689, 705.414)
    assert paper().table("packets", "topic").row(3) is None


# -- latency ----------------------------------------------------------------------------------


def test_a_row_has_the_papers_figures_beside_ours() -> None:
    row = report_tables.row_of(exact())
    assert (row.mean, row.min, row.max, row.p50, row.measured) == (4e-5, 2e-5, 6e-5, 4e-5, 3)
    assert row.paper is not None
    assert (row.paper.mean, row.paper.p90) == (1.519, 3.119)
    cells = report_tables.cells(row)
    assert cells[:3] == ["10", "1.519", "0.000"]
    assert len(cells) == len(report_tables.head())
    assert report_tables.head()[1:3] == ["Mean paper", "Mean here"]


def test_where_the_paper_has_no_row_its_cells_are_empty() -> None:
    row = report_tables.row_of(exact(clients=3))
    assert row.paper is None
    assert report_tables.cells(row)[1] == "-"
    (line,) = csv.DictReader(io.StringIO(report_tables.as_csv(Run(steps=[exact(clients=3)]))))
    assert line["paper_mean_ms"] == ""
    assert float(line["mean_ms"]) == 4e-5


def test_steps_are_one_table_by_what_they_have_in_common_and_sorted_by_clients() -> None:
    steps = [
        exact(4, exchange="topic"),
        exact(10),
        exact(1),
        exact(1, broker="rabbitmq-4"),
        exact(1, mode="paper"),
        exact(1, rate_bps=200e6),
        exact(5, scenario="messages"),
    ]
    found = report_tables.groups(Run(steps=steps))
    assert [
        (each.number, each.broker, each.mode, each.rate_bps / 1e6, [x.clients for x in each.steps])
        for each in found
    ] == [
        (4, "embedded", "direct", 40, [1, 10]),
        (4, "embedded", "paper", 40, [1]),
        (4, "rabbitmq-4", "direct", 40, [1]),
        (4, "embedded", "direct", 200, [1]),
        (5, "embedded", "direct", 40, [4]),
        (6, "embedded", "direct", 40, [5]),
    ]  # fmt: skip
    assert len({group.slug for group in found}) == len(found), "each has files of its own"
    assert found[0].slug == "packets-direct-embedded-40mbps"


def test_the_text_says_how_latency_was_measured() -> None:
    text = report_tables.text(Run(steps=[exact(), exact(mode="paper")]))
    first, second = text.split("\n\nTable 4", 1)[0], text.rsplit("Table 4", 1)[1]
    assert text.startswith("Table 4. Packets, direct exchange: latency in ms (embedded, 40 Mbps)\n")
    assert "kernel receive stamp" in first
    assert "control datagrams" in second
    assert all(line == line.rstrip() for line in text.splitlines())


def test_csv_and_json_hold_the_same_figures() -> None:
    run = report.run(1, report.step(1, 2, lost=3), report.step(1, 1, "messages"))
    lines = list(csv.DictReader(io.StringIO(report_tables.as_csv(run))))
    tables = msgspec.json.decode(report_tables.as_json(run))
    rows = [(table, row) for table in tables for row in table["rows"]]
    assert len(lines) == len(rows) == 2
    for line, (table, row) in zip(lines, rows, strict=True):
        assert int(line["table"]) == table["table"]
        assert int(line["clients"]) == row["clients"]
        assert int(line["lost"]) == row["lost"]
        for name in (*report_tables.SHARED, *report_tables.OURS):
            assert float(line[f"{name}_ms"]) == pytest.approx(row[name], rel=1e-5)
        for name in report_tables.SHARED:
            assert float(line[f"paper_{name}_ms"]) == row["paper"][name]
    assert [line["lost"] for line in lines] == ["3", "0"]


def test_trials_of_a_sweep_are_no_tables() -> None:
    assert report_tables.groups(Run(steps=[exact(trial=True)])) == []


def test_words_stand_to_the_left_and_figures_to_the_right() -> None:
    text = report_tables.aligned(("Name", "N"), [("a", "1"), ("bcdef", "22.5"), ("c", "-")])
    assert text == "Name      N\n-----  ----\na         1\nbcdef  22.5\nc         -\n"


# -- loads and bytes --------------------------------------------------------------------------


def test_rates_are_growth_a_second_and_never_negative() -> None:
    t_s = numpy.array([0.5, 1.0, 2.0, 2.0])
    totals = numpy.array([10.0, 30.0, 5.0, 6.0])
    assert report_loads.rates(t_s, totals).tolist() == [20.0, 40.0, 0.0, 0.0]
    assert report_loads.rates(numpy.zeros(0), numpy.zeros(0)).tolist() == []


def test_a_roles_load_stands_beside_the_papers() -> None:
    step = exact(broker="rabbitmq-3")
    ones = numpy.ones(4)
    t_s = numpy.arange(1.0, 5.0)
    for role in ("broker", "clients", "stamper"):
        step.loads.append(
            Loads(
                role=role,
                t_s=t_s,
                user_cpu=0.25 * ones,
                system_cpu=0.05 * ones,
                rss_bytes=2**21 * ones,
                net_in_bytes=1e6 * t_s,
                net_out_bytes=2e6 * t_s,
            )
        )
    step.loads.append(Loads(role="replayer"))
    (group,) = report_tables.groups(Run(steps=[step]))
    table = report_loads.loads_table(group)
    rows = {row[1]: row[3:] for row in table.rows}
    assert rows["broker"] == (
        *("8 to 30 *", "25.0", "2 to 12 *", "5.0", "2"),
        *("3", "1.00", "-", "2.00"),
    )
    assert rows["clients"][-4:] == ("3.4", "1.00", "-", "2.00")
    assert rows["stamper"][-4:] == ("-", "1.00", "-", "2.00")
    assert rows["replayer"] == ("-", "-", "-", "-", "-", "-", "0.00", "5", "0.00")


def test_bandwidth_is_shown_for_each_client_and_each_byte_of_the_feed() -> None:
    step = exact(clients=2, grain="packet")
    step.sent = Sent(payload_bytes=10_000_000, duration_ns=10 * 10**9)
    step.traffic = [
        Traffic(where="gateway", grain="packet", bytes_in=22_000_000, bytes_out=26_000_000),
        Traffic(where="client", grain="packet", bytes_in=26_000_000, bytes_out=100),
    ]
    gateway, client = report_loads.bandwidth_table(Run(steps=[step])).rows
    assert gateway[1:] == ("packet", "gateway", "2.20", "2.60", "1.30", "1.30", "3.4")
    assert client[1:] == ("packet", "client", "2.60", "0.00", "1.30", "1.30", "3.4")
    step.broker = "artemis"
    publishing, _ = report_loads.bandwidth_table(Run(steps=[step])).rows
    assert publishing[1:] == ("packet", "gateway", "2.20", "2.60", "-", "2.60", "3")
    step.sent.payload_bytes = 0
    assert report_loads.bandwidth_table(Run(steps=[step])).rows[0][-2] == "-"
    step.sent.duration_ns = 0
    assert report_loads.bandwidth_table(Run(steps=[step])).rows[0][-5:] == ("-",) * 5


def test_losses_and_queue_limits_are_shown_of_all_clients_together() -> None:
    results = [
        ClientResult(number=1, expected=1000, received=998, lost=2),
        ClientResult(number=2, expected=1000, received=1001, duplicated=1, reordered=4),
    ]
    limited = exact(results=results, queue_limit_bytes=500 * 2**20)
    run = Run(steps=[limited, exact(exchange="topic")])
    first, second = report_loads.loss_table(run).rows
    assert first[1:] == ("2,000", "1,999", "2", "1", "4", "500 MiB")
    assert second[-1] == "none"


# -- bars and sweeps --------------------------------------------------------------------------


def test_a_missed_bar_says_by_how_much() -> None:
    verdicts = [
        Verdict(bar="ten", quantity="p50", found_ns=200_000, bound_ns=300_000, met=True),
        Verdict(bar="ten", quantity="p90", found_ns=900_000, bound_ns=600_000, met=False),
        Verdict(bar="ten", quantity="lost", found_ns=0, bound_ns=0, met=False),
    ]
    rows = report_loads.bars_table(Run(steps=[exact(verdicts=verdicts, mode="paper")])).rows
    assert rows[0][1] == "packets, direct, 10 clients, embedded, 40 Mbps, paper's mode"
    assert [row[-1] for row in rows] == ["", "-", "-"], "no loads, no reasons"
    assert [row[2:-1] for row in rows] == [
        ("p50", "0.300 ms", "0.200 ms", "met"),
        ("p90", "0.600 ms", "0.900 ms", "missed by 0.300 ms (+50 %)"),
        ("lost", "no loss", "-", "missed"),
    ]


def test_a_bar_of_a_step_in_which_nothing_was_timed_is_missed() -> None:
    verdicts = [Verdict(bar="ten", quantity="p50", found_ns=0, bound_ns=300_000, met=False)]
    step = exact(verdicts=verdicts)
    step.latency = Latency()
    (row,) = report_loads.bars_table(Run(steps=[step])).rows
    assert row[4:6] == ("-", "missed: no delivery was timed")


def test_a_missed_bar_says_who_was_busy() -> None:
    def loads(role: str, processes: int, share: float) -> Loads:
        row = numpy.array([share / 2, share / 2])
        return Loads(role=role, processes=processes, t_s=row + 1, user_cpu=row, system_cpu=row)

    step = exact()
    step.loads = [loads("replayer", 1, 0.1), loads("gateway", 1, 0.97), loads("clients", 10, 0.9)]
    step.loads.append(Loads(role="broker"))
    assert thresholds.busy(step) == "gateway 97, replayer 10, clients 10 x 9; all 197"


def test_a_sweep_tells_the_last_that_kept_the_bound() -> None:
    sweeps = [
        *report.run(1, sweep=True).sweeps,
        Sweep(quantity="clients", bound="p90=1ms", held=12, failed=None),
    ]
    assert report_loads.sweeps_table(Run(sweeps=sweeps)).rows == (
        *[("packets", "direct", "rate", "p90=1ms", "80 Mbps", "160 Mbps", "3", "p90 is 2 ms")],
        *[("packets", "direct", "clients", "p90=1ms", "12 clients", "-", "0", "")],
    )


def test_tables_without_rows_are_left_out() -> None:
    assert [table.title for table in report_loads.tables(Run(steps=[exact()]))] == [
        "Losses, duplicates, reorderings"
    ]
