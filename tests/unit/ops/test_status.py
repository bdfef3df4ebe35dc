"""`feedhandler status`: what it makes of a snapshot, and what its exit code says."""

import copy
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from rich.console import Console

from feedhandler.cli.app import chosen
from feedhandler.codecs.errors import ConfigError, PeerError
from feedhandler.config import ControlConfig, loopback_config
from feedhandler.config.show import to_toml
from feedhandler.counters import (
    ChannelCounter,
    DestinationCounter,
    LineCounter,
    QueueCounter,
    RecorderCounter,
)
from feedhandler.gateway import Gateway
from feedhandler.ops import status
from feedhandler.rpc import ENDPOINT_DEFAULT, Verb, Verbs
from tests.support.checkout import CHECKOUT

PATIENCE_S = 60.0


def line(**counters: int) -> dict[str, int]:
    return {**{each.name.lower(): counters.get(each.name.lower(), 0) for each in LineCounter},
            "first": counters.get("first", 0)}  # fmt: skip


def channel(service: int, quality: str = "OK", **changes: Any) -> dict[str, Any]:
    return {
        "service": service,
        "key": f"euronext.{service}",
        "quality": quality,
        "packets": 12_345,
        "messages": 67_890,
        "next": 12_346,
        "gaps": 0,
        "lost": 0,
        "latency_ns": {"p50": 120_000, "p90": 200_000, "p99": 2_100_000, "max": 9_000_000},
        "recovery": {"state": "IN_SYNC", "requested": [], "lost": [], "asked": 0},
        "arbitration": {each.name.lower(): 0 for each in ChannelCounter},
        "lines": {"A": line(packets=9_000, first=8_000), "B": line(packets=8_999, truncated=3)},
        **changes,
    }


SNAPSHOT: dict[str, Any] = {
    "time_ns": 1_795_168_800_000_000_000,
    "name": "gate",
    "feed": "euronext-utp-md",
    "channels": [
        channel(101),
        channel(
            104,
            "RECOVERING",
            recovery={
                "state": "REQUESTING",
                "requested": [[17, 40], [55, 55]],
                "lost": [[3, 4]],
                "closed": False,
                "packets_asked": 1_025,
                "retries": 0,
            },
        ),
    ],
    "recovery": {"requests": 12, "servers": {"rts 127.0.0.1:30001": {"up": True, "accepted": 7}}},
    "node": {"connections": 1, "links": 3, "sent": 1_234_567, "refused": 0},
}
DESTINATION: dict[str, Any] = {
    "name": "firm",
    "to": "127.0.0.1:5672",
    "kind": "rabbitmq-4",
    "broker": "RabbitMQ 4.0.5",
    "state": "UP",
    "reason": "",
    "unconfirmed": 170,
    "queued": 12,
    "confirm_ns": {"p50": 800_000, "p90": 900_000, "p99": 4_200_000, "max": 9_000_000},
    **{each.name.lower(): 0 for each in DestinationCounter},
    "confirmed": 98_765,
}
RECORDER: dict[str, Any] = {
    "state": "recording",
    "reason": "",
    "directory": "/var/record",
    "bytes": 5_000_000,
    "recovered": 0,
    "series": {
        "lines": {
            **{each.name.lower(): 0 for each in RecorderCounter},
            "packets": 4_321,
            "file": "lines-20261120-20261120-100000-000001.pcap",
        },
        "published": {**{each.name.lower(): 0 for each in RecorderCounter}, "file": ""},
    },
}


def changed(**sections: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SNAPSHOT), **sections}


def text_of(snapshot: dict[str, Any], width: int = 160) -> str:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(status.render(snapshot))
    return captured.get()


def row(text: str, start: str) -> list[str]:
    found = next(line for line in text.splitlines() if line.startswith(start))
    return found.split()


# -- the picture -----------------------------------------------------------------------------


def test_each_channel_is_a_row_with_its_states_and_what_is_under_way() -> None:
    text = text_of(changed())
    assert text.startswith("gate: euronext-utp-md, 2 channels, 2026-11-20 10:00:00 UTC\n")
    quiet = "101 OK IN_SYNC 12,346 12,345 67,890 0 0 0.12 ms 2.10 ms"
    assert row(text, "101 ") == quiet.split()
    busy = row(text, "104 ")
    assert busy[1:3] == ["RECOVERING", "REQUESTING"]
    assert busy[-3:] == ["17..40", "55", "3..4"]


def test_each_line_is_a_row_and_its_rejects_are_one_number() -> None:
    text = text_of(changed())
    assert row(text, "104/A") == ["104/A", "9,000", "8,000", "0", "0", "0", "0", "0"]
    assert row(text, "104/B") == ["104/B", "8,999", "0", "0", "0", "0", "0", "3"]


