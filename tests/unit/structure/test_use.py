"""Every name of the product has a use besides tests: in the product, its benches or its pages."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.checkout import CHECKOUT, tree_of

PRODUCT = ("codecs", "retrans", "replay", "feedhandler")
#: Where else a use may stand.
USERS = (*PRODUCT, "bench", "docs", "examples", "setup.py")
TEXTS = {".py", ".pyx", ".pxi", ".c", ".h", ".md", ".toml", ".java", ".go", ".rs", ".js"}
#: Classes whose methods a library calls.
CALLED = {
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "Protocol",
    "DatagramProtocol",
}
ENUMERATIONS = {"Enum", "IntEnum", "StrEnum", "Counter"}
#: What Python, asyncio, ctypes or a library calls by its name.
BY_OTHERS = {"__hdr__", "create_module", "get_loop"}
#: Probes: what tests, and nobody else, look at or drive.
PROBES = {
    "SLOT": "an entry of a kernel map, whose size is compared with the C program's",
    "extra_bytes": "what a spill queue holds, against its bound",
    "knows_flags": "flags of packets, by the description",
    "run_test": "a program run in the kernel on one packet",
    "serve_tls": "a broker's listener, for tests of foreign clients",
    "tls_url": "its address",
}


def last_names(nodes: list[ast.expr]) -> set[str]:
    """The last names of base classes or decorators, however they are qualified."""
    return {ast.unparse(node).partition("(")[0].rpartition(".")[2] for node in nodes}


def defined(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Functions, classes, constants and attributes of classes, with their lines."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not last_names(node.decorator_list) & {"command", "callback"}:
                    yield node.name, node.lineno
            case ast.ClassDef():
                yield node.name, node.lineno
                bases = last_names(node.bases)
                if not bases & (CALLED | ENUMERATIONS):
                    yield from defined(node.body)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node.lineno


def is_known(name: str) -> bool:
    """Whether a name needs no use: Python's own, room between counters, or one of the tables."""
    special = name.startswith(("__", "padding_"))
    return special or name in BY_OTHERS or name in PROBES


def files_of(*names: str) -> list[Path]:
    """The texts in these folders, or of these names, each once: some folders are links."""
    roots = [CHECKOUT / name for name in names]
    found = {path.resolve() for root in roots for path in (root, *root.rglob("*.*"))}
    return sorted(path for path in found if path.suffix in TEXTS and path.is_file())


@functools.cache
def words_of(*names: str) -> Counter[str]:
    """How often each word stands in these files."""
    found: Counter[str] = Counter()
    for path in files_of(*names):
        found.update(re.findall(r"\w+", path.read_text(errors="replace")))
    return found


def test_every_name_of_the_product_is_used_outside_the_tests() -> None:
    words = words_of(*USERS)
    unused = [
        f"{path.relative_to(CHECKOUT)}:{line} {name}"
        for path in files_of(*PRODUCT)
        if path.suffix == ".py"
        for name, line in defined(tree_of(path).body)
        if words[name] == 1 and not is_known(name)
    ]
    assert not unused, "remove them, or say in PROBES what they are for"


def test_every_probe_is_there_and_used_by_tests_alone() -> None:
    words, tested = words_of(*USERS), words_of("tests")
    assert {name: words[name] for name in PROBES} == dict.fromkeys(PROBES, 1)
    assert not [name for name in PROBES if not tested[name]]
