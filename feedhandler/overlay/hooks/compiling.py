"""Compile `overlay.bpf.c` with Debian's clang, at first use; the user's cache keeps the object.

Its name has a hash of the source and of the compiler's version, so what is kept is never stale.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from feedhandler.codecs.errors import HostFault, UsageError, unwritable

SOURCE = Path(__file__).with_name("overlay.bpf.c")
PACKAGES = "apt-get install clang libbpf-dev"
#: The compiler takes a second; one that takes this long hangs.
COMPILE_SECONDS_MAX = 60.0


def cache_folder() -> Path:
    """Return the folder that objects are kept in."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "feedhandler"


def object_file(folder: Path | None = None) -> Path:
    """Return the compiled object, compiling it if it is not there.

    Raises `UsageError` without clang or libbpf's headers, `HostFault` where clang fails.
    """
    clang = shutil.which("clang")
    if clang is None:
        raise UsageError("the kernel's programs need clang to be compiled", PACKAGES)
    version = subprocess.run([clang, "--version"], capture_output=True, check=False).stdout
    name = hashlib.sha256(version + SOURCE.read_bytes()).hexdigest()[:16]
    folder = folder or cache_folder()
    path = folder / f"overlay-hooks-{name}.o"
    if not path.exists():
        _compile(clang, path)
    return path


def _compile(clang: str, path: Path) -> None:
    new = path.with_suffix(f".{os.getpid()}")
    headers = f"/usr/include/{platform.machine()}-linux-gnu"
    options = ["-O2", "-g", "-Wall", "-target", "bpf", "-mcpu=v3", "-I", headers]
    command = [clang, *options, "-c", str(SOURCE), "-o", str(new)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False
        )
        if done.returncode == 0:
            # At once: another process may be loading it.
            new.replace(path)
            return
    except subprocess.TimeoutExpired:
        raise HostFault(f"clang is not done after {COMPILE_SECONDS_MAX:.0f} s") from None
    except OSError as error:
        raise unwritable(path.parent, error, "set XDG_CACHE_HOME to a folder of yours") from None
    finally:
        new.unlink(missing_ok=True)
    lines = done.stderr.strip().splitlines() or ["no message"]
    if "bpf_helpers.h" in done.stderr or "bpf_endian.h" in done.stderr:
        raise UsageError("libbpf's headers are not installed", PACKAGES)
    raise HostFault(f"clang refuses the kernel's programs: {lines[0]}", "clang 14 or later")