def test_other_counters_are_shown_where_they_are_not_zero() -> None:
    lines = text_of(changed(recorder=RECORDER)).splitlines()
    assert "recovery 104: packets asked 1,025" in lines
    assert not any(line.startswith("recovery 101") for line in lines)
    assert "recovery: requests 12" in lines
    assert "server rts 127.0.0.1:30001: connected, accepted 7" in lines
    assert "node: connections 1, links 3, sent 1,234,567" in lines
    assert "recorder: recording, 5,000,000 bytes in /var/record" in lines
    assert "recorder lines: packets 4,321, in lines-20261120-20261120-100000-000001.pcap" in lines
    assert "recorder published: nothing yet" in lines


def test_a_server_given_up_for_today_is_shown_with_its_end_and_the_remedy() -> None:
    server = {"up": True, "paused": True, "paused_until_ns": 1_763_683_200 * 10**9, "accepted": 7}
    lines = text_of(changed(recovery={"servers": {"rts": server}})).splitlines()
    text = "not asked until 2025-11-21 00:00 UTC (feedhandler control resume-requests)"
    assert f"server rts: connected, {text}, accepted 7" in lines


def test_a_secondary_that_is_asked_is_shown() -> None:
    server = {"up": True, "secondary": 1, "failovers": 1}
    lines = text_of(changed(recovery={"servers": {"rts": server}})).splitlines()
    assert "server rts: connected, the secondary is asked, failovers 1" in lines


@pytest.mark.parametrize(
    ("resumed", "output"),
    [
        (["rts", "rfs"], "asked again today: rts, rfs\n"),
        ([], "nothing to resume: no server was given up for today\n"),
    ],
)
def test_control_tells_the_gateway_and_says_what_came_of_it(
    pretended: Any, capsys: pytest.CaptureFixture[str], resumed: list[str], output: str
) -> None:
    asked: list[Any] = []
    verbs = {"resume-requests": lambda request: asked.append(request) or {"resumed": resumed}}
    endpoint = pretended(verbs=verbs, times=2)
    words = ["control", "resume-requests", endpoint, "--server", "rts"]
    assert chosen([*words, "--timeout", str(PATIENCE_S)])() == 0
    assert capsys.readouterr().out == output
    assert asked == [{"do": "resume-requests", "server": "rts"}]
    assert chosen([*words, "--timeout", str(PATIENCE_S), "--json"])() == 0
    assert json.loads(capsys.readouterr().out) == {"resumed": resumed}


def test_each_broker_is_a_row_with_its_state_and_what_it_took() -> None:
    away = {**DESTINATION, "name": "away", "state": "WAITING", "broker": "", "reason": "refused"}
    text = text_of(changed(destinations=[DESTINATION, away]))
    up = "firm UP RabbitMQ 4.0.5 98,765 170 12 0 0 0 0 0.80 ms 4.20 ms"
    assert row(text, "firm ") == up.split()
    assert row(text, "away ")[:3] == ["away", "WAITING", "127.0.0.1:5672"]
    assert row(text, "away ")[-1] == "refused"
    assert row(text_of(changed(destinations=[{"name": "old"}])), "old ")[0] == "old"


def test_many_ranges_are_cut_short_and_counted() -> None:
    ranges = [[10 * n, 10 * n + n % 2] for n in range(7)]
    assert status.ranges_text(ranges) == "0 10..11 20 30..31 and 3 more"
    assert status.ranges_text([]) == ""


def test_an_older_gateway_that_tells_less_is_shown_as_far_as_it_tells() -> None:
    for missing in ("recovery", "lines", "latency_ns", "gaps", "next"):
        snapshot = changed()
        for each in snapshot["channels"]:
            del each[missing]
        assert "104" in text_of(snapshot)
    snapshot = changed()
    for each in snapshot["channels"]:
        del each["recovery"]
    assert row(text_of(snapshot), "101 ")[:3] == ["101", "OK", "-"]
    assert "0 channels" in text_of({})


def test_a_real_gateways_snapshot_is_shown() -> None:
    snapshot = json.loads(json.dumps(Gateway(loopback_config()).snapshot()))
    text = text_of(snapshot)
    assert row(text, "107 ")[1] == "WAITING"
    assert row(text, "107/B")[1] == "0"
    assert status.verdict(snapshot) == 0


# -- the verdict -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quality", "recovery", "expected"),
    [
        ("OK", "IN_SYNC", 0),
        ("WAITING", None, 0),
        ("RECOVERING", "REQUESTING", 0),
        ("REFRESHED", "IN_SYNC", 0),
        ("STALE", "REFRESHING", 1),
        ("OK", "STALE", 1),
        ("SILENT", "IN_SYNC", 1),
    ],
)
def test_the_exit_code_says_whether_a_channel_is_unsure(
    quality: str, recovery: str | None, expected: int
) -> None:
    snapshot = changed(channels=[channel(101), channel(102, quality, recovery={"state": recovery})])
    assert status.verdict(snapshot) == expected


def test_a_closed_stream_is_shown_and_is_not_well() -> None:
    closed = {"state": "REFRESHING", "closed": True}
    snapshot = changed(channels=[channel(101), channel(102, "OK", recovery=closed)])
    assert row(text_of(snapshot), "102 ")[:4] == ["102", "OK", "REFRESHING", "closed"]
    assert "closed" not in row(text_of(snapshot), "101 ")
    assert status.verdict(snapshot) == 1


