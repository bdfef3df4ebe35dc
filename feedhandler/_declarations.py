"""Declarations of compiled modules: for Cython (`.pxd`) and for type checkers (`.pyi`).

Everything about a compiled module stands in its `.py`, in Cython's pure-Python mode; `setup.py`
writes these two from it, for neither Cython's other modules nor type checkers read the `.py`.

* An extension type (`@cython.cclass`) has the C types of its attributes as annotations of the
  class. An attribute is C's alone, unless its annotation is `Public[...]` or `Readonly[...]`
  (`feedhandler.codecs.visibility`).
* A function whose return annotation is `cython.int`, `bint`, `Py_ssize_t` or `double` is a C
  function, which Python may call, too, unless its name begins with an underscore. Another is one by
  `@cython.ccall` or `@cython.cfunc`, as is one without the GIL.
* Functions of the module that are inlined, or whose names begin with an underscore, are not
  declared: they stay the module's own.
* An annotation that names no C type, builtin type or extension type means a Python object. Where
  the first line of a module says `annotation_typing=False`, annotations of functions are Python's
  alone, and C types stand in `@cython.locals` and `@cython.returns`.
* Type checkers see the Python types: of an annotation in `__init__` (`self.name: T = ...`), which
  says more than the C type does, or those that C types are converted to.

The stub of a `.pyx`, which Python's parser does not read, and its `.pxd` are written by hand.
Standard library only: `setup.py` runs this file by itself.
"""

import ast
import builtins
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

#: The first line of what is written, by which `make clean` finds it.
WRITTEN = "# Written by setup.py from the .py."
#: `cython.`'s names of C types that are not their names in C.
_C_NAMES = {
    "uchar": "unsigned char",
    "schar": "signed char",
    "ushort": "unsigned short",
    "uint": "unsigned int",
    "ulong": "unsigned long",
    "longlong": "long long",
    "ulonglong": "unsigned long long",
}
#: C types whose functions return -1 where they raise, unless they say otherwise.
_NUMBERS = frozenset(
    {*_C_NAMES.values(), "bint", "char", "double", "float", "int", "long", "short", "size_t"}
    | {"Py_ssize_t"}
)
#: Those of functions that need no decorator. Cython writes the -1 of a longer type with its suffix
#: twice.
_PLAIN = frozenset({"Py_ssize_t", "bint", "double", "int"})
_BUILTINS = frozenset({"bytearray", "bytes", "dict", "frozenset", "list", "set", "str", "tuple"})
_VISIBILITIES = {"Public": "public ", "Readonly": "readonly "}
_CIMPORT = "cython.cimports."


def _is_cython(node: ast.expr, name: str) -> bool:
    """Check whether a node is `cython.<name>`, called or not."""
    node = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(node) == f"cython.{name}"


def decorator(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str
) -> ast.expr | None:
    """Return the decorator `cython.<name>` of a function or class."""
    return next((each for each in node.decorator_list if _is_cython(each, name)), None)


