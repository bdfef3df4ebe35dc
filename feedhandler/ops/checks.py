"""One finding of `feedhandler doctor`."""

from typing import Literal

from msgspec import Struct


class Check(Struct, frozen=True):
    """One finding: what was looked at, how it stands, what was seen, how to mend it."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""
