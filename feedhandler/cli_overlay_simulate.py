"""`feedhandler overlay simulate` on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli_options import Json

Work = Callable[[], int]


def simulate(
    receivers: Annotated[
        int, typer.Option(help="Compare the techniques for so many; 0: the source's tables.", min=0)
    ] = 0,
    hedging: Annotated[int, typer.Option(help="Siblings that send, too (H).", min=0)] = 2,
    depth: Annotated[int, typer.Option(help="Hops (D); 0: round(log10 N).", min=0)] = 0,
    fan_out: Annotated[int, typer.Option(help="Children of a proxy (F).", min=1)] = 10,
    cloud: Annotated[str, typer.Option(help="Whose latencies: aws or gcp.")] = "aws",
    iterations: Annotated[int, typer.Option(help="Of the Monte Carlo.", min=1)] = 100_000,
    messages: Annotated[int, typer.Option(help="Of each technique.", min=1)] = 6_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same report.", min=0)] = 1,
    table: Annotated[
        str, typer.Option(help="One alone: 1 to 5, 7 to 12, ceiling, models, incast, techniques.")
    ] = "",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Written there, too: .md or .html.")
    ] = None,
    as_json: Json = False,
) -> Work:
    """Simulate the overlay, and show its figures beside the source's.

    Examples:
      feedhandler overlay simulate --report overlay.html
      feedhandler overlay simulate --table 1
      feedhandler overlay simulate --receivers 10000 --messages 1500 --json
    """
    from feedhandler.ops import overlay_simulate as ops

    asked = ops.Asked(
        receivers=receivers,
        hedge=hedging,
        depth=depth,
        fan_out=fan_out,
        cloud=cloud,
        iterations=iterations,
        messages=messages,
        seed=seed,
        table=table,
        report=report,
        as_json=as_json,
    )
    return lambda: ops.simulate(asked)


def register(app: typer.Typer) -> None:
    """Add the command to `feedhandler overlay`."""
    app.command("simulate")(simulate)
