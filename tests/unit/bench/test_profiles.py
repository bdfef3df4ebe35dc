"""The proof of what is compiled: places of samples, reasons, the page; a load that is played."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import profiles
from bench.profiled import CHECKOUT, DECLARATIONS, ELSEWHERE, Sampler, files_of, place_of
from feedhandler._compiled import COMPILED_ONLY, UNITS

CORE, LOAD, TEST = "feedhandler/keyed/heap.py", "bench/profile_loads.py", "tests/support/amqp.py"
LIBRARY, SHADOW = "/usr/lib/python3/asyncio/events.py", f"/usr/lib/python3/{DECLARATIONS}"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ([CHECKOUT + CORE, CHECKOUT + LOAD], CORE),
        ([LIBRARY, CHECKOUT + CORE, CHECKOUT + LOAD], ELSEWHERE),
        ([f"{CHECKOUT}.venv/lib/x.py", CHECKOUT + CORE, CHECKOUT + LOAD], ELSEWHERE),
        ([SHADOW, SHADOW, CHECKOUT + CORE], DECLARATIONS),
        ([CHECKOUT + LOAD], ""),
        ([CHECKOUT + TEST, CHECKOUT + CORE], ""),
        ([LIBRARY, CHECKOUT + TEST, CHECKOUT + CORE], ""),
        ([LIBRARY], ""),
    ],
)
def test_a_sample_belongs_to_the_innermost_file_unless_the_load_is_at_work(
    files: list[str], place: str
) -> None:
    assert place_of(iter(files)) == place


def test_the_files_of_a_stack_come_innermost_first() -> None:
    first, *_ = files_of(sys._getframe())
    assert first == __file__


def test_a_sampler_counts_no_time_of_the_load_itself() -> None:
    sampler = Sampler()
    with sampler.sampling():
        sampler.sample(0, None)
    assert "" not in sampler.seconds


def measured_of(shares: dict[str, float]) -> dict[str, dict[str, Any]]:
    files = {f"feedhandler/{name.replace('.', '/')}.py": share for name, share in shares.items()}
    load = {"speed_up": 2.0, "interpreted_s": 3.0, "declarations_s": 1.0, "compiled_s": 1.0}
    return {"one": {**load, "shares": files}, "another": {**load, "shares": {}}}


def test_a_module_is_proven_by_its_greatest_share_or_by_who_uses_it_in_c() -> None:
    found = {
        each.module: each
        for each in profiles.verdicts(measured_of({"keyed.dispatch": 0.5, "keyed.heap": 0.009}))
    }
    assert (found["keyed.dispatch"].reason, found["keyed.dispatch"].load) == ("profile", "one")
    assert (found["keyed.heap"].reason, found["keyed.heap"].users) == (
        "declared",
        ("keyed.dispatch",),
    )
    # The receive thread needs headers, and the arbiter's types; those need the ring's.
    assert found["ingest.receiver"].reason == "headers"
    assert {found["ingest.arbitration"].reason, found["ingest.ring"].reason} == {"declared"}
    assert found["lab.tally"].reason == ""
    assert "**Not proven**" in profiles.report(list(found.values()), measured_of({}))


def test_the_page_names_every_compiled_module_once_and_no_other() -> None:
    page = profiles.PAGE.read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \|", page, re.M)
    assert sorted(rows) == sorted((name, unit) for unit, names in UNITS.items() for name in names)


def test_what_is_written_into_a_page_replaces_what_stood_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{profiles.BEGIN}old\n{profiles.END}after\n")
    profiles.put_into(page, "new\n")
    assert page.read_text() == f"before\n{profiles.BEGIN}\nnew\n\n{profiles.END}after\n"


def test_the_smallest_load_is_played_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "profiles.json"
    words = ["bench.profiles", "--only", "keyed", "--part", "0.05", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    assert profiles.main() == 0
    found = json.loads(out.read_text())
    shares = found["loads"]["keyed"]["shares"]
    assert "feedhandler/keyed/dispatch.py" in shares
    assert sum(shares.values()) == pytest.approx(1)
    assert found["modules"]["keyed.dispatch"]["reason"] == "profile"
    assert len(found["modules"]) == sum(map(len, UNITS.values()))
    assert len(COMPILED_ONLY) == sum(
        each["reason"] == "headers" for each in found["modules"].values()
    )


def test_a_load_that_fails_is_told_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(load: str, *_: object, **__: object) -> None:
        raise profiles.LoadFailed(f"{load}: it broke")

    monkeypatch.setattr(profiles, "play", fail)
    assert profiles.measure(["keyed"], 1.0) == {}
    assert "keyed: it broke" in capsys.readouterr().err
