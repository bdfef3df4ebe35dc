"""Stubs (`.pyi`) of compiled modules, made from `.py` and `.pxd` so that nothing is declared twice.

C types (of attributes of extension types, of parameters of functions that C calls) are declared in
the `.pxd`; names, defaults, docstrings and everything that only Python sees in the `.py`. Type
checkers read neither the `.pxd` nor the binary: `setup.py` writes the stubs that they read beside
the modules, for the wheel and for mypy in the checkout. A Python annotation in the `.py` (of a
parameter, or of `self.name: T = ...` in `__init__`) overrides the C type, which says less.

The stub of a `.pyx`, which Python's parser does not read, is written by hand. Standard library
only: `setup.py` runs this file by itself.
"""

import ast
import builtins
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: The first line of a generated stub, by which `make clean` finds it.
_WRITTEN = "# Written by setup.py from the .py and the .pxd."
#: C types and `cython.`'s names for them, to Python's.
_NAMES = {
    **dict.fromkeys(("bint",), "bool"),
    **dict.fromkeys(("double", "float"), "float"),
    **dict.fromkeys(("void",), "None"),
    **dict.fromkeys(("object", "p_char", "p_uchar"), "Any"),
    **dict.fromkeys(("list", "dict", "set", "tuple", "frozenset", "str", "bytes", "bytearray"), ""),
}
_WHOLE = re.compile(
    r"^(unsigned |signed |const )*(char|short|int|long|long long|Py_ssize_t|size_t|Py_hash_t|"
    r"u?int(8|16|32|64)_t|uchar|uint|ulong|ulonglong|longlong|ushort|schar)$"
)
_GENERIC = re.compile(r"^(list|dict|set|tuple|frozenset)\[")
_FUNCTION = re.compile(
    r"^(c|cp)def\s+(?:inline\s+)?(?P<type>.*?)(?P<name>\w+)\((?P<of>.*)\)[^()]*$"
)
_CLASS = re.compile(r"^cdef class (\w+)(?:\((\w+)\))?:$")
_IMPORT = re.compile(r"^from (feedhandler[\w.]*) cimport (.+)$")


@dataclass
class CFunction:
    """A function's C signature, in Python's types; `seen`: callable from Python."""

    seen: bool
    returns: str
    parameters: dict[str, str]


@dataclass
class CScope:
    """The declarations of a `.pxd` for the module, or for one class.

    `visible` are the public and readonly attributes.
    """

    visible: dict[str, str] = field(default_factory=dict)
    functions: dict[str, CFunction] = field(default_factory=dict)


def python_type(c_type: str, parameter: bool = False) -> str:
    """Translate a C type to Python's: a view is any buffer as a parameter, else a memoryview."""
    c_type = c_type.strip()
    if _GENERIC.match(c_type):
        return c_type
    if c_type.endswith("]"):
        return "Buffer" if parameter else "memoryview"
    if c_type.endswith("*"):
        return "Any"
    if _WHOLE.match(c_type):
        return "int"
    return _NAMES.get(c_type, c_type) or c_type


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield a `.pxd`'s statements with their indentation, continued lines joined."""
    text = re.sub(r'""".*?"""', "", text, flags=re.S).replace("\\\n", " ")
    waiting, indent = "", 0
    for line in text.split("\n"):
        line = line.partition("#")[0].rstrip()
        if not waiting:
            indent = len(line) - len(line.lstrip())
        waiting = f"{waiting} {line.strip()}".strip()
        if waiting and waiting.count("(") == waiting.count(")"):
            yield indent, waiting
            waiting = ""


