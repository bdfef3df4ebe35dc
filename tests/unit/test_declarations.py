"""Declarations out of a compiled module's `.py`: what Cython and type checkers see of it."""

from pathlib import Path

import pytest

from feedhandler import _declarations

OTHER = """
import cython

@cython.cclass
class Part:
    size: cython.int
"""
PY = '''
"""A module."""
from collections import deque
from typing import TYPE_CHECKING

import cython
from cython.cimports.feedhandler.header import stamp_t
from cython.cimports.feedhandler.other import Part, c_only_too
from feedhandler.codecs.visibility import Public, Readonly

if TYPE_CHECKING:
    from feedhandler.further import Further

LIMIT = 1 << 20
NAMES = ("a", "b")
_LIMIT = cython.declare(cython.int, LIMIT)
Asked = cython.struct(file=cython.int, data=cython.p_char)

@cython.final
@cython.cclass
class Whole:
    """A class."""

    first: Readonly[cython.ulonglong]
    short: Readonly[cython.ulonglong]
    open: Public[cython.bint]
    data: Readonly[cython.uchar[::1]]
    table: cython.const_uint[:, ::1]
    part: Readonly[Part]
    behind: "Whole"
    queue: Readonly[object]
    ring: "Asked[4]"
    stamps: stamp_t[2][3]
    hidden: cython.int

    def __init__(self, part: Part, limit: int = LIMIT) -> None:
        self.queue: deque[bytes] = deque()
        self.hidden = 1

    @cython.ccall
    @cython.nogil
    @cython.exceptval(-2, check=False)
    def store(
        self, part: Part, data: cython.const_uchar[::1], at: cython.ulonglong = 0
    ) -> cython.Py_ssize_t:
        return 0

    def pump(self, bytes_max: cython.int) -> cython.bint:
        return True

    def _spin(self) -> cython.int:
        return 0

    @cython.cfunc
    def _hidden(self, further: "Further | None", other):
        return 0

    @cython.ccall
    def parts(self) -> list[Part]:
        return []

    @property
    def text(self) -> str:
        return ""

@cython.ccall
@cython.exceptval(check=False)
def share(of: cython.longlong, name: bytes) -> cython.double:
    return 0.5

@cython.cfunc
@cython.inline
def inlined(of: cython.int) -> cython.int:
    return of

@cython.cfunc
def _own(of: cython.int) -> cython.int:
    return of

class Plain(Exception):
    """Without C."""
    def __init__(self, why: str) -> None:
        self.why = why
'''
PXD = """\
# Written by setup.py from the .py.
from feedhandler.further cimport Further
from feedhandler.header cimport stamp_t
from feedhandler.other cimport Part

cdef struct Asked:
    int file
    char * data

cdef class Whole:
    cdef readonly unsigned long long first, short
    cdef public bint open
    cdef readonly unsigned char[::1] data
    cdef const unsigned int[:, ::1] table
    cdef readonly Part part
    cdef Whole behind
    cdef readonly object queue
    cdef Asked ring[4]
    cdef stamp_t stamps[2][3]
    cdef int hidden
    cpdef Py_ssize_t store(self, Part part, const unsigned char[::1] data, \
unsigned long long at=*) except -2 nogil
    cpdef bint pump(self, int bytes_max) except? -1
    cdef int _spin(self) except? -1
    cdef object _hidden(self, Further further, other)
    cpdef list[Part] parts(self)
cpdef double share(long long of, bytes name) noexcept
"""
TYPES = {"m": {"Whole"}, "feedhandler.other": {"Part"}, "feedhandler.further": {"Further"}}


def test_cython_learns_types_attributes_and_functions_in_their_order() -> None:
    assert _declarations.declarations("m", PY, TYPES) == PXD


