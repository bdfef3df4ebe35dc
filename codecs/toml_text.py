"""TOML files that people write: faults by line and key, and a value as text.

`tomllib` gives no line numbers for values, and msgspec's messages are not for operators. Here both
become what an operator needs: `parse_toml` refuses what is no TOML with the line, `convert` makes a
struct of the values or raises `WrongKey` (unknown keys with the nearest known one, wrong types in
plain words), and `KeyLines` has the line of each key, or of the nearest table around it. `parse_as`
does all three, `read_text` reads the file before.

`setting` describes a key of such a struct, and `toml_value` writes one value back. The meaning of
the keys is left to the caller (`config`, `codecs.description`).
"""

import contextlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from feedhandler.codecs.errors import ConfigError, reason_of
from feedhandler.codecs.field_values import nearest

#: A key's path in the file: names, and indices into arrays.
KeyPath = tuple[str | int, ...]

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_Made = TypeVar("_Made")

_TOKEN = re.compile(
    r'''(?P<skipped>\#[^\n]*|[^\S\n]+)
      | (?P<text>"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
      | (?P<sign>[\[\]{}=,\n])
      | (?P<word>[^\s\#"'\[\]{}=,]+|.)''',
    re.VERBOSE | re.DOTALL,
)

_KINDS = {
    "int": "an integer",
    "str": "text in quotes",
    "bool": "true or false",
    "float": "a number",
    "array": "a list",
    "object": "a table",
}


