"""Child processes of a command: watched, stopped, and reported when they die."""

import asyncio
import os
import select

import pytest

from feedhandler.lab.supervisor import Supervisor
from feedhandler.terminal.children import ChildEnded, ChildNotBuilt, Family
from feedhandler.terminal.console import ExitCode, report

READY = "import sys, signal; print('ready', flush=True); signal.pause()"
OBEDIENT = (
    "import sys, signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
    "print('ready', flush=True); signal.pause()"
)


async def started(family: Family, program: str, name: str = "thing") -> asyncio.Event:
    """Start a child and answer with the event of its first line."""
    ready = asyncio.Event()
    await family.start(name, "-c", program, on_line=lambda _: ready.set())
    return ready


async def test_leaving_the_family_stops_every_child() -> None:
    async with Family() as family:
        for _ in range(2):
            ready = await started(family, OBEDIENT)
            await family.until(ready, 30, "starting")
        children = family.children
    assert [child.process.returncode for child in children] == [0, 0]


async def test_a_line_of_any_length_does_not_stop_a_child() -> None:
    program = f"for _ in range(4): print('x' * {1 << 20}); print('ready')"
    lines: list[str] = []
    async with Family() as family:
        child = await family.start("thing", "-c", program, on_line=lines.append)
        async with asyncio.timeout(30):
            assert await child.wait() == 0
    assert lines.count("ready") == 4


async def test_a_child_that_fails_is_reported_with_its_last_line() -> None:
    program = "import sys; print('feedhandler: out of luck', file=sys.stderr); sys.exit(2)"
    async with Family() as family:
        ready = await started(family, program, "gateway")
        with pytest.raises(ChildEnded) as caught:
            await family.until(ready, 30, "starting")
    assert str(caught.value) == "the gateway ended early (exit code 2): out of luck"


@pytest.mark.parametrize(
    "end",
    [
        "print('feedhandler: unit lab is not compiled (run `make build`)', file=sys.stderr); "
        "sys.exit(2)",
        "import feedhandler._compiled as c; raise c.NotCompiledError('unit lab is not compiled')",
        "raise ValueError('Ring size changed, may indicate binary incompatibility.')",
    ],
)
def test_a_child_whose_units_are_at_fault_is_the_operators_to_mend(
    end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def demo() -> None:
        async with Family() as family:
            await family.start("gateway", "-c", f"import sys; {end}")
            await family.until(asyncio.Event(), 30, "starting")

    async def lab() -> None:
        async with Supervisor() as supervisor:
            await supervisor.enlist("gateway", "-c", f"import sys; {end}")
            await supervisor.during("starting", 30, asyncio.Event().wait())

    for run in (demo, lab):
        with pytest.raises(ChildNotBuilt) as caught:
            asyncio.run(run())
        assert report(caught.value) == ExitCode.USAGE
        text = capsys.readouterr().err
        assert text.startswith("feedhandler: the gateway: ")
        assert text.endswith(" (run `make build`)\n")
        assert text.count("\n") == text.count("make build") == 1


async def test_a_child_that_is_killed_is_reported_with_the_signal() -> None:
    async with Family() as family:
        ready = await started(family, READY, "exchange")
        await family.until(ready, 30, "starting")
        family.children[0].process.kill()
        with pytest.raises(ChildEnded, match=r"the exchange ended early \(signal 9\)"):
            await family.until(asyncio.Event(), 30, "running")


async def test_waiting_has_an_end() -> None:
    async with Family() as family:
        await started(family, READY)
        with pytest.raises(ChildEnded, match=r"starting: nothing happened within 0\.1 s"):
            await family.until(asyncio.Event(), 0.1, "starting")


async def test_a_child_that_ended_well_does_not_disturb_the_others() -> None:
    async with Family() as family:
        await started(family, "pass", "short")
        ready = await started(family, OBEDIENT, "long")
        await family.until(ready, 30, "starting")
        assert await family.children[0].wait() == 0


async def test_both_outputs_are_seen_line_by_line() -> None:
    lines: list[str] = []
    errors: list[str] = []
    program = "import sys; print('one'); print('two'); print('three', file=sys.stderr)"
    async with Family() as family:
        child = await family.start(
            "talker", "-c", program, on_line=lines.append, on_error=errors.append
        )
        assert await child.wait() == 0
    assert lines == ["one", "two"]
    assert errors == ["three"]


PARENT = f"""
import asyncio
from feedhandler.terminal.children import Family

async def main():
    child = await Family().start("thing", "-c", {READY!r})
    print(child.process.pid, flush=True)
    await child.wait()

asyncio.run(main())
"""


async def test_a_child_does_not_outlive_a_parent_that_is_killed() -> None:
    async with Family() as family:
        lines: asyncio.Queue[str] = asyncio.Queue()
        parent = await family.start("parent", "-c", PARENT, on_line=lines.put_nowait)
        orphan = os.pidfd_open(int(await lines.get()))
        parent.process.kill()
        await parent.wait()
    # The descriptor becomes readable when the process has ended.
    assert await asyncio.to_thread(select.select, [orphan], [], [], 30) == ([orphan], [], [])
    os.close(orphan)


async def test_a_child_that_has_failed_before_anybody_waits_is_reported_too() -> None:
    async with Family() as family:
        ready = await started(family, "raise SystemExit(2)", "gateway")
        await family.children[0].process.wait()
        with pytest.raises(ChildEnded, match=r"the gateway ended early \(exit code 2\)"):
            await family.until(ready, 30, "starting")
