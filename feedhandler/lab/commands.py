"""`feedhandler lab`: the latency laboratory."""

import asyncio
import socket

from feedhandler._compiled import require_units
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.doctor import host
from feedhandler.lab import report, report_tables
from feedhandler.lab.broker_laboratory import BrokerLaboratory
from feedhandler.lab.laboratory import Laboratory
from feedhandler.lab.plan import Plan
from feedhandler.lab.results import Run, write_run
from feedhandler.lab.view import View
from feedhandler.terminal.captures import open_capture
from feedhandler.terminal.console import ExitCode, complain, run_async, until_stopped
from feedhandler.terminal.outputs import refuse_folder

#: The feed that the generator knows.
GENERATED_KEY = "euronext"
#: Compiled units that the roles' processes need.
UNITS = ("codecs", "ingest", "retrans", "amqp", "subscribing", "exchange", "captures", "lab")


def run(plan: Plan) -> int:
    """Measure, write the report, and print it; `FOUND` where any client found a loss.

    A duplicate or a reordering counts, too. Raises `UsageError`, `NotCompiledError`.
    """
    require_units(UNITS)
    _refuse_early(plan)

    async def main(stop: asyncio.Event) -> int:
        code: int | None = await until_stopped(_measure(plan), stop)
        if code is None:
            complain("lab: interrupted")
        return ExitCode.INTERRUPTED if code is None else code

    return run_async(main)


async def _measure(plan: Plan) -> int:
    with View() as view:
        kind = Laboratory if plan.broker == "embedded" else BrokerLaboratory
        laboratory = kind(plan, view)
        try:
            async with laboratory:
                if plan.sweep:
                    await laboratory.sweep_all()
                else:
                    await laboratory.measure_all()
        except BaseException:
            _keep(laboratory.run, plan)
            raise
    return _report(laboratory.run, plan)


def _keep(run: Run, plan: Plan) -> None:
    """Keep the whole steps of a run that was ended in the middle."""
    if run.steps:
        path = write_run(run, plan.out)
        complain(f"lab: ended after {len(run.steps)} whole steps, which are in {path}")


def _report(run: Run, plan: Plan) -> int:
    path = write_run(run, plan.out)
    *_, page = report.write(run, plan.out)
    print(report_tables.text(run))
    print(f"written: {path}")
    print(f"written: {page}")
    for flaw in run.configuration.get("flaws", ()):
        complain(f"lab: {flaw}", "all before it was played")
    for finding in run.findings:
        complain(f"lab: {finding}")
    return ExitCode.FOUND if run.findings else ExitCode.OK


def _refuse_early(plan: Plan) -> None:
    """Raise `UsageError` for plans that make no sense, before any role is started."""
    for path in plan.captures:
        open_capture(path)
    feed = load_feed(plan.feed)
    if feed.table.fix:
        raise UsageError(
            "the laboratory numbers packets anew, and the numbers of FIX messages are text",
            "measure a binary feed",
        )
    if not plan.captures and feed.key != GENERATED_KEY:
        raise UsageError(f"{feed.name} cannot be generated", "replay a capture of it: --capture")
    if plan.pace and not plan.captures:
        raise UsageError("--pace without a capture", "a generated session has a --rate")
    if plan.pace and plan.sweep == "rate":
        raise UsageError("a sweep of the rate at a capture's own pace", "leave out --pace")
    if plan.symbols and plan.broker != "embedded":
        raise UsageError(
            "--symbols with a broker", "it routes whole packets and keys: use the embedded node"
        )
    if plan.symbols and plan.mode == "paper":
        raise UsageError(
            "--symbols in the paper's mode", "its control client takes everything: --mode direct"
        )
    if plan.sweep and plan.bound is None:
        raise UsageError("a sweep without a bound", "give one: --bound p90=1ms")
    if plan.broker_url and plan.broker == "embedded":
        raise UsageError("--broker-url without a broker", "say which it is: --broker rabbitmq")
    if plan.out.exists() and not plan.out.is_dir():
        raise UsageError(f"{plan.out} is no folder", "name one for the report: --out")
    _refuse_where(plan)


def _refuse_where(plan: Plan) -> None:
    """Raise `UsageError` where the report cannot be written, or the interface is not here."""
    refuse_folder(plan.out, "--out")
    if not _is_here(plan.interface):
        there = ", ".join(host.interface_names())
        raise UsageError(f"no such interface {plan.interface!r}", f"--interface: one of {there}")


def _is_here(interface: str) -> bool:
    """Return whether this host has the interface, a name or any of its IPv4 addresses."""
    if interface in host.interface_names():
        return True
    try:
        address = socket.inet_ntoa(socket.inet_pton(socket.AF_INET, interface))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
