"""`feedhandler overlay` on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli_options import Json

Work = Callable[[], int]

overlay = typer.Typer(
    help="A fair multicast over a tree of proxies, for networks without one.",
    no_args_is_help=True,
)

Receivers = Annotated[int, typer.Option(help="Receivers.", min=1, max=1_000_000)]
Hedging = Annotated[
    int, typer.Option(help="Neighbours that each proxy helps: so many more copies.", min=0)
]  # fmt: skip


@overlay.command("simulate")
def simulate(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT", help="Such as table-1 or figure-8; all."),
    ] = None,
    receivers: Receivers = 100,
    hedging: Hedging = 2,
    messages: Annotated[
        int, typer.Option(help="Messages of each experiment; deadlines need 10,000.", min=100)
    ] = 20_000,
    iterations: Annotated[int, typer.Option(help="Iterations of Figure 5.", min=1)] = 100_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.", min=0)] = 1,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page (.html) or its tables (.md).")
    ] = None,
    as_json: Json = False,
) -> Work:
    """Simulate trees in a cloud: latency, delivery windows, deadlines and fairness, beside the
    figures of the paper that the overlay is made after.

    \b
    Examples:
      feedhandler overlay simulate table-1 figure-5
      feedhandler overlay simulate --receivers 1000 --report overlay.html
    """
    from feedhandler.ops import overlay_simulate as ops
    from feedhandler.overlay.simulation.experiments import Setting

    setting = Setting(receivers, hedging, messages, iterations, seed)
    return lambda: ops.simulate(setting, experiments or (), report, as_json)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(overlay, name="overlay")
