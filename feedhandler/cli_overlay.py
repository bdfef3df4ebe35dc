"""`feedhandler overlay` on the command line."""

import typer

from feedhandler import cli_overlay_simulate

overlay = typer.Typer(
    help="Fair multicast over a tree of proxies: simulate it.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    cli_overlay_simulate.register(overlay)
    app.add_typer(overlay, name="overlay")
