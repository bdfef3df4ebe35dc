"""Profiles: the built-in ones are sound, odd ones are refused in one line that says where."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import ConfigError
from feedhandler.replay.generating.profile import FOLDER, built_in, load_profile
from feedhandler.replay.generating.profile_plan import mean_payload, midnight_ns, settings_of
from tests.support.refusal import refusal

FEED = load_feed("euronext-utp-md")
DAY = (FOLDER / "euronext-2011-03.json").read_text()


def document(**changes: Any) -> dict[str, Any]:
    whole = msgspec.json.decode(DAY)
    whole.update(changes)
    return {name: value for name, value in whole.items() if value is not None}


def written(tmp_path: Path, whole: dict[str, Any] | bytes) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(whole if isinstance(whole, bytes) else msgspec.json.encode(whole))
    return path


def test_the_built_in_profiles_are_read_by_name_and_have_the_papers_mean() -> None:
    assert built_in() == ["euronext-2011-03", "market"]
    for name in built_in():
        profile = load_profile(name)
        assert profile.name == name
        assert mean_payload(profile) == pytest.approx(287.53, rel=0.005)


def test_a_file_is_a_profile_too(tmp_path: Path) -> None:
    assert load_profile(written(tmp_path, document(name="ours"))).name == "ours"


SERVICES = msgspec.json.decode(DAY)["services"]


def services(**changes: Any) -> dict[str, Any]:
    return {"services": {**SERVICES, **{name[1:]: value for name, value in changes.items()}}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": "5 o'clock"}, "Invalid isoformat string"),
        ({"day": "yesterday"}, "Invalid isoformat string"),
        ({"day": "2106-02-08"}, "day 2106-02-08 is not in 1970 to 2105"),
        ({"day": "0001-01-01"}, "day 0001-01-01 is not in 1970 to 2105"),
        ({"start": "22:00", "end": "05:10"}, "starts at 22:00 and ends at 05:10"),
        ({"start": None}, "missing required field `start`"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"instruments": 2}, "`int` >= 8"),
        ({"minutes": []}, "neither rate_mbps nor minutes"),
        ({"minutes": [{"at": "09:00", "packets": 1}, {"at": "08:00", "packets": 1}]},
         "not in order"),
        ({"seconds": [{"at": "04:00:00", "packets": 9, "payload_bytes": 99}]}, "is outside"),
        ({"seconds": [{"at": "09:00:00", "packets": 9, "payload_bytes": 99}] * 2}, "twice"),
        ({"seconds": [{"at": "09:00:00", "packets": 9, "payload_bytes": 70_000}]},
         "second 09:00:00 has 70000 bytes a packet, possible are up to 65,507"),
        ({"minutes": [{"at": "09:00", "packets": 1e18}]}, "`float` <= 1000000000"),
        ({"lines": {"skew_us": [0, 3_000_000]}}, "`int` <= 2000000"),
        ({"heartbeat_s": 1e300}, "`float` <= 172800"),
        ({"repeats": {"within_1_ms": 0.9, "within_10_ms": 0.8}}, "fewer repeats within 10 ms"),
        ({"repeats": {"within_1_ms": 1.9, "within_10_ms": 0.8}}, "`float` <= 1"),
        ({"lines": {"skew_us": [200, 100]}}, "least, most"),
        (services(_109={"packets": 1, "payload_bytes": 100.0}), "service 109 is not 101 to 107"),
        (services(_104={"packets": 0, "payload_bytes": 100.0}), "service 104 has no packets"),
        (services(_103={"packets": 5, "payload_bytes": 1500.0}), "1500 bytes a packet, possible"),
        (services(_102={"packets": 5, "payload_bytes": 100.0}), "possible are 60 to 80"),
        ({"zone": "Europe/Atlantis"}, "no time zone Europe/Atlantis"),
        ({"feed": "iex-deep"}, "feed iex-deep"),
        ({"heartbeat_s": 0}, "`float` >= 0.01"),
    ],
)  # fmt: skip
def test_an_odd_profile_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, document(**changes))
    found = refusal(load_profile, path)
    assert words in found
    assert str(path) in found


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"name": 3}'])
def test_what_is_no_profile_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"profile .*profile\.json"):
        load_profile(written(tmp_path, content))


def test_a_profile_that_is_not_there_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="built-in ones are euronext-2011-03, market"):
        load_profile("no-such")
    with pytest.raises(ConfigError, match="no profile"):
        load_profile(tmp_path)
    with pytest.raises(ConfigError, match="has over"):
        load_profile(written(tmp_path, b" " * (1 << 23)))


def test_times_of_a_profile_are_those_of_its_zone() -> None:
    """05:10 in Lisbon is 06:10 at the exchange, in March, and 05:10 UTC."""
    profile = load_profile("euronext-2011-03")
    settings = settings_of(profile, FEED, 1, 0.01, None)
    assert settings.start_ns == (6 * 3600 + 600) * 1_000_000_000
    assert (midnight_ns(profile, FEED) + settings.start_ns) % 86_400_000_000_000 == (
        (5 * 3600 + 600) * 1_000_000_000
    )


def test_a_plan_comes_to_the_profiles_total_and_never_falls() -> None:
    profile = load_profile("euronext-2011-03")
    plan = settings_of(profile, FEED, 3, 0.1, None).plan
    assert plan.packets[-1] == pytest.approx(81_217_612 * 0.1 * 1000 / 2, rel=1e-5)
    assert (plan.packets[1:] >= plan.packets[:-1]).all()
    assert plan.duration_ns == 60_600 * 1_000_000_000
    cut = settings_of(profile, FEED, 3, 0.1, 7200.0).plan
    assert cut.packets.tolist() == plan.packets[: len(cut.packets)].tolist()
