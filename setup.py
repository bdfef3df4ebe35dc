"""Builds the compiled units. Everything else about the project stands in pyproject.toml.

A unit (`feedhandler/_compiled.py` has the table) is one shared library made of several modules.
First what is declared in one place is written where others read it: whole numbers of some plain
modules into `.pxd` files, as C constants for Cython; types of the compiled modules into `.pxd`
files for Cython and `.pyi` files for type checkers. Then three steps, each on all processors and
each skipping what has not changed: Cython translates the modules to C under `build/cython`, the C
compiler makes an object file of each, the linker makes a library of each unit.

Environment:

* `FEEDHANDLER_UNITS=codecs,ingest` builds only these units; empty builds none.
* `FEEDHANDLER_SYMBOLS=1` keeps debug symbols and the symbol table, for perf and gdb.
* `FEEDHANDLER_SANITIZE=1` builds with AddressSanitizer (see `make fuzz-asan`).
"""

import hashlib
import importlib
import os
import runpy
import sys
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
TABLE = runpy.run_path(str(HERE / "feedhandler" / "_compiled.py"))
DECLARATIONS = runpy.run_path(str(HERE / "feedhandler" / "_declarations.py"))
SOURCES: dict[str, str] = {**TABLE["PURE_MODE"], **TABLE["COMPILED_ONLY"]}
CYTHON_FOLDER = "build/cython"
DIRECTIVES = {
    "boundscheck": True,
    "wraparound": False,
    "cdivision": True,
    # Nothing compiled is pickled; the code for it would be a tenth of all.
    "auto_pickle": False,
}
#: For modules whose time goes into calls of Python's API: half the compiler's time, no slower.
QUICK_FLAGS = ["-O1", "-finline-small-functions", "-findirect-inlining"]
#: For the others. Loops begin at fixed distances: without that, code elsewhere in a unit moves the
#: scanner's by some bytes, and 4 % of its rate.
FAST_FLAGS = ["-O2", "-falign-functions=32", "-falign-loops=32"]


def chosen_units() -> list[str]:
    """The units named in `FEEDHANDLER_UNITS`, or all."""
    named = os.environ.get("FEEDHANDLER_UNITS")
    if named is None:
        return list(TABLE["UNITS"])
    units = [unit for unit in named.replace(",", " ").split() if unit]
    unknown = [unit for unit in units if unit not in TABLE["UNITS"]]
    if unknown:
        sys.exit(f"no unit {unknown[0]}; there are {', '.join(TABLE['UNITS'])}")
    return units


def modules_of(unit: str) -> list[str]:
    """The full names of a unit's modules."""
    return [f"feedhandler.{name}" for name in TABLE["UNITS"][unit]]


def flags(name: str = "") -> tuple[list[str], list[str]]:
    """Return the flags of compiler and linker for a module, besides Python's own."""
    compiling = ["-fno-strict-aliasing", "-fvisibility=hidden", "-w"]
    if os.environ.get("FEEDHANDLER_SANITIZE"):
        # Not optimised, and with line numbers alone: a third of the compiler's time.
        sanitizer = ["-g1", "-fsanitize=address"]
        return [*compiling, "-O0", "-fno-omit-frame-pointer", *sanitizer], sanitizer
    plain = any(name.startswith(f"feedhandler.{prefix}") for prefix in TABLE["CALLS_NOT_LOOPS"])
    compiling += QUICK_FLAGS if plain or name == TABLE["UTILITY"] else FAST_FLAGS
    if os.environ.get("FEEDHANDLER_SYMBOLS"):
        return [*compiling, "-g"], []
    return [*compiling, "-g0"], ["-Wl,--strip-all"]


def declare_constants() -> None:
    """Write the `.pxd` of the modules in `CONSTANTS`: every whole number with an upper-case name.

    They run in a package of their own, whose first file is not: that one imports compiled modules.
    """
    package = types.ModuleType("feedhandler")
    package.__path__ = [str(HERE / "feedhandler")]
    before = dict(sys.modules)
    sys.modules["feedhandler"] = package
    try:
        for name in TABLE["CONSTANTS"]:
            module = importlib.import_module(f"feedhandler.{name}")
            numbers = {
                key: int(value)
                for key, value in vars(module).items()
                if key.isupper() and type(value) is int and key[0] != "_"
            }
            text = "# Written by setup.py from the module of this name.\n\ncdef enum:\n"
            text += "".join(f"    {key} = {value}\n" for key, value in numbers.items())
            DECLARATIONS["write_if_new"](
                HERE / "feedhandler" / f"{name.replace('.', '/')}.pxd", text
            )
    finally:
        for name in sys.modules.keys() - before.keys() | {"feedhandler"}:
            del sys.modules[name]
        sys.modules.update(before)


