"""The table of rooms (`docs/rooms.md`), and what the tree's imports make of it.

No module of the project is imported: files are parsed, Python's by `ast`, Cython's by their lines.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.checkout import tree_of

#: Folders at the top that hang below the package as links.
LINKED = ("codecs", "retrans", "replay")
#: What a core never imports: the world outside, and the clock.
WORLD = frozenset(
    {
        "asyncio", "concurrent", "cproton", "fcntl", "multiprocessing", "proton", "select",
        "selectors", "signal", "socket", "subprocess", "threading", "time", "uvloop", "zmq",
    }
)  # fmt: skip
COLUMNS = ("Room", "Promises", "Core", "May import", "Types of", "Begin with")
_CIMPORT = re.compile(r"\s*(?:from\s+(\S+)\s+c?import\s+(.*)|c?import\s+(\S+))")


@dataclass(frozen=True)
class Room:
    """One row of the table. The first of `parts` is the name by which other rows call it.

    A part is a package (its own modules, not those of packages below it), or one module.
    """

    parts: tuple[str, ...]
    promises: str
    #: Whether its modules are cores, but for those named.
    core: bool
    not_core: frozenset[str]
    may_import: frozenset[str]
    #: What it may import for type checkers besides.
    types_of: frozenset[str]
    begin: str

    @property
    def name(self) -> str:
        return self.parts[0]


@dataclass
class Tree:
    """The project's modules and what they import of one another."""

    #: Module to its files: Python or Cython, and the declarations beside it.
    files: dict[str, list[Path]] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    #: (importing, imported): whether an import of it runs, not only for type checkers.
    imports: dict[tuple[str, str], bool] = field(default_factory=dict)
    #: Module to what it imports from outside the project, top names.
    outside: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def package_of(self, module: str) -> str:
        return module if module in self.packages else module.rpartition(".")[0]


def names_in(text: str) -> list[str]:
    """Return the texts between backquotes."""
    return re.findall(r"`([^`]+)`", text)


def read_table(text: str) -> list[Room]:
    """The rooms of the page's one table. Raises `ValueError` where it has other columns."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ValueError(f"the table of rooms has the columns {', '.join(COLUMNS)}")
    rooms = []
    for parts, promises, core, may_import, types_of, begin in rows[2:]:
        rooms.append(
            Room(
                parts=tuple(map(full_name, names_in(parts))),
                promises=promises,
                core=not core.startswith("no"),
                not_core=frozenset(names_in(core)),
                may_import=frozenset(map(full_name, names_in(may_import))),
                types_of=frozenset(map(full_name, names_in(types_of))),
                begin=names_in(begin)[0],
            )
        )
    return rooms


def full_name(name: str) -> str:
    """Of a room: the table leaves out what all names begin with."""
    return name if name == "feedhandler" else f"feedhandler.{name}"


def read_tree(checkout: Path) -> Tree:
    """All modules below the four folders, links not followed."""
    tree = Tree()
    for folder in (*LINKED, "feedhandler"):
        for path in sorted((checkout / folder).rglob("*")):
            parts = path.relative_to(checkout).with_suffix("").parts
            linked = folder == "feedhandler" and parts[1] in LINKED
            if path.suffix not in (".py", ".pyx", ".pxd") or linked:
                continue
            name = ".".join(parts if folder == "feedhandler" else ("feedhandler", *parts))
            if parts[-1] == "__init__":
                name = name.rpartition(".")[0]
                tree.packages.add(name)
            tree.files.setdefault(name, []).append(path)
    for module, paths in tree.files.items():
        for path in paths:
            for name, runs in imports_of(path):
                _add(tree, module, name, runs)
    return tree


def _add(tree: Tree, module: str, name: str, runs: bool) -> None:
    if name.split(".")[0] != "feedhandler":
        tree.outside[module].add(name.split(".")[0])
        return
    while name not in tree.files:
        name = name.rpartition(".")[0]
    # Of a package's parent nothing is taken: it stands in front of every name.
    if name not in ("feedhandler", module):
        tree.imports[module, name] = tree.imports.get((module, name), False) or runs


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Full names of what a file imports, wherever in it, and whether that runs."""
    if path.suffix == ".py":
        yield from _python_imports(tree_of(path), True)
        return
    for line in path.read_text().splitlines():
        if match := _CIMPORT.match(line):
            module, names, alone = match.groups()
            taken = re.sub(r"[()#].*", "", names or "").split(",")
            for each in (
                [alone] if alone else [f"{module}.{n.split()[0]}" for n in taken if n.strip()]
            ):
                yield each, True


