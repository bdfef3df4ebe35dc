"""Every import of the tree against the table of rooms; which modules are free of I/O and clocks."""

import ast
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from tests.support import rooms as checker
from tests.support.checkout import CHECKOUT, tree_of
from tests.support.rooms import Room, Tree

LINKS = {name: f"../{name}" for name in checker.LINKED}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return checker.read_tree(CHECKOUT)


@pytest.fixture(scope="module")
def rooms() -> list[Room]:
    return checker.read_table((CHECKOUT / "docs" / "rooms.md").read_text())


def test_every_module_is_in_a_room_and_every_part_of_a_room_is_there(
    tree: Tree, rooms: list[Room]
) -> None:
    assert not [m for m in tree.files if checker.room_of(tree, rooms, m) is None]
    parts = [part for room in rooms for part in room.parts]
    assert len(parts) == len(set(parts))
    assert not [p for p in parts if p.removesuffix(".__init__") not in tree.files]


def test_every_import_is_one_that_the_table_of_rooms_allows(tree: Tree, rooms: list[Room]) -> None:
    assert checker.outside_the_matrix(tree, rooms) == []


def test_the_table_of_rooms_allows_no_import_that_nothing_needs(
    tree: Tree, rooms: list[Room]
) -> None:
    assert checker.not_made_use_of(tree, rooms) == []


def test_no_circle_leads_through_rooms(tree: Tree, rooms: list[Room]) -> None:
    assert checker.circles_of_rooms(tree, rooms) == []


def test_rooms_stand_behind_those_that_they_import(rooms: list[Room]) -> None:
    order = [room.name for room in rooms]
    for room in rooms:
        assert not room.may_import & set(order[order.index(room.name) :]), room.name


@pytest.mark.parametrize("folder", ["support", "fuzz"])
def test_helpers_of_tests_and_fuzzers_need_no_bench(folder: str) -> None:
    """Benches import helpers of tests; a fuzzer runs from a copy that has no benches."""
    paths = list((CHECKOUT / "tests" / folder).rglob("*.py"))
    assert paths
    for path in paths:
        assert not [name for name, _ in checker.imports_of(path) if name.startswith("bench")], path


def test_no_circle_leads_through_modules(tree: Tree) -> None:
    assert checker.circles_of_modules(tree) == []


def test_each_room_says_what_it_promises_and_where_to_begin(tree: Tree, rooms: list[Room]) -> None:
    for room in rooms:
        assert room.promises, room.name
        begin = (CHECKOUT / room.begin).resolve()
        homes = [m for m, files in tree.files.items() if begin in [f.resolve() for f in files]]
        assert [checker.room_of(tree, rooms, m) for m in homes] == [room], room.begin


def test_cores_know_no_socket_loop_thread_or_clock(tree: Tree, rooms: list[Room]) -> None:
    assert checker.worldly(tree, checker.cores(tree, rooms)) == []


def test_what_is_called_no_core_needs_the_world(tree: Tree, rooms: list[Room]) -> None:
    """A name that is excepted and that has become free of I/O is a core again."""
    excepted = {
        module
        for module in tree.files.keys() - tree.packages
        if (room := checker.room_of(tree, rooms, module)) is not None
        and module.rpartition(".")[2] in room.not_core
    }
    assert len(excepted) == sum(len(room.not_core) for room in rooms)
    assert not [module for module in excepted if not checker.worldly(tree, [module])]


TABLE = """
| Room | Promises | Core | May import | Types of | Begin with |
|---|---|---|---|---|---|
| `low` | the ground | yes | | `high` | `feedhandler/low/a.py` |
| `high`, `single` | what stands on it | all but `b` | `low` | | `feedhandler/high/b.py` |
"""


def small_tree(checkout: Path, **changed: str) -> Tree:
    """Two rooms of a few modules; `low_a="import x"` gives a module its text."""
    sources = {
        "low/__init__": "",
        "low/a": "",
        "high/__init__": "",
        "high/b": "import socket",
        "high/c": "from feedhandler.low import a",
        "single": "",
        **{name.replace("_", "/"): text for name, text in changed.items()},
    }
    for name, text in sources.items():
        path = checkout / "feedhandler" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".pyx" if " cimport " in text else ".py").write_text(text)
    return checker.read_tree(checkout)


