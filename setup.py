"""The compiled modules. Everything else about the project stands in pyproject.toml.

`FEEDHANDLER_BUILD_ONLY=name[,name]` builds just those modules, for a quick turn while editing;
`FEEDHANDLER_SANITIZE=1` builds with AddressSanitizer (see `make fuzz-asan`).
"""

import os
import runpy

from Cython.Build import cythonize
from setuptools import Extension, setup

compiled = runpy.run_path(os.path.join(os.path.dirname(__file__), "feedhandler", "_compiled.py"))
sources = {**compiled["PURE_MODE"], **compiled["COMPILED_ONLY"]}
only = os.environ.get("FEEDHANDLER_BUILD_ONLY")
if only:
    sources = {name: sources[name] for name in only.split(",")}

flags = ["-O2", "-g", "-fno-strict-aliasing", "-Wno-unreachable-code"]
link_flags: list[str] = []
if os.environ.get("FEEDHANDLER_SANITIZE"):
    flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"]
    link_flags = ["-fsanitize=address"]

setup(
    ext_modules=cythonize(
        [
            Extension(name, [path], extra_compile_args=flags, extra_link_args=link_flags)
            for name, path in sources.items()
        ],
        language_level=3,
        compiler_directives={"boundscheck": True, "wraparound": False, "cdivision": True},
        # The tree is small enough to compile in full; a stale .c must never win.
        force=bool(only or os.environ.get("FEEDHANDLER_SANITIZE")),
    ),
)