def read_pxd(text: str) -> tuple[dict[str, CScope], list[str]]:
    """Parse a `.pxd`: return its scopes and the imports of the types it uses.

    Scopes are by class name; "" is the module.
    """
    scopes, imports, current = {"": CScope()}, [], ""
    for indent, line in _statements(text):
        if found := _IMPORT.match(line):
            imports.append(f"from {found[1]} import {found[2]}")
        elif found := _CLASS.match(line):
            current = found[1]
            scopes[current] = CScope()
        elif not line.startswith(("cdef ", "cpdef ")):
            continue
        else:
            scope = scopes[current if indent else ""]
            if found := _FUNCTION.match(line):
                parameters = [each.split("=")[0].strip() for each in _split(found["of"])]
                named = (re.match(r"^(.*?)(\w+)$", parameter) for parameter in parameters)
                scope.functions[found["name"]] = CFunction(
                    line.startswith("cpdef"),
                    python_type(found["type"] or "object"),
                    {each[2]: python_type(each[1] or "object", True) for each in named if each},
                )
            elif found := re.match(r"^cdef (?:public|readonly) (.*?)(\w+(?:, *\w+)*)$", line):
                for name in re.split(r", *", found[2]):
                    scope.visible[name] = python_type(found[1])
    return scopes, imports


def _split(text: str) -> list[str]:
    """Split parameters at the commas that are not within brackets."""
    parts = re.split(r",(?![^\[]*\])", text)
    return [part for part in (each.strip() for each in parts) if part]


def _is_cython(node: ast.expr, name: str = "") -> bool:
    """Check whether a node is `cython.<name>`, called or not; any name if none is given."""
    node = node.func if isinstance(node, ast.Call) else node
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "cython"
        and name in ("", node.attr)
    )