class WrongKey(Exception):
    """A fault at a key: its path, the reason, and the remedy."""

    def __init__(self, path: KeyPath, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.path, self.reason, self.hint = path, reason, hint

    def located(self, text: str, source: str) -> ConfigError:
        """Return the error to raise, with the key and its line in `text`, which `source` names."""
        line, key = KeyLines(text)[self.path], path_text(self.path)
        where = f"{source}:{line}: {key}: " if key else f"{source}:{line}: "
        return ConfigError(where + self.reason, self.hint)


@contextlib.contextmanager
def within(*path: str | int) -> Iterator[None]:
    """Put `path` before the path of each `WrongKey` that is raised while the context lasts."""
    try:
        yield
    except WrongKey as wrong:
        wrong.path = (*path, *wrong.path)
        raise


def read_text(path: str | Path, hint: str) -> str:
    """Return the text of the file `path`, which is UTF-8. Raises `ConfigError` with `hint`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text in UTF-8", hint) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {reason_of(error)}", hint) from None


def parse_as(text: str, source: str, what: str, make: Callable[[dict[str, Any]], _Made]) -> _Made:
    """Return what `make` makes of the values in `text`; `source` and `what` as for `parse_toml`.

    Raises `ConfigError` with the line where the text is no TOML, or `make` raises `WrongKey`.
    """
    values = parse_toml(text, source, what)
    try:
        return make(values)
    except WrongKey as wrong:
        raise wrong.located(text, source) from None


def parse_toml(text: str, source: str, what: str) -> dict[str, Any]:
    """Return the values in `text`; `source` names it, `what` is what the file should be.

    Raises `ConfigError` with the line where it is no TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, where = str(error).partition(" (at line ")
        line = where.partition(",")[0] if where else str(text.count("\n") + 1)
        if "overwrite" in reason and (doubled := KeyLines(text).doubled):
            path, earlier, later = doubled
            reason = f"{path_text(path)} comes twice, first at line {earlier}"
            raise ConfigError(f"{source}:{later}: {reason}", "leave one of both out") from None
        if declared := re.match(r"Cannot declare (\(.*\)) twice", reason):
            names = tuple(re.findall(r"'([^']*)'", declared[1]))
            first = str(KeyLines(text)[names])
            reason = f"[{path_text(names)}] comes twice"
            reason += f", first at line {first}" if first != line else ""
            raise ConfigError(f"{source}:{line}: {reason}", "leave one of both out") from None
        raise ConfigError(
            f"{source}:{line}: not TOML: {reason[:1].lower()}{reason[1:]}",
            f"a {what} is a TOML file; text wants quotes",
        ) from None


def convert(values: Any, to: type[_Struct]) -> _Struct:
    """Convert the values to the struct `to`.

    Raises `WrongKey` for a key that it does not have, a key that is missing and a value of the
    wrong type; the first in the order of the file's tables.
    """
    refuse_unknown(values, to)
    try:
        return msgspec.convert(values, to)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `")
        path = parse_path(where.rstrip("`"))
        if missing := re.match(r"Object missing required field `(.+)`", reason):
            raise WrongKey((*path, missing[1]), "missing") from None
        if reason.startswith("Expected `array`,") and _is_tables(to, path):
            reason = reason.replace("`array`", "an array of tables", 1)
        near = ""
        if wrong := re.match(r"Invalid enum value '(.*)'", reason):
            near = nearest(wrong[1], _words_at(to, path))
        raise WrongKey(path, plain_words(reason) + near, choices(to, path)) from None


def refuse_unknown(values: Any, to: type[msgspec.Struct]) -> None:
    """Raise `WrongKey` for a key that the struct `to`, or one inside it, does not have."""
    _refuse_unknown(values, inspect.type_info(to), (), to.__struct_encode_fields__)


def _refuse_unknown(
    values: Any, kind: inspect.Type, path: KeyPath, tables: tuple[str, ...]
) -> None:
    kind = _plain_type(kind)
    inner = getattr(kind, "item_type", None)
    if inner is not None and isinstance(values, list):
        for index, item in enumerate(values):
            _refuse_unknown(item, inner, (*path, index), tables)
    if not isinstance(kind, inspect.StructType) or not isinstance(values, dict):
        return
    known = {field.encode_name: field.type for field in kind.fields}
    for key, value in values.items():
        if key not in known:
            what = "keys here" if path else "tables"
            all_known = f"{what}: {', '.join(known)}"
            outside = nearest(key, tables).replace("?", " of the file's top level?")
            hint = nearest(key, known).removeprefix("; ") or all_known + outside
            raise WrongKey((*path, key), "unknown key", hint)
        _refuse_unknown(value, known[key], (*path, key), tables)


def _plain_type(kind: inspect.Type) -> inspect.Type:
    """Return the type without its metadata, and of `X | None` the X."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        else:
            kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
    return kind


def choices(to: type[msgspec.Struct], path: KeyPath) -> str:
    """Return `a, b or c`: the possible values at `path`, where it is a choice of words; else ""."""
    words = [word or '""' for word in _words_at(to, path)]
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _words_at(to: type[msgspec.Struct], path: KeyPath) -> list[str]:
    """Return the words that the value at `path` may be, where it is a choice of some."""
    kind = _type_at(to, path, plain=False)
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return [
        str(value)
        for each in kinds
        if isinstance(each, inspect.LiteralType)
        for value in each.values
    ]


def _is_tables(to: type[msgspec.Struct], path: KeyPath) -> bool:
    """Return whether the value at `path` is to be an array of tables."""
    item = getattr(_type_at(to, path), "item_type", None)
    return item is not None and isinstance(_plain_type(item), inspect.StructType)


def _type_at(to: type[msgspec.Struct], path: KeyPath, *, plain: bool = True) -> inspect.Type | None:
    """Return the type of the value at `path`, as `_plain_type` has it; None where it has no one
    type."""
    kind = inspect.type_info(to)
    for part in path:
        kind = _plain_type(kind)
        if isinstance(part, int):
            inner = getattr(kind, "item_type", None)
        elif isinstance(kind, inspect.StructType):
            inner = next((field.type for field in kind.fields if field.encode_name == part), None)
        else:
            inner = None
        if inner is None:
            return None
        kind = inner
    return _plain_type(kind) if plain else kind


def plain_words(reason: str) -> str:
    """Rewrite msgspec's `Expected `int`, got `str`` as `wants an integer, got text in quotes`."""
    if "matching regex" in reason and "@" in reason:
        return "wants 1 to 64 letters, digits, or _ - . @"
    if "matching regex" in reason:
        return "wants 1 to 64 letters, digits, _ or -"
    if bound := re.match(r"Expected `(int|float)` (>=|<=|<|>) (-?[\d.]+)", reason):
        return f"wants {_KINDS[bound[1]]} {bound[2]} {bound[3]}"
    if length := re.match(r"Expected `array` of length (>=|<=) (\d+)", reason):
        return f"wants {'at least' if length[1] == '>=' else 'at most'} {length[2]} of them"
    kinds = "|".join(_KINDS)
    reason = re.sub(
        rf"`((?:{kinds}|null)(?: \| (?:{kinds}|null))*)`",
        lambda found: " or ".join(_KINDS[k] for k in found[1].split(" | ") if k in _KINDS),
        reason,
    )
    return re.sub("^Expected", "wants", reason).replace("Invalid enum value", "cannot be")


class KeyLines:
    """Line numbers (from 1) of the keys, tables and array elements of one TOML text.

    It never rejects anything: `tomllib` decides whether the text is TOML at all.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[KeyPath, int] = {}
        self._tables_seen: dict[KeyPath, int] = {}
        #: The first key that comes twice: its path, and both lines.
        self.doubled: tuple[KeyPath, int, str] | None = None
        self._tokens = _tokens(text)
        self._kind, self._token, self._line = next(self._tokens)
        table: KeyPath = ()
        while self._kind:
            if self._token == "\n":
                self._next()
            elif self._token == "[":
                line = self._line
                self._next()
                is_array = self._token == "["
                table = self._enter_table(_split(self._until("]")), is_array)
                self._until("\n")
                self._lines.setdefault(table, line)
            else:
                self._key(table)

    def __getitem__(self, path: KeyPath) -> int:
        """Return the line of `path`, or of the innermost table around it that is in the text."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def _next(self) -> None:
        self._kind, self._token, self._line = next(self._tokens)

    def _until(self, sign: str) -> str:
        """Return the text before the next `sign`, and skip the sign."""
        passed = ""
        while self._kind and self._token != sign:
            passed += self._token
            self._next()
        self._next()
        return passed

    def _key(self, table: KeyPath) -> None:
        """Read `key = value`, in a table."""
        line = self._line
        path = (*table, *_split(self._until("=")))
        if path in self._lines and self.doubled is None:
            self.doubled = path, self._lines[path], str(line)
        self._lines.setdefault(path, line)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        """Read the value behind `=`, or an element of an array."""
        opened = self._token if self._kind == "sign" else ""
        if opened not in ("[", "{"):
            while self._kind in ("word", "text"):  # a date and its time are two words
                self._next()
            return
        self._next()
        index = 0
        while self._kind and self._token not in ("]", "}"):
            if self._token in (",", "\n", "="):
                self._next()
            elif opened == "{":
                self._key(path)
            else:
                self._lines.setdefault((*path, index), self._line)
                self._value((*path, index))
                index += 1
        self._next()

    def _enter_table(self, names: list[str], is_array: bool) -> KeyPath:
        """Return the path of a table header, with the last index of each array of tables in it."""
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


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, token, line) of each token but blanks and comments; then ("", "", line)."""
    line = 1
    for found in _TOKEN.finditer(text):
        if found.lastgroup != "skipped":
            yield found.lastgroup or "", found[0], line
        line += found[0].count("\n")
    while True:
        yield "", "", line


def _split(dotted: str) -> list[str]:
    """Return the parts of a dotted key, unquoted."""
    return [part.strip("[ \"'") for part in dotted.split(".")]


def parse_path(dotted: str) -> KeyPath:
    """Convert a path as msgspec writes it, `$.channel[0].line[1].port`, to a `KeyPath`."""
    parts = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", dotted)
    return tuple(name or int(index) for name, index in parts)


def path_text(path: KeyPath) -> str:
    """Return a path as text: `channel[0].line[1].port`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def setting(description: str, **bounds: Any) -> msgspec.Meta:
    """Make the metadata of a setting: one line for the operator, and the value's bounds."""
    return msgspec.Meta(description=description, **bounds)


def check_bounds(settings: msgspec.Struct, bounds: dict[str, tuple[int, int]]) -> None:
    """Check that each field named is within its least and greatest value. Raises `ValueError`.

    For `__post_init__`, so that settings which are no file's are checked, too; `convert` makes the
    error one of the key.
    """
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            raise ValueError(f"{name} must be from {least} to {most}, not {value}")


def toml_value(value: Any) -> str:
    """Return a string, integer, float or boolean, or a tuple of them, as TOML text."""
    if isinstance(value, tuple):
        return f"[{', '.join(toml_value(each) for each in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
