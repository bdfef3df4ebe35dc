"""`feedhandler fix check`: messages of a file as readable fields, and the faults of bad ones."""

import sys
from pathlib import Path

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.explain import Explained, messages
from feedhandler.terminal.console import ExitCode, complain, print_json, reading

#: Bytes of a file at most: it is read as a whole.
FILE_BYTES_MAX = 1 << 30


def check(
    source: str, dictionary: str, transport: str | None, separator: str, bad: bool, as_json: bool
) -> int:
    """Print the messages of `source`, or only bad ones; `FOUND` where one is bad or there is none.

    `source` `-` is standard input; `separator` stands for SOH where it is not empty.
    """
    known = load_dictionary(dictionary, transport)
    data = _read(source)
    if separator:
        data = data.replace(separator.encode(), b"\x01")
    count = wrong = 0
    for each in messages(data, known):
        count += 1
        wrong += each.fault is not None
        if each.fault is None and bad:
            continue
        if as_json:
            print_json(_figures(each))
        else:
            sys.stdout.write(_text(each, count))
    if not count:
        complain("there is no FIX message", "fields are separated by SOH; see --separator")
    elif not as_json:
        print(f"{count:,} messages of {known.name}, {wrong:,} wrong")
    return ExitCode.FOUND if wrong or not count else ExitCode.OK


def _read(source: str) -> bytes:
    """Read a file or standard input. Raises `UsageError` where it is unreadable or too large."""
    with reading(Path(source), "check the path") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{source} has more than {FILE_BYTES_MAX:,} bytes", "cut it into pieces")
    return data


def _text(each: Explained, number: int) -> str:
    """Format a message as lines of text."""
    title = f"{each.code} {each.name}".strip() or "no message"
    lines = [f"message {number}, byte {each.at}, {each.size} bytes: {title}"]
    for field in each.fields:
        value = ascii(field.value.decode("utf-8", "backslashreplace"))[1:-1]
        lines.append(f"{'  ' * (field.depth + 1)}{field.tag:>4} {field.name} = {value}")
    if each.fault is not None:
        lines.append(f"  wrong at {each.fault}")
    return "\n".join(lines) + "\n"


def _figures(each: Explained) -> dict[str, object]:
    """Return a message as a dict, for JSON."""
    fields = [
        {
            "tag": field.tag,
            "name": field.name,
            "value": field.value.decode("latin-1"),
            "depth": field.depth,
        }
        for field in each.fields
    ]
    figures: dict[str, object] = {"at": each.at, "size": each.size, "type": each.code}
    figures |= {"name": each.name, "fields": fields}
    if each.fault is not None:
        fault = each.fault
        figures["fault"] = {
            "reason": fault.reason.name.lower(),
            "at": fault.at,
            "tag": fault.tag or None,
            "expected": fault.expected,
            "found": fault.found,
        }
    return figures
