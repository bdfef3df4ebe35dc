"""`feedhandler generate`: captures that others can read, ledgers that tell what is in them."""

import errno
import gzip
import itertools
import json
import os
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import dpkt
import pytest

from feedhandler.codecs import UsageError, load_feed
from feedhandler.ops.generate import Options, run
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.packets import Outgoing
from feedhandler.replay.generating.profile import FOLDER, load_profile
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import forecast, ledger_path, write_capture
from feedhandler.replay.generating.traffic_frames import RecordWriter
from tests.support.commands import run_here

FEED = load_feed("euronext-utp-md")
SHORT = ["--rate", "4mbps", "--duration", "1s", "--seed", "3"]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "market.pcap"
    assert run(Options(out=path, rate_mbps=4.0, duration_s=1.0, seed=3, losses=(0.01, 0.02))) == 0
    return path


def test_another_reader_finds_sound_frames_in_order_of_time(capture: Path) -> None:
    latest, count = 0.0, 0
    with capture.open("rb") as file:
        for moment, frame in dpkt.pcap.Reader(file):
            ethernet = dpkt.ethernet.Ethernet(frame)
            datagram = ethernet.data
            assert float(moment) >= latest
            latest = float(moment)
            assert len(frame) >= 60
            assert datagram.len == 20 + datagram.data.ulen
            assert ethernet.dst[:3] == b"\x01\x00\x5e"
            checksum, datagram.sum = datagram.sum, 0
            assert dpkt.ip.IP(bytes(datagram)).sum == checksum
            count += 1
    assert count == json.loads(ledger_path(capture).read_text())["packets"]


def test_size_and_time_are_printed_before_and_nearly_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.pcap", "a.pcap.gz", "a.pcap.zst"):
        out = tmp_path / name
        coming = forecast(Traffic(load_profile("market"), 1, duration_s=2.0), out)
        assert run(Options(out=out, duration_s=2.0)) == 0
        assert 0.5 < coming.file_bytes / out.stat().st_size < 1.6, name
        assert f"{name}: about 0.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "asked", "free"),
    [
        ("terabyte.pcap", {"rate_mbps": 200.0}, 76_000_000_000),
        ("small.pcap.zst", {"duration_s": 1.0}, 1_000),
    ],
)
def test_what_the_disk_cannot_hold_is_refused_before_a_byte_is_written(
    name: str,
    asked: dict[str, float],
    free: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    out = tmp_path / name
    with pytest.raises(UsageError, match=r"about [\d,.]+ GB, and .* has room for") as refused:
        run(Options(out=out, **asked))
    assert "--duration" in refused.value.hint
    assert (".zst behind the name" in refused.value.hint) is (out.suffix != ".zst")
    assert not list(tmp_path.iterdir())


def test_the_file_that_is_replaced_makes_room_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_000))
    out = tmp_path / "again.pcap"
    out.write_bytes(bytes(20_000_000))
    assert run(Options(out=out, duration_s=0.1, overwrite=True)) == 0