def _argument(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """Return the first argument of a function's decorator `cython.<name>(...)`."""
    call = decorator(node, name)
    return call.args[0] if isinstance(call, ast.Call) and call.args else None


def _keywords(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> dict[str, ast.expr]:
    """Return the named arguments of a function's decorator `cython.<name>(...)`."""
    call = decorator(node, name)
    found = call.keywords if isinstance(call, ast.Call) else []
    return {each.arg: each.value for each in found if each.arg}


def unquoted(node: ast.expr) -> ast.expr:
    """Return the expression that a quoted annotation is."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ast.parse(node.value, mode="eval").body
    return node


def c_function(node: ast.FunctionDef) -> str:
    """Return how Cython declares a function: "cpdef" where Python may call it, else "cdef".

    "" is a function of Python.
    """
    if decorator(node, "ccall"):
        return "cpdef"
    if decorator(node, "cfunc"):
        return "cdef"
    returns = _argument(node, "returns") or node.returns
    name = ast.unparse(returns) if returns else ""
    if not name.startswith("cython."):
        return ""
    if name.removeprefix("cython.") not in _PLAIN:
        raise ValueError(f"{node.name} returns {name}: it needs cython.ccall or cython.cfunc")
    return "cdef" if node.name.startswith("_") else "cpdef"


def extension_types(source: str) -> set[str]:
    """Return the names of a `.py`'s extension types."""
    body = ast.parse(source).body
    return {
        node.name for node in body if isinstance(node, ast.ClassDef) and decorator(node, "cclass")
    }


def imports(body: Iterable[ast.stmt]) -> dict[str, str]:
    """Return the module of each name that is imported, also under conditions."""
    found: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {name.asname or name.name: node.module for name in node.names}
        elif isinstance(node, ast.If):
            found |= imports(node.body)
    return found


class Declarations:
    """The `.pxd` of one module.

    `types` has the extension types of every compiled module, by its full name; `name` is the
    module's own.
    """

    def __init__(self, name: str, source: str, types: Mapping[str, set[str]]) -> None:
        self._own = types.get(name, set())
        self._types = types
        body = ast.parse(source).body
        self._from = imports(body)
        self._used: dict[str, set[str]] = {}
        self._structs = {
            node.targets[0].id
            for node in body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and _is_cython(node.value, "struct")
        }
        self._annotations_are_c = "annotation_typing=False" not in source.partition("\n")[0]
        self._lines: list[str] = []
        for node in body:
            self._statement(node)

    def text(self) -> str:
        """Return the text of the `.pxd`; empty where there is nothing to declare."""
        if not self._lines:
            return ""
        cimports = [
            f"from {module} cimport {', '.join(sorted(names))}"
            for module, names in sorted(self._used.items())
        ]
        return "\n".join([WRITTEN, *cimports, *self._lines]) + "\n"

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef() if decorator(node, "cclass"):
                self._class(node)
            case ast.FunctionDef(name=name):
                # Also what stays the module's own needs the types that it names.
                lines = list(self._function(node))
                if not (name[0] == "_" or decorator(node, "inline")):
                    self._lines += lines
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if (
                name in self._structs
            ):
                self._lines.append(f"\ncdef struct {name}:")
                for each in call.keywords:
                    assert each.arg
                    kind, bounds = self._variable(each.value)
                    self._lines.append(f"    {kind} {each.arg}{bounds}")

    def _class(self, node: ast.ClassDef) -> None:
        bases = [self._c_type(base) for base in node.bases]
        self._lines.append(f"\ncdef class {node.name}{f'({bases[0]})' if bases else ''}:")
        begin = len(self._lines)
        attributes = [
            self._attribute(each.annotation, each.target.id)
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        # In their order, which is that in memory; a line for neighbours of one type, as a name that
        # is also a word of C (`short`) cannot follow a type alone.
        for kind, same in groupby(attributes, key=itemgetter(0)):
            names = [name for _, name in same]
            arrays = any(name.endswith("]") for name in names)
            for line in names if arrays else [", ".join(names)]:
                self._lines.append(f"    cdef {kind} {line}")
        for each in node.body:
            if isinstance(each, ast.FunctionDef):
                self._lines += [f"    {line}" for line in self._function(each)]
        if len(self._lines) == begin:
            self._lines.append("    pass")

    def _attribute(self, annotation: ast.expr, name: str) -> tuple[str, str]:
        """Return an attribute's visibility and C type, and its name with a C array's bounds."""
        seen, inner = visibility(annotation)
        kind, bounds = self._variable(inner)
        return seen + kind, name + bounds

    def _variable(self, annotation: ast.expr) -> tuple[str, str]:
        """Return the C type of a variable and a C array's bounds, which stand behind its name."""
        bounds, annotation = "", unquoted(annotation)
        while isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Constant):
            bounds = f"[{ast.unparse(annotation.slice)}]{bounds}"
            annotation = annotation.value
        return self._c_type(annotation), bounds

    def _function(self, node: ast.FunctionDef) -> Iterator[str]:
        """Yield the declaration of a C function; nothing where it is Python's."""
        kind = c_function(node)
        if not kind:
            return
        returning = _argument(node, "returns") or self._annotated(node.returns)
        typed = _keywords(node, "locals")
        arguments = node.args.args
        defaults = len(arguments) - len(node.args.defaults)
        parameters = [
            self._parameter(each, typed.get(each.arg)) + ("=*" if index >= defaults else "")
            for index, each in enumerate(arguments)
        ]
        returns = self._c_type(returning) if returning else "object"
        yield f"{kind} {returns} {node.name}({', '.join(parameters)}){_raises(node, returns)}"

    def _parameter(self, node: ast.arg, typed: ast.expr | None) -> str:
        annotation = typed or self._annotated(node.annotation)
        return f"{self._c_type(annotation)} {node.arg}" if annotation else node.arg

    def _annotated(self, annotation: ast.expr | None) -> ast.expr | None:
        """Return a function's annotation, unless the module's are Python's alone."""
        return annotation if self._annotations_are_c else None

    def _c_type(self, node: ast.expr) -> str:
        """Translate an annotation; "object" where it names no type that C knows."""
        node = unquoted(node)
        if isinstance(node, ast.BinOp) and ast.unparse(node.right) == "None":
            node = node.left
        text = ast.unparse(node)
        if text.startswith("cython."):
            return self._named(node)
        plain = text.partition("[")[0]
        if plain in _BUILTINS:
            of = self._c_type(node.slice) if isinstance(node, ast.Subscript) else "object"
            return plain if of == "object" or of in _BUILTINS else f"{plain}[{of}]"
        if text in self._own or text in self._structs:
            return text
        module = self._from.get(text, "")
        name = module.removeprefix(_CIMPORT)
        # What is no module of Python and is imported in C is a type, or would be no annotation.
        if text in self._types.get(name, {text} if module != name else ()):
            self._used.setdefault(name, set()).add(text)
            return text
        return "object"

    def _named(self, node: ast.expr) -> str:
        """Translate one of `cython.`'s types: numbers, constants, pointers and memory views."""
        if isinstance(node, ast.Subscript):
            outer = ast.unparse(node.value)
            if outer == "cython.const":
                return f"const {self._c_type(node.slice)}"
            if outer == "cython.pointer":
                return f"{self._c_type(node.slice)} *"
            axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return f"{self._c_type(node.value)}[{', '.join(map(ast.unparse, axes))}]"
        name = ast.unparse(node).removeprefix("cython.")
        const = ""
        pointer = " *" if name.startswith("p_") else ""
        name = name.removeprefix("p_")
        if name.startswith("const_"):
            const, name = "const ", name.removeprefix("const_")
        return f"{const}{_C_NAMES.get(name, name)}{pointer}"


def _raises(node: ast.FunctionDef, returns: str) -> str:
    """Return how a C function reports an exception, and whether it needs the GIL."""
    nogil = " nogil" if decorator(node, "nogil") else ""
    if not decorator(node, "exceptval"):
        return f" except? -1{nogil}" if returns in _NUMBERS else nogil
    check = _keywords(node, "exceptval").get("check")
    checked = check is None or ast.unparse(check) == "True"
    value = _argument(node, "exceptval")
    if value is None:
        return f" {'except *' if checked else 'noexcept'}{nogil}"
    return f" except{'?' if checked else ''} {ast.unparse(value)}{nogil}"


def visibility(annotation: ast.expr) -> tuple[str, ast.expr]:
    """Split an attribute's annotation: how Python sees it ("" if not at all), and its type."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        seen = _VISIBILITIES.get(annotation.value.id)
        if seen is not None:
            return seen, annotation.slice
    return "", annotation


def declarations(name: str, source: str, types: Mapping[str, set[str]]) -> str:
    """Return the text of the `.pxd` of module `name`; empty where there is nothing to declare."""
    return Declarations(name, source, types).text()


def all_types(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the extension types of every compiled module, of a `.pyx` by its `.pxd`."""
    found = {}
    for name, path in modules.items():
        if path.suffix == ".py":
            found[name] = extension_types(path.read_text())
        else:
            declared = path.with_suffix(".pxd")
            text = declared.read_text() if declared.exists() else ""
            found[name] = set(re.findall(r"^cdef class (\w+)", text, re.M))
    return found


#: `cython.`'s names of C types that are no whole numbers, to Python's types.
_PYTHON_NAMES = {"bint": "bool", "double": "float", "float": "float", "void": "None"}


def python_type(node: ast.expr, parameter: bool = False) -> str:
    """Translate an annotation to Python's types; "Any" where it says nothing to them.

    A memory view is any buffer as a parameter, else a memoryview.
    """
    node = unquoted(node)
    text = ast.unparse(node)
    if not text.startswith("cython."):
        return "Any" if text == "object" else text
    if isinstance(node, ast.Subscript):
        if _is_cython(node.value, "pointer"):
            return "Any"
        return "Buffer" if parameter else "memoryview"
    name = text.removeprefix("cython.")
    return "Any" if name.startswith("p_") else _PYTHON_NAMES.get(name, "int")


def _is_cimport(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and str(node.module).startswith(_CIMPORT)


def _of_python(decorators: Iterable[ast.expr]) -> list[str]:
    """Return the decorators that are not Cython's."""
    texts = [ast.unparse(each) for each in decorators]
    return [f"@{text}" for text in texts if not text.startswith("cython.")]


class Stub:
    """The `.pyi` of one module, written line by line."""

    def __init__(self, source: str) -> None:
        self._lines: list[str] = []
        body = ast.parse(source).body
        for node in body:
            self._statement(node, "")
        self._cimports = [node for node in body if _is_cimport(node)]

    def text(self) -> str:
        """Return the text of the `.pyi`."""
        first = [
            WRITTEN,
            "import builtins",
            "from typing import Any",
            "from typing_extensions import Buffer",
        ]
        cimports = [text for node in self._cimports if (text := self._used(node))]
        return "\n".join([*first, *cimports, *self._lines]) + "\n"

    def _used(self, node: ast.stmt) -> str:
        """Return the import of those C names that the stub uses; "" where there are none.

        Functions that only C sees are not in the other module's stub, so they must not be imported.
        """
        assert isinstance(node, ast.ImportFrom)
        words = set(re.findall(r"\w+", "\n".join(self._lines)))
        names = [name.name for name in node.names if (name.asname or name.name) in words]
        module = str(node.module).removeprefix(_CIMPORT)
        return f"from {module} import {', '.join(names)}" if names else ""

    def _statement(self, node: ast.stmt, indent: str) -> None:
        match node:
            case ast.ImportFrom() | ast.Import():
                text = ast.unparse(node)
                if text != "import cython" and not _is_cimport(node):
                    self._lines.append(text)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for each in node.body:
                    self._statement(each, indent)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, indent)
            case ast.ClassDef():
                self._class(node)
            case ast.AnnAssign(target=ast.Name(id=name)):
                default = " = ..." if indent and node.value is not None else ""
                self._lines.append(f"{indent}{name}: {python_type(node.annotation)}{default}")
            case ast.Assign(targets=[ast.Name(id=name)]) if indent:
                if not name.startswith("__"):
                    self._lines.append(indent + ast.unparse(node))
            case ast.Assign():
                self._constant(node)

    def _constant(self, node: ast.Assign) -> None:
        """Write a constant of the module; nothing for a C variable, which Python does not see."""
        value = node.value
        several = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(ast.unparse(each).startswith("cython.") for each in several):
            return
        names = [each for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
        if isinstance(value, ast.Subscript | ast.BinOp) and ast.unparse(value)[:1].isalpha():
            self._lines.append(ast.unparse(node))  # a type alias, or a sum of named constants
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
        self._lines += [f"{name.id}: {kind}" for name in names]

    def _class(self, node: ast.ClassDef) -> None:
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        self._lines += [*_of_python(node.decorator_list), f"class {node.name}{bases}:"]
        attributes = _attributes(node)
        begin = len(self._lines)
        self._lines += [f"    {name}: {kind}" for name, kind in attributes.items()]
        for each in node.body:
            if not (isinstance(each, ast.AnnAssign) and decorator(node, "cclass")):
                self._statement(each, "    ")
        self._lines.append("    ...")
        # Within the class such a name means the attribute.
        for name in attributes.keys() & vars(builtins).keys():
            used = re.compile(rf"(?<=[:>|] ){name}\b|(?<=\[){name}\b|(?<=, ){name}\b(?!:)")
            self._lines[begin:] = [used.sub(f"builtins.{name}", x) for x in self._lines[begin:]]

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, indent: str) -> None:
        if isinstance(node, ast.FunctionDef) and c_function(node) == "cdef":
            return
        typed = _keywords(node, "locals")
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if each.arg not in ("self", "cls"):
                kind = each.annotation or typed.get(each.arg) or ast.Name("object")
                each.annotation = ast.Name(python_type(kind, parameter=True))
        arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
        arguments.kw_defaults = [default and ast.Constant(...) for default in arguments.kw_defaults]
        returning = node.returns or _argument(node, "returns") or ast.Name("object")
        returns = "None" if node.name == "__init__" else python_type(returning)
        start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        self._lines += [f"{indent}{text}" for text in _of_python(node.decorator_list)]
        self._lines.append(
            f"{indent}{start} {node.name}({ast.unparse(arguments)}) -> {returns}: ..."
        )


def _attributes(node: ast.ClassDef) -> dict[str, str]:
    """Return the Python types of the attributes that Python sees."""
    if not decorator(node, "cclass"):
        return _declared_in_init(node, keep_all=not node.decorator_list)
    precise = _declared_in_init(node, keep_all=False)
    found = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            seen, inner = visibility(each.annotation)
            if seen:
                found[each.target.id] = precise.get(each.target.id) or python_type(inner)
    return found


def _declared_in_init(node: ast.ClassDef, keep_all: bool) -> dict[str, str]:
    """Return the types of attributes annotated in `__init__`; with `keep_all` of all."""
    found: dict[str, str] = {}
    for method in node.body:
        if not isinstance(method, ast.FunctionDef) or method.name != "__init__":
            continue
        for each in ast.walk(method):
            if isinstance(each, ast.AnnAssign):
                targets, kind = ast.walk(each.target), python_type(each.annotation)
            elif isinstance(each, ast.Assign) and keep_all:
                targets, kind = (part for one in each.targets for part in ast.walk(one)), "Any"
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    found.setdefault(target.attr, kind)
    return found


def stub(source: str) -> str:
    """Return the text of the `.pyi` of a module."""
    return Stub(source).text()


def write_declarations(package: Path, modules: Mapping[str, Path]) -> None:
    """Write `.pxd` and `.pyi` beside each `.py` of these modules (full name to source file).

    Raises ValueError for a C function that lacks its decorator.

    What is below `package` and was written for a module that is compiled no more is removed: it
    would be preferred to the module.
    """
    types = all_types(modules)
    written = set()
    for name, path in modules.items():
        if path.suffix == ".py":
            source = path.read_text()
            try:
                declared = declarations(name, source, types)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            write_if_new(path.with_suffix(".pxd"), declared)
            # Without C types the `.py` itself says more than a stub would.
            write_if_new(path.with_suffix(".pyi"), stub(source) if declared else "")
            written |= {path.with_suffix(suffix).resolve() for suffix in (".pxd", ".pyi")}
    for folder, _, names in os.walk(package, followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith((".pxd", ".pyi"))):
            if path.resolve() not in written and path.read_text().startswith(WRITTEN):
                path.unlink()


def write_if_new(path: Path, text: str) -> None:
    """Write a file at once, for another build may be reading it; no text: no file.

    A file that says the same already is left alone: Cython translates anew what is younger.
    """
    if not text:
        path.unlink(missing_ok=True)
    elif not path.exists() or path.read_text() != text:
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(text)
        new.replace(path)
