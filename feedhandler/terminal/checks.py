"""One finding of `feedhandler doctor`."""

from typing import Literal

from msgspec import Struct


class Check(Struct, frozen=True):
    """One finding: what was checked, its status, what was found, and the remedy."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""
