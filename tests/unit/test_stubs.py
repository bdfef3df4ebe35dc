"""Stubs out of a `.py` and a `.pxd`: what type checkers see of a compiled module."""

from pathlib import Path

from feedhandler import _stubs

PXD = '''
# Comments and texts of C are passed over.
from feedhandler.other cimport Part

cdef extern from *:
    """
    static inline int c_only(int x) { return x; }
    """
    int c_only(int x) nogil

cdef class Whole:
    cdef readonly unsigned long long first, last
    cdef public bint open
    cdef readonly unsigned char[::1] data
    cdef readonly Part part
    cdef readonly object queue
    cdef int hidden
    cpdef Py_ssize_t store(
        self, Part part, const unsigned char[::1] data,
        unsigned long long at=*) except -1 nogil
    cdef int _hidden(self)

cpdef double share(long long of, bytes name)
'''
PY = '''
"""A module."""
from collections import deque
import cython
from cython.cimports.feedhandler.other import Part, c_only_too
from cython.cimports.feedhandler.other import c_alone
LIMIT = 1 << 20
NAMES = ("a", "b")
_LIMIT = cython.declare(cython.int, LIMIT)

@cython.final
@cython.cclass
class Whole:
    """A class."""
    def __init__(self, part: Part, limit: int = LIMIT) -> None:
        self.queue: deque[bytes] = deque()
        self.hidden = 1
    def store(self, part, data, at=0):
        return 0
    @cython.cfunc
    def _hidden(self):
        return 0
    @property
    def text(self) -> str:
        return ""

def share(of, name):
    return 0.5

class Plain(Exception):
    """Without C."""
    def __init__(self, why: str) -> None:
        self.why = why
'''


def test_c_types_become_pythons_and_what_only_c_sees_is_left_out() -> None:
    lines = _stubs.stub(PY, PXD).splitlines()
    for line in (
        "from feedhandler.other import Part",
        "LIMIT: int",
        "    first: int",
        "    last: int",
        "    open: bool",
        "    data: memoryview",
        "    part: Part",
        "    queue: deque[bytes]",
        "    def __init__(self, part: Part, limit: int=...) -> None: ...",
        "    def store(self, part: Part, data: Buffer, at: int=...) -> int: ...",
        "    def text(self) -> str: ...",
        "def share(of: int, name: bytes) -> float: ...",
        "    why: Any",
    ):
        assert line in lines, line
    assert not [line for line in lines if "hidden" in line or "c_only" in line or "_LIMIT" in line]
    compile("\n".join(lines), "stub", "exec")


def test_a_name_that_an_attribute_takes_still_means_the_type() -> None:
    stub = _stubs.stub(
        "class Store:\n    def get(self) -> bytes: ...\n"
        "    def two(self, bytes: int = 0) -> tuple[int, bytes]: ...\n",
        "cdef class Store:\n    cdef readonly Py_ssize_t bytes\n",
    )
    assert "    bytes: int" in stub
    assert "def get(self) -> builtins.bytes: ..." in stub
    assert "def two(self, bytes: int=...) -> tuple[int, builtins.bytes]: ..." in stub


def test_what_a_pxd_says_of_items_is_kept() -> None:
    stub = _stubs.stub(
        "class Whole:\n    def parts(self): ...\n",
        "cdef class Whole:\n    cpdef list[Part] parts(self)\n",
    )
    assert "def parts(self) -> list[Part]: ..." in stub


def test_stubs_stand_beside_what_is_compiled_and_go_with_it(tmp_path: Path) -> None:
    for name in ("kept", "gone", "plain"):
        (tmp_path / f"{name}.py").write_text("X = 1\n")
    for name in ("kept", "gone"):
        (tmp_path / f"{name}.pxd").write_text("cdef int x\n")
    (tmp_path / "by_hand.pyi").write_text("x: int\n")
    modules = [tmp_path / "kept.py", tmp_path / "gone.py", tmp_path / "plain.py"]
    _stubs.write_stubs(tmp_path, modules)
    assert sorted(path.stem for path in tmp_path.glob("*.pyi")) == ["by_hand", "gone", "kept"]
    _stubs.write_stubs(tmp_path, modules[:1])
    assert sorted(path.stem for path in tmp_path.glob("*.pyi")) == ["by_hand", "kept"]
