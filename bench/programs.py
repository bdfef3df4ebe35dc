"""The ceilings in C: each `*_ceiling.c` of this folder, compiled for a bench that runs it."""

import shutil
import subprocess
from pathlib import Path


def compiled(name: str, folder: str | Path) -> Path:
    """Compile `name`.c of this folder into `folder`; the program. Raises `FileNotFoundError` where
    there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc)")
    program = Path(folder) / name
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-O2", "-o", program, source], check=True)
    return program