def _python_imports(tree: ast.AST, runs: bool) -> Iterator[tuple[str, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, runs) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are by full name"
            module = str(node.module).removeprefix("cython.cimports.")
            yield from ((f"{module}.{alias.name}", runs) for alias in node.names)
        elif isinstance(node, ast.If) and _for_types(node.test):
            yield from _python_imports(ast.Module(node.body, []), False)
            yield from _python_imports(ast.Module(node.orelse, []), runs)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _python_imports(node, runs)


def _for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def room_of(tree: Tree, rooms: Iterable[Room], module: str) -> Room | None:
    """The room that a module is in: the row that names it, else the one that names its package."""
    for name in (
        f"{module}.__init__" if module in tree.packages else module,
        tree.package_of(module),
    ):
        for room in rooms:
            if name in room.parts:
                return room
    return None


def outside_the_matrix(tree: Tree, rooms: list[Room]) -> list[str]:
    """Each import that the table does not allow."""
    found = []
    for (module, imported), runs in sorted(tree.imports.items()):
        here, there = room_of(tree, rooms, module), room_of(tree, rooms, imported)
        if here is None or there is None or here is there:
            continue
        allowed = here.may_import if runs else here.may_import | here.types_of
        if there.name not in allowed:
            found.append(f"{module} imports {imported}{'' if runs else ' (types)'}")
    return found


def not_made_use_of(tree: Tree, rooms: list[Room]) -> list[str]:
    """Each permission of the table that no import needs."""
    used = set()
    for (module, imported), runs in tree.imports.items():
        here, there = room_of(tree, rooms, module), room_of(tree, rooms, imported)
        if here is not None and there is not None:
            used.add((here.name, there.name, runs))
    return [
        f"{room.name}: {name}{'' if runs else ' (types)'}"
        for room in rooms
        for names, runs in ((room.may_import, True), (room.types_of, False))
        for name in sorted(names)
        if (room.name, name, runs) not in used
    ]


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of more than one node in which each leads to each (Tarjan), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return sorted(found)


def circles_of_rooms(tree: Tree, rooms: list[Room]) -> list[list[str]]:
    """Rooms that import one another, over however many others."""
    edges: dict[str, set[str]] = defaultdict(set)
    for (module, imported), runs in tree.imports.items():
        here, there = room_of(tree, rooms, module), room_of(tree, rooms, imported)
        if runs and here is not None and there is not None and here is not there:
            edges[here.name].add(there.name)
    return circles(edges)


def circles_of_modules(tree: Tree) -> list[list[str]]:
    """Modules that import one another."""
    edges: dict[str, set[str]] = defaultdict(set)
    for (module, imported), runs in tree.imports.items():
        if runs:
            edges[module].add(imported)
    return circles(edges)


def cores(tree: Tree, rooms: list[Room]) -> list[str]:
    """Every module that is fed with bytes and with the time, and does no I/O."""
    found = []
    for module in sorted(tree.files):
        room = room_of(tree, rooms, module)
        if room is not None and room.core and module.rpartition(".")[2] not in room.not_core:
            found.append(module)
    return found


def worldly(tree: Tree, modules: Iterable[str]) -> list[str]:
    """Return a line for each of these modules that imports the world outside, and what of it."""
    return [
        f"{module} imports {', '.join(sorted(taken))}"
        for module in modules
        if (taken := tree.outside[module] & WORLD)
    ]