def test_the_exit_code_says_whether_every_broker_is_published_to() -> None:
    assert status.verdict(changed(destinations=[DESTINATION])) == 0
    away = {**DESTINATION, "state": "WAITING"}
    assert status.verdict(changed(destinations=[DESTINATION, away])) != 0


def test_the_exit_code_says_whether_recording_stopped_by_itself() -> None:
    stopped = {**RECORDER, "state": "stopped", "reason": "the disk is full"}
    assert status.verdict(changed(recorder=RECORDER)) == 0
    assert status.verdict(changed(recorder=stopped)) == 1
    assert "recorder: stopped (the disk is full), 5,000,000" in text_of(changed(recorder=stopped))


# -- asking ----------------------------------------------------------------------------------


class PretendedGateway:
    """Answers `times` requests over TCP, then is gone."""

    def __init__(self, verbs: Mapping[str, Verb], times: int) -> None:
        self.times = times
        self._verbs = Verbs(verbs)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REP)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for _ in range(self.times):
            if not self._socket.poll(int(PATIENCE_S * 1000)):
                break
            self._socket.send(self._verbs.reply(self._socket.recv()))
        self._socket.close(linger=1000)

    def close(self) -> None:
        self._thread.join()
        self._context.term()


@pytest.fixture
def pretended() -> Iterator[Any]:
    """Makes gateways that answer."""
    made: list[PretendedGateway] = []

    def make(
        snapshot: dict[str, Any] | None = None,
        times: int = 1,
        verbs: Mapping[str, Verb] | None = None,
    ) -> str:
        made.append(PretendedGateway(verbs or {"status": lambda _: snapshot}, times))
        return made[-1].endpoint

    yield make
    for each in made:
        each.close()


def test_the_table_in_a_pipe_is_plain_text(
    pretended: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = [[10**9 + 10 * n, 10**9 + 10 * n + 5] for n in range(4)]
    asking = {"state": "REQUESTING", "requested": ranges, "lost": ranges}
    busy = [channel(service, "RECOVERING", recovery=asking) for service in (101, 102, 103)]
    endpoint = pretended(changed(channels=busy))
    assert status.run(status.Options(gateway=endpoint, timeout_s=PATIENCE_S)) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    rows = [line for line in printed.splitlines() if "REQUESTING" in line]
    assert len(rows) == 3
    assert all(line.count("..") == 8 for line in rows), "a row is a line"


def test_json_is_the_snapshot_as_it_is(pretended: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stale = changed(channels=[channel(101, "STALE")])
    endpoint = pretended(stale)
    assert status.run(status.Options(gateway=endpoint, as_json=True, timeout_s=PATIENCE_S)) == 1
    assert json.loads(capsys.readouterr().out) == stale


@pytest.mark.parametrize("as_json", [True, False])
def test_watching_ends_when_the_gateway_is_gone(
    pretended: Any, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    options = status.Options(
        gateway=pretended(changed(), 3),
        watch=True,
        interval_s=0.0,
        timeout_s=PATIENCE_S,
        as_json=as_json,
    )
    with pytest.raises(PeerError):
        status.run(options)
    printed = capsys.readouterr().out
    assert printed.count('"time_ns"' if as_json else "gate: euronext-utp-md") == 3


def test_a_gateway_is_found_by_its_endpoint_its_file_or_the_default(tmp_path: Path) -> None:
    assert status.endpoint_of(None) == ENDPOINT_DEFAULT
    assert status.endpoint_of("ipc:///run/x.ipc") == "ipc:///run/x.ipc"
    path = tmp_path / "gate.toml"
    path.write_text(to_toml(loopback_config(control=ControlConfig(bind="ipc:///run/y.ipc"))))
    assert status.endpoint_of(str(path)) == "ipc:///run/y.ipc"
    path.write_text(to_toml(loopback_config()))
    with pytest.raises(ConfigError, match=r"control\.bind is empty"):
        status.endpoint_of(str(path))


def test_the_default_is_what_the_example_configuration_binds() -> None:
    example = CHECKOUT / "docs" / "gateway.toml"
    assert status.endpoint_of(str(example)) == ENDPOINT_DEFAULT


def test_a_snapshot_survives_the_wire() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SNAPSHOT)) == SNAPSHOT


QUEUE: dict[str, Any] = {
    **{each.name.lower(): 0 for each in QueueCounter},
    "name": "orders",
    "state": "open",
    "reason": "",
    "depth": 12_345,
    "blocks": 3,
    "blocks_max": 64,
}


def test_a_durable_queue_has_a_row_and_one_that_stopped_is_found() -> None:
    stopped = {**QUEUE, "name": "dead", "state": "stopped", "reason": "its disk failed"}
    text = text_of(changed(queues=[QUEUE, stopped]))
    assert row(text, "orders ")[1:3] == ["open", "12,345"]
    assert "3 of 64" in text
    assert "its disk failed" in text
    assert status.verdict(changed(queues=[QUEUE])) == 0
    assert status.verdict(changed(queues=[QUEUE, stopped])) != 0
