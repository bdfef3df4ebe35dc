"""Where the project is checked out."""

from pathlib import Path

#: The folder that has `feedhandler`, `tests` and `docs`.
CHECKOUT = Path(__file__).resolve().parents[2]
