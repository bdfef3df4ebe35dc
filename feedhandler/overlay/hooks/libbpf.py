"""Binding to libbpf 1.x: load an object, read and write maps, attach links, pin, run a test.

Only what hooks need, by ctypes: no compiler's headers are needed to run. Errors are `OSError` with
the kernel's number. Calls release the interpreter's lock.
"""

import ctypes
import ctypes.util
import errno
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# From <linux/bpf.h> and <linux/if_link.h>; 46 and 47 are Linux 6.6's, which Debian's header lacks.
XDP, TCX_INGRESS, TCX_EGRESS = 37, 46, 47
XDP_MODES = {"generic": 1 << 1, "native": 1 << 2}
ANY = 0


class _LinkOptions(ctypes.Structure):
    """`struct bpf_link_create_opts` with the members for kprobes, which libbpf wants to be zero."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("iterator", ctypes.c_void_p),
        ("iterator_bytes", ctypes.c_uint32),
        ("target_btf_id", ctypes.c_uint32),
        ("others", ctypes.c_uint64 * 4),
    )


class _TestRun(ctypes.Structure):
    """`struct bpf_test_run_opts`."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_in_bytes", ctypes.c_uint32),
        ("data_out_bytes", ctypes.c_uint32),
        ("context_in", ctypes.c_void_p),
        ("context_out", ctypes.c_void_p),
        ("context_in_bytes", ctypes.c_uint32),
        ("context_out_bytes", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration_ns", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch", ctypes.c_uint32),
    )


_POINTERS = (
    "bpf_object__open_file",
    "bpf_object__next_program",
    "bpf_object__find_map_by_name",
)
_POINTER, _WORD, _TEXT = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "bpf_object__open_file": (_TEXT, _POINTER),
    "bpf_object__next_program": (_POINTER, _POINTER),
    "bpf_object__find_map_by_name": (_POINTER, _TEXT),
    "bpf_object__load": (_POINTER,),
    "bpf_object__close": (_POINTER,),
    "bpf_program__name": (_POINTER,),
    "bpf_program__set_autoload": (_POINTER, ctypes.c_bool),
    "bpf_program__fd": (_POINTER,),
    "bpf_map__set_max_entries": (_POINTER, _WORD),
    "bpf_map__fd": (_POINTER,),
    "bpf_map__value_size": (_POINTER,),
    "bpf_map_update_elem": (ctypes.c_int, _POINTER, _POINTER, ctypes.c_uint64),
    "bpf_map_lookup_elem": (ctypes.c_int, _POINTER, _POINTER),
    "bpf_link_create": (ctypes.c_int, ctypes.c_int, ctypes.c_int, _POINTER),
    "bpf_link_detach": (ctypes.c_int,),
    "bpf_obj_pin": (ctypes.c_int, _TEXT),
    "bpf_obj_get": (_TEXT,),
    "bpf_prog_test_run_opts": (ctypes.c_int, _POINTER),
    "libbpf_num_possible_cpus": (),
    "libbpf_set_print": (_POINTER,),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Load libbpf, which then prints nothing. Raises `OSError` where it is not installed."""
    found = ctypes.CDLL("libbpf.so.1", use_errno=True)
    for name, arguments in _ARGUMENTS.items():
        function = getattr(found, name)
        function.argtypes = arguments
        function.restype = ctypes.c_void_p if name in _POINTERS else ctypes.c_int
    found.bpf_program__name.restype = ctypes.c_char_p
    found.libbpf_set_print.restype = ctypes.c_void_p
    found.bpf_object__close.restype = None
    found.libbpf_set_print(None)
    return found


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno() or -result
        # libbpf's own error numbers begin at 4000.
        raise OSError(number, os.strerror(number) if number < 4000 else f"libbpf error {number}")
    return result


def _pointer(result: int | None) -> int:
    if not result:
        number = ctypes.get_errno() or errno.ENOENT
        raise OSError(number, os.strerror(number))
    return result


@functools.cache
def processors() -> int:
    """Return the number of values that a per-CPU map has for a key."""
    return _checked(library().libbpf_num_possible_cpus())


@dataclass(frozen=True)
class Map:
    """A map by its descriptor, with values of `value_bytes`."""

    descriptor: int
    value_bytes: int

    def __getitem__(self, key: int) -> bytes:
        """Return the value of an array's element."""
        room = ctypes.create_string_buffer(self.value_bytes)
        number = ctypes.c_uint32(key)
        _checked(library().bpf_map_lookup_elem(self.descriptor, ctypes.byref(number), room))
        return room.raw

    def __setitem__(self, key: int, value: bytes) -> None:
        """Write an array's element."""
        assert len(value) == self.value_bytes
        number = ctypes.c_uint32(key)
        _checked(library().bpf_map_update_elem(self.descriptor, ctypes.byref(number), value, ANY))

    def sums(self, keys: int) -> list[int]:
        """Return the sums over processors of a per-CPU array of 64-bit numbers."""
        room = (ctypes.c_uint64 * processors())()
        totals = []
        for key in range(keys):
            number = ctypes.c_uint32(key)
            _checked(library().bpf_map_lookup_elem(self.descriptor, ctypes.byref(number), room))
            totals.append(sum(room))
        return totals