def declare_types() -> None:
    """Write the `.pxd` and `.pyi` of compiled modules that are Python; see `_declarations.py`."""
    modules = {name: HERE / path for name, path in SOURCES.items()}
    DECLARATIONS["write_declarations"](HERE / "feedhandler", modules)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, then how long it took."""
    print(f"{what} ...", flush=True)
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


class BuildPython(build_py):
    """`build_py` that finds the stubs, which go with the modules."""

    def run(self) -> None:
        declare_types()
        super().run()


class BuildUnits(build_ext):
    """`build_ext` for units: all modules of all units side by side."""

    def copy_extensions_to_source(self) -> None:
        Path("feedhandler/_units").mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def build_extensions(self) -> None:
        declare_constants()
        declare_types()
        units = [extension.name.rpartition(".")[2] for extension in self.extensions]
        names = [name for unit in units for name in modules_of(unit)]
        with step(f"translating {len(names)} modules to C"):
            c_files = self._translate(names)
        if TABLE["UTILITY_UNIT"] in units:
            c_files[TABLE["UTILITY"]] = self._utility()
        with step(f"compiling {len(c_files)} C files"), ThreadPoolExecutor(self._jobs()) as pool:
            made = pool.map(self._compile, c_files, c_files.values())
            objects = dict(zip(c_files, made, strict=True))
        with step(f"linking {len(units)} units"):
            for extension, unit in zip(self.extensions, units, strict=True):
                members = modules_of(unit)
                if unit == TABLE["UTILITY_UNIT"]:
                    members.append(TABLE["UTILITY"])
                self._link(extension, [objects[name] for name in members])

    def _jobs(self) -> int:
        return self.parallel if isinstance(self.parallel, int) else len(os.sched_getaffinity(0))

    def _translate(self, names: list[str]) -> dict[str, str]:
        """Module to C file; only what changed is translated anew."""
        import Cython.Compiler.Options
        from Cython.Build import cythonize

        Cython.Compiler.Options.emit_code_comments = False
        Cython.Compiler.Options.annotate = False
        extensions = cythonize(
            [Extension(name, [SOURCES[name]]) for name in names],
            build_dir=CYTHON_FOLDER,
            compiler_directives=DIRECTIVES,
            language_level=3,
            nthreads=min(self._jobs(), len(names)),
            quiet=True,
            shared_utility_qualified_name=TABLE["UTILITY"],
            show_all_warnings=False,
        )
        return {extension.name: extension.sources[0] for extension in extensions}

    def _utility(self) -> str:
        """The C file of Cython's own run-time code."""
        path = Path(CYTHON_FOLDER, *TABLE["UTILITY"].split(".")).with_suffix(".c")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "cython", "--module-name", TABLE["UTILITY"]]
            self.spawn([*command, "--generate-shared", str(path)])
        return str(path)

    def _compile(self, name: str, c_file: str) -> str:
        """One object file, made anew where its C file or the flags changed."""
        compiling, _ = flags(name)
        key = hashlib.sha256(" ".join(compiling).encode()).hexdigest()[:8]
        folder = Path(self.build_temp) / key
        made = folder / Path(c_file).with_suffix(".o")
        if made.exists() and made.stat().st_mtime_ns > os.stat(c_file).st_mtime_ns:
            return str(made)
        source_folder = str(Path(c_file).relative_to(CYTHON_FOLDER).parent)
        (written,) = self.compiler.compile(
            [c_file],
            output_dir=str(folder),
            include_dirs=[source_folder],
            extra_postargs=compiling,
        )
        return written

    def _link(self, extension: Extension, objects: list[str]) -> None:
        _, linking = flags()
        library = self.get_ext_fullpath(extension.name)
        # The linker's wrapper looks at the objects' times alone, not at which they are.
        Path(library).unlink(missing_ok=True)
        self.compiler.link_shared_object(objects, library, extra_postargs=linking)


setup(
    cmdclass={"build_ext": BuildUnits, "build_py": BuildPython},
    ext_modules=[
        Extension(f"feedhandler._units.{unit}", [SOURCES[name] for name in modules_of(unit)])
        for unit in chosen_units()
    ],
)
