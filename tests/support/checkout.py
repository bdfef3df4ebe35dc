"""The root folder of the checkout, for tests that read its files."""

from pathlib import Path

#: The folder that has `feedhandler`, `tests` and `docs`.
CHECKOUT = Path(__file__).resolve().parents[2]
