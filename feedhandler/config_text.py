"""The text side of configuration: where in the file a key stands, and a file's text from values.

`tomllib` tells no line numbers for values, so a wrong value would be reported without a place.
`KeyLines` scans the text once, the way an operator reads it (table headers, then `key =` lines),
and answers with the line of a key, or of the nearest table around it. It never rejects anything:
whether the text is TOML at all is `tomllib`'s business.

`toml_value` writes one value back. What the keys mean is `config.py`'s business.
"""

import json
import re
from typing import Any

#: A key's way through the file: names, and indices into arrays of tables.
KeyPath = tuple[str | int, ...]

_TABLE = re.compile(r"^\s*\[(?P<array>\[)?\s*(?P<name>[^\[\]]+?)\s*\]")
_KEY = re.compile(r"""^\s*(?P<name>(?:[A-Za-z0-9_\-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[^=\s]+)*)\s*=""")
_LONG_STRING = re.compile(r'"""|\'\'\'')


class KeyLines:
    """Line numbers (from 1) of the keys and tables of one TOML text."""

    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {}
        self._tables_seen: dict[KeyPath, int] = {}
        table: KeyPath = ()
        inside_long_string = False
        for number, line in enumerate(text.splitlines(), start=1):
            was_inside = inside_long_string
            if len(_LONG_STRING.findall(line)) % 2:
                inside_long_string = not inside_long_string
            if was_inside:
                continue
            if header := _TABLE.match(line):
                table = self._enter_table(_split(header["name"]), header["array"] is not None)
                self._lines.setdefault(table, number)
            elif key := _KEY.match(line):
                self._lines.setdefault((*table, *_split(key["name"])), number)

    def __getitem__(self, path: KeyPath) -> int:
        """The line of `path`, or of the innermost table around it that stands in the text."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def _enter_table(self, names: list[str], is_array: bool) -> KeyPath:
        """The path of a table header: every array of tables on the way takes its last index."""
        path: KeyPath = ()
        for name in names[:-1]:
            path = (*path, name)
            if path in self._tables_seen:
                path = (*path, self._tables_seen[path])
        path = (*path, names[-1])
        if is_array:
            index = self._tables_seen.get(path, -1) + 1
            self._tables_seen[path] = index
            path = (*path, index)
        return path


def _split(dotted: str) -> list[str]:
    """The parts of a dotted key, unquoted."""
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def parse_path(dotted: str) -> KeyPath:
    """`$.channel[0].line[1].port`, as msgspec writes a path, as a `KeyPath`."""
    parts = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", dotted)
    return tuple(name or int(index) for name, index in parts)


def path_text(path: KeyPath) -> str:
    """`channel[0].line[1].port`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def toml_value(value: Any) -> str:
    """One string, integer, float or boolean as TOML text, or a tuple of them."""
    if isinstance(value, tuple):
        return f"[{', '.join(toml_value(each) for each in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
