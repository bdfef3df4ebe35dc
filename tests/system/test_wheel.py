"""The wheel that `make wheel` leaves in dist/: small, whole, enough where no compiler is."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.checkout import CHECKOUT
from tests.support.needs import absent

WHEEL_BYTES_MAX = 10_000_000
#: What belongs to building, not to running.
SOURCES_OF_UNITS = (".c", ".h", ".pxd", ".pxi", ".pyx")


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel in dist/, made from the sources as they are now."""
    found = sorted((CHECKOUT / "dist").glob("feedhandler-*manylinux*.whl"))
    if not found:
        absent("wheel", "no wheel in dist/; run `make wheel`")
    with zipfile.ZipFile(found[-1]) as archive:
        stale = [
            name
            for name in archive.namelist()
            if name.endswith(".py") and (CHECKOUT / name).read_bytes() != archive.read(name)
        ]
    if stale:
        absent("wheel", f"the wheel in dist/ is older than {stale[0]}; run `make wheel`")
    return found[-1]


def test_the_wheel_is_small_and_carries_nothing_of_the_build(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    # Programs of the kernel are compiled where they run.
    sources = {name for name in names if name.endswith(SOURCES_OF_UNITS)}
    assert sources == {"feedhandler/overlay/hooks/overlay.bpf.c"}
    feeds = CHECKOUT / "codecs" / "feeds"
    described = {
        f"feedhandler/codecs/feeds/{each.relative_to(feeds)}" for each in feeds.rglob("*.toml")
    }
    assert described <= set(names)
    assert "feedhandler/amqp/subscribing/inbox.pyi" in names


def test_the_wheel_runs_the_demo_in_an_empty_environment_without_a_compiler(
    wheel: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=120)
    # Nothing but the environment's own programs is found: no compiler, no make.
    bare = {"PATH": str(environment / "bin"), "HOME": str(Path.home()), "LANG": "C.UTF-8"}
    install = [environment / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile"]
    # proton has no wheel of its own for Linux; `make wheel` makes one beside ours.
    install += ["--only-binary", ":all:", "--find-links", wheel.parent, wheel]
    subprocess.run(install, env=bare, check=True, timeout=240)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shown = subprocess.run(
        [environment / "bin" / "feedhandler", "demo", "--seconds", "3"],
        env=bare,
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "0 lost" in shown.stdout
