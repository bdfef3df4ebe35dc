"""Measurements of trading sessions: captures as Spark tables, and the job over them."""

from typing import Any


def register(spark: Any) -> None:
    """Let `spark.read.format("feedhandler")` read captures in this session; see `source`."""
    from feedhandler.characterise import source

    source.register(spark)


__all__ = ["register"]