def _annotation(node: ast.expr | None, parameter: bool = False) -> str:
    """Translate an annotation for the stub; "" where the C type says as much."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    text = ast.unparse(node)
    if "cython." in text:
        plain = text.replace("cython.", "")
        return (
            "Buffer" if "[" in plain and parameter else python_type(plain.split("[")[0], parameter)
        )
    return "" if text == "object" else text


def _is_cimport(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and str(node.module).startswith("cython.cimports.")


class _Stub:
    """The stub of one module, written line by line."""

    def __init__(self, source: str, pxd: str) -> None:
        self.scopes, imports = read_pxd(pxd)
        self.lines = [
            "import builtins",
            "from typing import Any",
            "from typing_extensions import Buffer",
            *dict.fromkeys(imports),
        ]
        body = ast.parse(source).body
        for node in body:
            self._statement(node, "")
        cimports = [node for node in body if _is_cimport(node)]
        self.lines[4:4] = [text for node in cimports if (text := self._used(node))]

    def _used(self, node: ast.stmt) -> str:
        """Return the import of those C names that the stub uses; "" where there are none.

        Functions that only C sees are not in the other module's stub, so they must not be imported.
        """
        assert isinstance(node, ast.ImportFrom)
        words = set(re.findall(r"\w+", "\n".join(self.lines)))
        names = [name.name for name in node.names if (name.asname or name.name) in words]
        module = str(node.module).removeprefix("cython.cimports.")
        return f"from {module} import {', '.join(names)}" if names else ""

    def _statement(self, node: ast.stmt, indent: str, scope: str = "") -> None:
        match node:
            case ast.ImportFrom() | ast.Import():
                self._import(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for each in node.body:
                    self._statement(each, indent, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, indent, scope)
            case ast.ClassDef():
                self._class(node)
            case ast.AnnAssign(target=ast.Name(id=name)):
                default = " = ..." if scope and node.value is not None else ""
                kind = _annotation(node.annotation) or "Any"
                self.lines.append(f"{indent}{name}: {kind}{default}")
            case ast.Assign(targets=[ast.Name(id=name)]) if scope:
                if not name.startswith("__"):
                    self.lines.append(indent + ast.unparse(node))
            case ast.Assign():
                self._constant(node)

    def _import(self, node: ast.ImportFrom | ast.Import) -> None:
        text = ast.unparse(node)
        if text != "import cython" and not _is_cimport(node):
            self.lines.append(text)

    def _constant(self, node: ast.Assign) -> None:
        value = node.value
        if _is_cython(value) or (isinstance(value, ast.Tuple) and any(map(_is_cython, value.elts))):
            return  # a C variable, which Python does not see
        names = [each for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
        if isinstance(value, ast.Subscript | ast.BinOp) and ast.unparse(value)[:1].isalpha():
            self.lines.append(ast.unparse(node))  # a type alias, or a sum of named constants
            return
        try:
            found = ast.literal_eval(value)
            kind = "Any" if isinstance(found, tuple | list | dict) else type(found).__name__
            if isinstance(node.targets[0], ast.Tuple) and isinstance(found, tuple):
                kind = type(found[0]).__name__
        except ValueError:
            kind = "int" if isinstance(value, ast.BinOp | ast.UnaryOp) else "Any"
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "range":
                kind = "int"
        self.lines += [f"{name.id}: {kind}" for name in names]

    def _class(self, node: ast.ClassDef) -> None:
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        decorators = [each for each in node.decorator_list if not _is_cython(each)]
        self.lines += [f"@{ast.unparse(decorator)}" for decorator in decorators]
        self.lines.append(f"class {node.name}{bases}:")
        attributes = dict(self.scopes.get(node.name, CScope()).visible)
        members = _declared_in_init(node, keep_all=node.name not in self.scopes and not decorators)
        attributes |= {name: kind for name, kind in members.items() if name in attributes or not
                       self.scopes.get(node.name)}  # fmt: skip
        begin = len(self.lines)
        self.lines += [f"    {name}: {kind}" for name, kind in attributes.items()]
        for each in node.body:
            self._statement(each, "    ", node.name)
        self.lines.append("    ...")
        # Within the class such a name means the attribute.
        for name in attributes.keys() & vars(builtins).keys():
            used = re.compile(rf"(?<=[:>|] ){name}\b|(?<=\[){name}\b|(?<=, ){name}\b(?!:)")
            self.lines[begin:] = [used.sub(f"builtins.{name}", x) for x in self.lines[begin:]]

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, indent: str, scope: str
    ) -> None:
        declared = self.scopes.get(scope, CScope()).functions.get(node.name)
        if any(_is_cython(each, "cfunc") for each in node.decorator_list):
            return
        if declared is not None and not declared.seen:
            return
        decorators = [each for each in node.decorator_list if not _is_cython(each)]
        self.lines += [f"{indent}@{ast.unparse(decorator)}" for decorator in decorators]
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if each.arg not in ("self", "cls"):
                known = declared.parameters.get(each.arg, "Any") if declared else "Any"
                each.annotation = ast.Name(_annotation(each.annotation, True) or known)
        arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
        arguments.kw_defaults = [default and ast.Constant(...) for default in arguments.kw_defaults]
        returns = _annotation(node.returns) or (declared.returns if declared else "Any")
        returns = "None" if node.name == "__init__" else returns
        start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        self.lines.append(
            f"{indent}{start} {node.name}({ast.unparse(arguments)}) -> {returns}: ..."
        )


def _declared_in_init(node: ast.ClassDef, keep_all: bool) -> dict[str, str]:
    """Return the types of attributes annotated in `__init__`; with `keep_all` of all."""
    found: dict[str, str] = {}
    for method in node.body:
        if not isinstance(method, ast.FunctionDef) or method.name != "__init__":
            continue
        for each in ast.walk(method):
            if isinstance(each, ast.AnnAssign):
                targets, kind = ast.walk(each.target), _annotation(each.annotation)
            elif isinstance(each, ast.Assign) and keep_all:
                targets, kind = (part for one in each.targets for part in ast.walk(one)), "Any"
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    found.setdefault(target.attr, kind)
    return found


def stub(source: str, pxd: str) -> str:
    """Return the text of the `.pyi` of a module with this `.py` and this `.pxd`."""
    lines = [_WRITTEN, *_Stub(source, pxd).lines]
    return "\n".join(lines) + "\n"


def write_stubs(package: Path, modules: Iterable[Path]) -> None:
    """Write the stub beside each module that has a `.pxd`, unless it is up to date.

    Generated stubs below `package` whose module has no `.pxd` any more are removed: type checkers
    would prefer them to the module.
    """
    written = set()
    for module in modules:
        declared, path = module.with_suffix(".pxd"), module.with_suffix(".pyi")
        if declared.exists():
            text = stub(module.read_text(), declared.read_text())
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
            written.add(path.resolve())
    for folder, _, _ in os.walk(package, followlinks=True):
        for path in Path(folder).glob("*.pyi"):
            if path.resolve() not in written and path.read_text().startswith(_WRITTEN):
                path.unlink()