class Loaded:
    """One program of an object, and the object's maps; `close` ends what is not attached."""

    def __init__(self, path: str, program: str, entries: dict[str, int]) -> None:
        """Load `program` alone; `entries` are sizes of maps. Raises `OSError`."""
        api = library()
        self._object: int | None = _pointer(api.bpf_object__open_file(path.encode(), None))
        try:
            for each in self._programs():
                named = api.bpf_program__name(each).decode() == program
                _checked(api.bpf_program__set_autoload(each, named))
                if named:
                    handle = each
            for name, number in entries.items():
                _checked(api.bpf_map__set_max_entries(self._map(name), number))
            _checked(api.bpf_object__load(self._object))
            self.program = _checked(api.bpf_program__fd(handle))
        except BaseException:
            self.close()
            raise

    def _programs(self) -> Iterator[int]:
        at = library().bpf_object__next_program(self._object, None)
        while at:
            yield at
            at = library().bpf_object__next_program(self._object, at)

    def _map(self, name: str) -> int:
        return _pointer(library().bpf_object__find_map_by_name(self._object, name.encode()))

    def map(self, name: str) -> Map:
        """Return a map, which lives as long as this object."""
        handle = self._map(name)
        api = library()
        return Map(_checked(api.bpf_map__fd(handle)), _checked(api.bpf_map__value_size(handle)))

    def close(self) -> None:
        """Close the program and the maps; a link or a pin keeps what it needs."""
        if self._object is not None:
            library().bpf_object__close(self._object)
            self._object = None


def link(program: int, device: int, kind: int, flags: int = 0) -> int:
    """Attach a program to a device; return the descriptor that holds it there. Raises `OSError`."""
    options = _LinkOptions(size=ctypes.sizeof(_LinkOptions), flags=flags)
    return _checked(library().bpf_link_create(program, device, kind, ctypes.byref(options)))


def pin(descriptor: int, path: str) -> None:
    """Pin a map or a link under a path in bpffs, which keeps it. Raises `OSError`."""
    _checked(library().bpf_obj_pin(descriptor, path.encode()))


def pinned(path: str) -> int:
    """Open a pinned map or link, and return its descriptor. Raises `OSError`."""
    return _checked(library().bpf_obj_get(path.encode()))


def detach(path: str) -> None:
    """Detach a pinned link from its device, where that is still there; done on return."""
    descriptor = pinned(path)
    try:
        _checked(library().bpf_link_detach(descriptor))
    finally:
        os.close(descriptor)


def run_test(program: int, frame: bytes, repeat: int = 1) -> tuple[int, bytes]:
    """Run a program on a frame without a device (BPF_PROG_TEST_RUN); return result and frame."""
    room = ctypes.create_string_buffer(len(frame) + 256)
    options = _TestRun(
        size=ctypes.sizeof(_TestRun),
        data_in=frame,
        data_in_bytes=len(frame),
        data_out=ctypes.addressof(room),
        data_out_bytes=len(room),
        repeat=repeat,
    )
    _checked(library().bpf_prog_test_run_opts(program, ctypes.byref(options)))
    return options.result, room.raw[: options.data_out_bytes]
