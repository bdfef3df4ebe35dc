"""Parquet files of the lake's folders, of a bounded number of rows each."""

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

#: Rows that are gathered for one file before they are written as a row group.
GROUP_ROWS = 1 << 17
#: Rows a file at most: some hundred megabytes.
FILE_ROWS_MAX = 5_000_000


def abandon(writer: pq.ParquetWriter) -> None:
    """Close a file that could not be written, ignoring further errors."""
    with contextlib.suppress(OSError):
        writer.close()
    # Else it tries again when it is garbage-collected, and Python prints a traceback.
    writer.is_open = False


class PartFiles:
    """`part-0.parquet`, `part-1.parquet` and so on in a folder; `rows` counts what they hold."""

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self._folder = folder
        self._writer: pq.ParquetWriter | None = None
        self._rows_here = self._number = 0

    def __enter__(self) -> "PartFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            if kind is None:
                self._close()
            else:
                abandon(self._writer)

    def add(self, table: pa.Table) -> None:
        """Write a row group, in a new file where the last one would grow beyond the bound."""
        if self._writer is not None and self._rows_here + table.num_rows > FILE_ROWS_MAX:
            self._close()
        if self._writer is None:
            path = self._folder / f"part-{self._number}.parquet"
            self._writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            self._number += 1
        self._writer.write_table(table)
        self._rows_here += table.num_rows
        self.rows += table.num_rows

    def _close(self) -> None:
        writer, self._writer, self._rows_here = self._writer, None, 0
        if writer is not None:
            try:
                writer.close()
            finally:
                abandon(writer)