def test_annotations_that_are_pythons_alone_leave_c_types_to_decorators() -> None:
    source = """# cython: annotation_typing=False
import cython

@cython.locals(now_ns=cython.longlong, index=cython.int)
@cython.returns(cython.bint)
def due(name: str, now_ns: int) -> bool:
    return True
"""
    text = _declarations.declarations("m", source, {})
    assert "cpdef bint due(name, long long now_ns) except? -1" in text
    assert "def due(name: str, now_ns: int) -> bool: ..." in _declarations.stub(source)


def test_a_module_of_python_alone_declares_nothing() -> None:
    assert _declarations.declarations("m", "def f(x: int) -> int:\n    return x\n", {}) == ""


def test_a_long_type_that_is_returned_without_a_decorator_is_an_error() -> None:
    source = "import cython\ndef f() -> cython.longlong:\n    return 1\n"
    with pytest.raises(ValueError, match=r"f returns cython\.longlong: it needs cython\.ccall"):
        _declarations.declarations("m", source, {})


def test_c_types_become_pythons_and_what_only_c_sees_is_left_out() -> None:
    lines = _declarations.stub(PY).splitlines()
    for line in (
        "from feedhandler.other import Part",
        "from feedhandler.further import Further",
        "LIMIT: int",
        "    first: int",
        "    open: bool",
        "    data: memoryview",
        "    part: Part",
        "    queue: deque[bytes]",
        "    def __init__(self, part: Part, limit: int=...) -> None: ...",
        "    def store(self, part: Part, data: Buffer, at: int=...) -> int: ...",
        "    def pump(self, bytes_max: int) -> bool: ...",
        "    def parts(self) -> list[Part]: ...",
        "    def text(self) -> str: ...",
        "def share(of: int, name: bytes) -> float: ...",
        "    why: Any",
    ):
        assert line in lines, line
    seen = re_words(lines)
    assert not seen & {"hidden", "_hidden", "_spin", "behind", "c_only_too", "_LIMIT", "Asked"}
    compile("\n".join(lines), "stub", "exec")


def re_words(lines: list[str]) -> set[str]:
    """The words of some lines."""
    return {word for line in lines for word in line.replace("(", " ").replace(":", " ").split()}


def test_a_name_that_an_attribute_takes_still_means_the_type() -> None:
    stub = _declarations.stub(
        "@cython.cclass\nclass Store:\n    bytes: Readonly[cython.Py_ssize_t]\n"
        "    def get(self) -> bytes: ...\n"
        "    def two(self, bytes: int = 0) -> tuple[int, bytes]: ...\n"
    )
    assert "    bytes: int" in stub
    assert "def get(self) -> builtins.bytes: ..." in stub
    assert "def two(self, bytes: int=...) -> tuple[int, builtins.bytes]: ..." in stub


def test_declarations_stand_beside_what_is_compiled_and_go_with_it(tmp_path: Path) -> None:
    for name in ("kept", "gone"):
        (tmp_path / f"{name}.py").write_text(OTHER)
    (tmp_path / "by_hand.pyi").write_text("x: int\n")
    (tmp_path / "by_hand.pxd").write_text("cdef class Hand:\n    pass\n")
    modules = {name: tmp_path / f"{name}.py" for name in ("kept", "gone")}
    modules["by_hand"] = tmp_path / "by_hand.pyx"

    def written() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("*.p[xy][di]"))

    _declarations.write_declarations(tmp_path, modules)
    assert written() == [
        f"{x}.{end}" for x in ("by_hand", "gone", "kept") for end in ("pxd", "pyi")
    ]
    made = (tmp_path / "kept.pxd").stat().st_mtime_ns
    del modules["gone"]
    _declarations.write_declarations(tmp_path, modules)
    assert written() == ["by_hand.pxd", "by_hand.pyi", "kept.pxd", "kept.pyi"]
    assert (tmp_path / "kept.pxd").stat().st_mtime_ns == made
    assert _declarations.all_types(modules) == {"kept": {"Part"}, "by_hand": {"Hand"}}
