"""One line for the operator, from wherever in a running process something needs a person."""

import sys

#: What a running gateway's lines begin with.
PREFIX = "gateway: "


def tell_operator(text: str) -> None:
    """Write `text` as one line to stderr; nothing comes of it where nobody reads that."""
    try:
        print(f"{PREFIX}{text}", file=sys.stderr, flush=True)
    except OSError:
        return
