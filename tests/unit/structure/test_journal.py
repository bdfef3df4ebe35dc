"""The wall around the journal: nobody takes the parts of a queue's engine.

An engine is what is called `engine`, or was assigned from one, made by `Engine` or annotated so.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.support import rooms as checker
from tests.support.checkout import CHECKOUT, tree_of

JOURNAL = "feedhandler.journal"
ENGINE = f"{JOURNAL}.engine"
SCHEDULERS = {f"{JOURNAL}.commit_scheduler", f"{JOURNAL}.blocking"}
#: What an engine consists of; none of it is to be had under a public name again.
PARTS = frozenset({"clock", "delivery", "files", "lock", "pending", "store"})
#: The engine's interface for the two schedulers.
FOR_SCHEDULERS = frozenset({"add", "begin", "changes_now", "finish", "scheduling"})


def name_of(node: ast.AST) -> str:
    """The last name of `a`, `a.b` or `a.b.c`; "" for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def pairs_of(target: ast.AST, value: ast.AST | None) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Each target of an assignment with its value."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    elif value is not None:
        yield target, value


def engines_of(tree: ast.AST) -> set[str]:
    """The names under which a module has an engine."""
    names, pairs = {"engine", "_engine"}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs += [each for target in node.targets for each in pairs_of(target, node.value)]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            pairs += pairs_of(node.target, node.value)
        annotation = getattr(node, "annotation", None)
        if annotation is not None and ast.unparse(annotation).strip("'\"") == "Engine":
            names.add(node.arg if isinstance(node, ast.arg) else name_of(node.target))  # type: ignore
    before = 0
    while len(names) > before:
        before = len(names)
        for target, value in pairs:
            made = isinstance(value, ast.Call) and name_of(value.func) == "Engine"
            if made or name_of(value) in names:
                names.add(name_of(target))
    return names - {""}


def attributes_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and name of every attribute that a module uses of an engine."""
    engines = engines_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and name_of(node.value) in engines:
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and name_of(node.func) in ("getattr", "setattr"):
            what, named = node.args[:2]
            if name_of(what) in engines and isinstance(named, ast.Constant):
                yield node.lineno, str(named.value)


def is_for(module: str, name: str) -> bool:
    """Whether this module may use this attribute of an engine."""
    if module == ENGINE:
        return True
    if name in FOR_SCHEDULERS:
        return module in SCHEDULERS
    return not name.startswith("_") and name not in PARTS


def uses(tree: ast.AST, module: str) -> list[str]:
    """What a module uses of an engine and may not."""
    return [f"{line}: {name}" for line, name in attributes_of(tree) if not is_for(module, name)]


def test_nobody_takes_the_parts_of_a_queues_engine() -> None:
    found = {}
    for module, paths in checker.read_tree(CHECKOUT).files.items():
        for path in paths:
            # Nobody has an engine who does not name one.
            if path.suffix != ".py" or "engine" not in path.read_text().lower():
                continue
            if wrong := uses(tree_of(path), module):
                found[str(path.relative_to(CHECKOUT))] = wrong
    assert found == {}


def public_names() -> set[str]:
    """Methods and properties of an engine."""
    tree = tree_of(CHECKOUT / "feedhandler" / "journal" / "engine.py")
    (body,) = (n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Engine")
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return {name for name in names if not name.startswith("_")}


def test_the_interface_of_the_schedulers_is_there_and_made_use_of() -> None:
    assert public_names() >= FOR_SCHEDULERS
    assert not public_names() & PARTS
    used: set[str] = set()
    for module in SCHEDULERS:
        tree = tree_of(CHECKOUT / (module.replace(".", "/") + ".py"))
        used |= {name for _, name in attributes_of(tree)}
    assert used >= FOR_SCHEDULERS


def test_the_journals_page_names_the_whole_interface() -> None:
    page = (CHECKOUT / "feedhandler" / "journal" / "README.md").read_text()
    section = page.partition("## The interface")[2].partition("## Files")[0]
    named = {name.removesuffix("()") for name in checker.names_in(section)}
    assert public_names() - named == set()


FORBIDDEN = {
    "a part": "def f(queue):\n    return queue.engine.store.next_id",
    "a private name": "def f(queue):\n    return queue.engine._store",
    "of a local engine": "def f(queue):\n    it = queue.engine\n    return it._lock",
    "of one of several": "def f(queue):\n    name, it = 'x', queue.engine\n    return it.delivery",
    "of an engine of its own": "class A:\n    def __init__(self):\n        self.disk = Engine()\n"
    "    def f(self):\n        return self.disk.files",
    "of an argument": "def f(it: 'Engine') -> None:\n    it.delivery.take(1)",
    "by its name": "def f(queue):\n    return getattr(queue.engine, '_store')",
    "the schedulers' interface": "def f(queue):\n    queue.engine.scheduling()",
}


@pytest.mark.parametrize("source", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_part_that_is_taken_is_found(source: str) -> None:
    tree = ast.parse(source)
    assert len(uses(tree, "feedhandler.amqp.durable.queue")) == 1
    assert uses(tree, ENGINE) == []


def test_public_methods_are_everybodys() -> None:
    source = "def f(queue):\n    engine = queue.engine\n    return engine.next_id, engine.read(1)"
    assert uses(ast.parse(source), "feedhandler.amqp.durable.queue") == []