def test_what_is_no_file_takes_any_amount_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    out = tmp_path / "null"
    out.symlink_to(os.devnull)
    assert run(Options(out=out, duration_s=0.1)) == 0

    def stop(share: float, packets: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_capture(Traffic(load_profile("market"), duration_s=0.1, feed=FEED), out, stop)
    assert out.is_symlink()


def test_the_ledger_equals_a_count_of_the_capture(capture: Path) -> None:
    """By dpkt and the standard library alone: Table 1, repeats on line A, peaks."""
    ledger = json.loads(ledger_path(capture).read_text())
    packets, counted, messages, seconds = Counter(), Counter(), Counter(), Counter()
    last, within, repeats = {}, 0, 0
    with capture.open("rb") as file:
        for moment, frame in dpkt.pcap.Reader(file):
            datagram = dpkt.ethernet.Ethernet(frame).data.data
            body = bytes(datagram.data)
            service, flag, count = struct.unpack_from(">HBB", body, 12)
            name = str(service) if flag == 0 and datagram.dport // 1000 < 32 else "refresh"
            packets[name] += 1
            counted[name] += len(frame) + 16
            messages[name] += count
            seconds[int(moment)] += 1
            if name == "refresh" or datagram.dport // 1000 != 30:
                continue
            decoded = FEED.decode_packet(body)
            for kind, symbol in zip(decoded.types, decoded.symbols, strict=True):
                if kind not in (231, 550, 551):
                    if (service, symbol) in last:
                        repeats += 1
                        within += moment - last[service, symbol] <= 0.001
                    last[service, symbol] = moment
    for name, row in ledger["services"].items():
        assert (row["packets"], row["counted_bytes"], row["messages"]) == (
            packets[name], counted[name], messages[name],
        )  # fmt: skip
    assert (ledger["repeats"]["repeats"], ledger["repeats"]["within_1_ms"]) == (repeats, within)
    peaks = [row["packets"] for row in ledger["peaks"]["packets"]]
    assert peaks == sorted(seconds.values(), reverse=True)[: len(peaks)]
    minutes = ledger["minutes"]["packets"]
    assert sum(sum(row) for row in minutes.values()) == ledger["packets"]


def test_our_own_reader_finds_every_datagram(capture: Path) -> None:
    read = sum(len(batch) for batch in Capture(capture).batches())
    assert read == json.loads(ledger_path(capture).read_text())["packets"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_captures_hold_the_same(tmp_path: Path, suffix: str) -> None:
    plain, packed = tmp_path / "a.pcap", tmp_path / f"b.pcap{suffix}"
    for path in (plain, packed):
        traffic = Traffic(load_profile("market"), 5, rate_mbps=1.0, duration_s=0.5, feed=FEED)
        write_capture(traffic, path)
    if suffix == ".gz":
        assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size
    counts = [sum(len(batch) for batch in Capture(path).batches()) for path in (plain, packed)]
    assert counts[0] == counts[1] > 0


def test_the_command_tells_what_it_wrote(tmp_path: Path) -> None:
    out = tmp_path / "m.pcap"
    words = ["generate", *SHORT, "--out", str(out)]
    code, output, _ = run_here(*words)
    assert code == 0
    assert "mean payload" in output
    assert str(ledger_path(out)) in output
    more = ["--json", "--no-refresh"]
    assert run_here(*words, *more).returncode == 2
    whole = json.loads(run_here(*words, *more, "--overwrite").stdout)
    assert whole["services"]["refresh"]["packets"] == 0
    assert whole["packets"] == sum(row["packets"] for row in whole["services"].values())


@pytest.mark.parametrize(("options", "share"), [([], 0.5), (["--loss", "0"], 0)])
def test_a_loss_of_nothing_stands_for_the_profiles(
    tmp_path: Path, options: list[str], share: float
) -> None:
    profile = json.loads((FOLDER / "market.json").read_text())
    profile["lines"] = {"loss_a": 0.5, "loss_b": 0.5}
    (tmp_path / "ours.json").write_text(json.dumps(profile))
    out = tmp_path / "m.pcap"
    words = ["--profile", str(tmp_path / "ours.json"), "--duration", "0.1s", "--out", str(out)]
    assert run_here("generate", *words, *options).returncode == 0
    lines = json.loads(ledger_path(out).read_text())["lines"]
    assert lines["lost_a"] == pytest.approx(share * lines["sent"], rel=0.2)
    assert lines["lost_b"] == pytest.approx(share * lines["sent"], rel=0.2)


def test_a_folder_where_nothing_can_be_written_is_reported(tmp_path: Path) -> None:
    code, _, error = run_here("generate", *SHORT, "--out", str(tmp_path / "no" / "x.pcap"))
    assert (code, "cannot write" in error) == (2, True)


def test_records_keep_within_their_buffer() -> None:
    import numpy as np

    writer = RecordWriter([("239.1.1.1", 5000)])
    rows = {"time_ns": np.array([5], np.int64), "destination": np.zeros(1, np.uint8),
            "offset": np.zeros(1, np.uint32), "length": np.array([30], np.uint16)}  # fmt: skip
    data = np.zeros(30, np.uint8)
    with pytest.raises(IndexError):
        writer.write(data, *rows.values(), np.empty(40, np.uint8))
    with pytest.raises(IndexError):
        writer.write(data[:20], *rows.values(), np.empty(200, np.uint8))
    assert writer.write(data, *rows.values(), np.empty(200, np.uint8)) == 16 + 72


@pytest.mark.parametrize("feed", [FEED.name, "iex-deep"])
def test_a_capture_that_cannot_be_opened_for_writing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: str
) -> None:
    def refused(writer: CaptureWriter) -> None:
        raise PermissionError(errno.EACCES, "permission denied", str(writer.path))

    monkeypatch.setattr(CaptureWriter, "_open", refused)
    out = tmp_path / "mine.pcap"
    out.write_bytes(b"precious")
    with pytest.raises(UsageError, match="permission denied"):
        run(Options(out=out, feed=feed, duration_s=0.01, overwrite=True))
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {out.name: b"precious"}


def test_orders_that_are_interrupted_leave_no_capture_without_a_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: OrderSession, duration_ns: int) -> Iterator[Outgoing]:
        yield from itertools.islice(packets(self, duration_ns), 5)
        raise KeyboardInterrupt

    packets = OrderSession.packets
    monkeypatch.setattr(OrderSession, "packets", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(Options(out=tmp_path / "orders.pcap", feed="iex-deep", duration_s=1.0))
    assert list(tmp_path.iterdir()) == []
