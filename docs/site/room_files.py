"""Writes the table of files in each room's README: `python docs/site/room_files.py` (`make docs`).

A room is a folder with a README that has the two marks below. Between them stands what the room may
import, by the table of rooms, and a table for the room and for each of its subfolders: every
module, with the first sentence of its docstring. A subfolder that is a room itself is a link to its
README. So a README cannot forget a file or say something else of it than the file itself.
`--check` writes nothing and exits with 1 where a table is not what it should be.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: The table of rooms: what each may import.
ROOMS = CHECKOUT / "docs" / "rooms.md"
#: Where rooms are looked for.
ROOTS = ("codecs", "retrans", "replay", "feedhandler", "bench", "tests")
BEGIN = "<!-- files: written by `make docs` -->"
END = "<!-- end of files -->"
#: What counts as a module: Python, Cython, C, and tables that modules read.
SUFFIXES = (".py", ".pyx", ".pxd", ".pxi", ".c", ".toml")
_DOCSTRING = re.compile(r'^(?:#[^\n]*\n)*\s*r?"""(.*?)"""', re.DOTALL)
_COMMENT = re.compile(r"^/\*(.*?)\*/", re.DOTALL)


def readmes(checkout: Path = CHECKOUT) -> list[Path]:
    """Return the READMEs of rooms, in the order of `ROOTS`."""
    found = [path for root in ROOTS for path in sorted((checkout / root).rglob("README.md"))]
    return [path for path in found if not path.is_symlink() and BEGIN in path.read_text()]


def modules(folder: Path) -> list[Path]:
    """Return the modules that stand in a folder itself, by name; none for its door, `__init__.py`,
    nor for declarations that stand beside a module of the same name."""
    found = [path for path in folder.iterdir() if path.suffix in SUFFIXES]
    named = {path.stem for path in found if path.suffix in (".py", ".pyx")}
    return sorted(
        path for path in found
        if path.name != "__init__.py" and not is_built(path)
        and not (path.suffix == ".pxd" and path.stem in named)
    )  # fmt: skip


def is_built(path: Path) -> bool:
    """Return whether the build wrote the file from another one beside it."""
    if path.suffix == ".c":
        return any(path.with_suffix(suffix).exists() for suffix in (".py", ".pyx"))
    return False


def sentence_of(path: Path) -> str:
    """Return the first sentence of a module's docstring, or "" where it has none."""
    text = path.read_text(encoding="utf-8")
    match = _DOCSTRING.match(text) or _COMMENT.match(text)
    if match is None:
        lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
        first = " ".join(line[1:].strip() for line in lines)
    else:
        first = " ".join(match[1].strip().lstrip("* ").split("\n\n")[0].split())
    first = re.split(r"(?<=[^.]\.) ", first)[0].rstrip(".")
    return first.replace("|", "\\|")


def tables(readme: Path, rooms: set[Path]) -> Iterator[str]:
    """Yield the lines of a README's tables: the room's own files, then each subfolder's that is no
    room itself."""
    yield from imports(readme.parent)
    folders = [readme.parent, *sorted(path for path in readme.parent.rglob("*") if path.is_dir())]
    for folder in folders:
        inner = folder != readme.parent
        within = {folder, *folder.parents} - {readme.parent, *readme.parent.parents}
        if within & rooms == {folder} and not any(path.is_symlink() for path in within):
            yield link_to(folder, readme.parent)
        if within & rooms or any(path.is_symlink() for path in within) or not modules(folder):
            continue
        if inner:
            named = folder.relative_to(readme.parent)
            about = sentence_of(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
            yield f"\n**`{named}/`**{': ' + about + '.' if about else ''}\n"
        yield "| file | what it is |\n|---|---|"
        for path in modules(folder):
            yield f"| `{path.relative_to(readme.parent)}` | {sentence_of(path)} |"


def link_to(room: Path, around: Path) -> str:
    """Return the line of a room within another one."""
    named = room.relative_to(around).as_posix()
    door = room / "__init__.py"
    about = sentence_of(door) if door.exists() else ""
    return f"\n**[`{named}/`]({named}/README.md)**{': ' + about + '.' if about else ''}"


def imports(folder: Path) -> Iterator[str]:
    """Yield the line that says what the room in a folder may import, if the table has the room."""
    if not folder.is_relative_to(CHECKOUT):
        return
    parts = folder.relative_to(CHECKOUT).parts
    name = ".".join(parts[1:] if parts[0] == "feedhandler" and parts[1:] else parts)
    for row in ROOMS.read_text().splitlines():
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        if len(cells) > 4 and f"`{name}`" in cells[0].split(", "):
            taken = cells[3] or "no other room"
            types = f"; for type checkers alone: {cells[4]}" if cells[4] else ""
            yield f"May import: {taken}{types}.\n"
            return


def written(readme: Path, rooms: set[Path]) -> str:
    """Return the README's text with its tables as they should be."""
    head, _, rest = readme.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n" + "\n".join(tables(readme, rooms)) + f"\n{END}{tail}"


def main(words: list[str] | None = None) -> int:
    """Write the tables, or check them; 1 where one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(words)
    found = readmes()
    rooms = {path.parent for path in found}
    old = []
    for readme in found:
        text = written(readme, rooms)
        if text != readme.read_text():
            old.append(readme)
            if not options.check:
                readme.write_text(text)
    for readme in old:
        verb = "is old: run `make docs`" if options.check else "written"
        print(f"{readme.relative_to(CHECKOUT)} {verb}")
    return 1 if old and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
