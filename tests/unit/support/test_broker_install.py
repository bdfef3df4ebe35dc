"""Installation of the brokers: its mirror, its messages, nothing done twice."""

from pathlib import Path

import pytest

from tests.support.brokers import install, installations

ONE_LINE = """\
# deb http://not.example/debian bookworm main
deb http://tools.example cloud-bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib
"""
STANZAS = """\
Types: deb
# an older one
URIs: http://security.example/debian
Suites: bookworm-security
Components: main

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Enabled: no

Types: deb deb-src
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEEDHANDLER_BROKERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    return tmp_path


@pytest.mark.parametrize("text", [ONE_LINE, STANZAS])
def test_the_mirror_is_the_one_that_apt_takes_its_own_release_from(text: str) -> None:
    assert install.mirror(["", text], "bookworm") == "http://mirror.example/debian"


def test_a_machine_whose_lists_name_no_mirror_is_reported() -> None:
    with pytest.raises(install.Failed, match="name no mirror of Debian bookworm"):
        install.mirror(["deb http://tools.example cloud main\n"], "bookworm")


def test_what_is_there_is_not_installed_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "rabbitmq-4",
        f"apache-artemis-{installations.ARTEMIS_VERSION}",
        f"qpid-broker-j-{installations.BROKERJ_VERSION}",
    ):
        (home / name).mkdir()
    assert install.main() == 0
    assert capsys.readouterr().out == ""


def test_what_cannot_be_installed_is_reported_in_a_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "rabbitmq-4").mkdir()
    assert install.main() == 1
    errors = capsys.readouterr().err
    assert (
        errors
        == f"apache-artemis-{installations.ARTEMIS_VERSION}: mvn: No such file or directory\n"
    )


def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(install.Failed, match=r"sh -c .*: E: no such mirror"):
        install.run("sh", "-c", "echo going; echo 'E: no such mirror'; echo gone; exit 3")


def test_a_broker_that_is_not_there_says_what_brings_it(home: Path) -> None:
    for installation in (installations.rabbitmq_4, installations.artemis, installations.brokerj):
        with pytest.raises(installations.Absent, match=installations.INSTALL):
            installation()