FORBIDDEN = {
    "at the top": "import feedhandler.high.b",
    "in a function": "def f():\n    from feedhandler.high import b",
    "in a branch": "try:\n    pass\nexcept OSError:\n    from feedhandler.high.b import thing",
    "of a single module": "from feedhandler.single import thing",
    "for the compiler": "from cython.cimports.feedhandler.high.b import thing",
    "in Cython": "from feedhandler.high.b cimport thing",
    "beside one for types": (
        "if TYPE_CHECKING:\n    import feedhandler.high.b\nelse:\n    import feedhandler.high.b"
    ),
}


@pytest.mark.parametrize("text", FORBIDDEN.values(), ids=FORBIDDEN)
def test_an_import_outside_the_matrix_is_found(text: str, tmp_path: Path) -> None:
    rooms = checker.read_table(TABLE)
    assert not checker.outside_the_matrix(small_tree(tmp_path), rooms)
    tree = small_tree(tmp_path, low_z=text)
    assert len(checker.outside_the_matrix(tree, rooms)) == 1
    assert checker.circles_of_rooms(tree, rooms) == [["feedhandler.high", "feedhandler.low"]]


def test_an_import_for_types_is_told_apart(tmp_path: Path) -> None:
    rooms = checker.read_table(TABLE)
    tree = small_tree(tmp_path, low_z="if TYPE_CHECKING:\n    from feedhandler.high import b")
    assert not checker.outside_the_matrix(tree, rooms)
    assert not checker.circles_of_rooms(tree, rooms)
    assert not checker.not_made_use_of(tree, rooms)
    tree = small_tree(tmp_path / "again", low_z="")
    assert checker.not_made_use_of(tree, rooms) == ["feedhandler.low: feedhandler.high (types)"]


def test_a_core_is_known_by_its_room(tmp_path: Path) -> None:
    rooms = checker.read_table(TABLE)
    tree = small_tree(tmp_path, low_new="def f():\n    import time")
    cores = checker.cores(tree, rooms)
    assert "feedhandler.high.b" not in cores
    assert checker.worldly(tree, cores) == ["feedhandler.low.new imports time"]


def test_circles_are_found_over_several_steps() -> None:
    edges = {"a": "b", "b": "c", "c": "ad", "d": "", "e": "f", "f": "e", "g": "a"}
    assert checker.circles(edges) == [["a", "b", "c"], ["e", "f"]]


def test_a_table_with_other_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="has the columns Room"):
        checker.read_table("| Room | Promises |")


def test_the_simulation_drives_the_core_that_ships_and_has_no_wiring_of_its_own() -> None:
    core = "GatewayCore"
    simulation = CHECKOUT / "tests" / "simulation"
    for path in (
        CHECKOUT / "feedhandler" / "gateway" / "process.py",
        simulation / "core_driver.py",
    ):
        assert core in {name.rpartition(".")[2] for name, _ in checker.imports_of(path)}, path
    # What recovery has others carry out, and the core by no other.
    wiring = {"open_stream", "close_stream", "withhold", "admit", "renumber", "next_sequence"}
    for path in simulation.glob("*.py"):
        for node in ast.walk(tree_of(path)):
            assert not isinstance(node, ast.FunctionDef) or node.name not in wiring, path
            made = node.func.id if _is_plain_call(node) else ""
            assert made not in ("RecoveryManager", "Fanout", "RequestClient"), path


def _is_plain_call(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@pytest.mark.parametrize(("link", "target"), LINKS.items())
def test_the_rooms_are_linked_below_feedhandler(link: str, target: str) -> None:
    path = CHECKOUT / "feedhandler" / link
    assert path.is_symlink()
    assert str(path.readlink()) == target
    assert (path / "__init__.py").exists()
