"""Lines that `keyed put` reads, and refusals that it keeps, without a node (`ops.keyed`)."""

import asyncio
from pathlib import Path

import pytest

from feedhandler import keyed
from feedhandler.codecs.errors import UsageError
from feedhandler.ops import keyed as ops


async def test_a_line_that_does_not_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "LINE_BYTES_MAX", 10)
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + b"x" * 11)
    with path.open("rb") as file:
        lines = ops._lines(file)
        assert await anext(lines) == b"one"
        with pytest.raises(UsageError, match="a line has more than"):
            await anext(lines)


async def test_refusals_that_are_kept_are_as_many_as_are_printed() -> None:
    refused: list[str] = []
    for number in range(2 * ops.REFUSED_SHOWN):
        future = asyncio.get_running_loop().create_future()
        future.set_exception(keyed.Refused(f"message {number}", ""))
        ops._note(future, refused)
    assert refused == [f"message {number}" for number in range(ops.REFUSED_SHOWN)]
