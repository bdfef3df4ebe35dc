"""Installs the foreign AMQP clients that the interoperation tests drive, and Compose's loader.

`python -m tests.interop.install` brings rhea by npm, go-amqp and compose-go by Go's own tool, at
the versions of the lock files beside this, and builds the Go programs, in the folder that
`FEEDHANDLER_CLIENTS` names (default `~/.cache/feedhandler/clients`). What is up to date already is
left alone. Where `npm` or `go` is missing it says so, does the rest, and ends with exit code 1.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[1] / "docs" / "guides" / "samples"
#: Folders with a Go program each, by the name of what is built of them.
GO_PROGRAMS = {
    "client": HERE / "go",
    "compose": HERE / "go-compose",
    "subscribe": SAMPLES / "go",
    "resume": SAMPLES / "go-resume",
}


def clients_folder() -> Path:
    """Where the clients are, or are to be."""
    default = Path.home() / ".cache" / "feedhandler" / "clients"
    return Path(os.environ.get("FEEDHANDLER_CLIENTS", default))


def _digest(files: list[Path]) -> str:
    """What the files hold, so that an installation of other files shows."""
    found = hashlib.sha256()
    for path in files:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _javascript_files() -> list[Path]:
    return [HERE / "javascript" / name for name in ("package.json", "package-lock.json")]


def _go_files(folder: Path) -> list[Path]:
    return sorted([folder / "go.mod", folder / "go.sum", *folder.glob("*.go")])


def _current(stamp: Path, digest: str) -> bool:
    return stamp.is_file() and stamp.read_text() == digest


def node_path() -> Path | None:
    """The folder of installed npm packages; None where they are missing or of another lock file."""
    folder = clients_folder() / "javascript"
    current = _current(folder / "stamp", _digest(_javascript_files()))
    return folder / "node_modules" if current else None


def go_program(name: str) -> Path | None:
    """One of `GO_PROGRAMS`, built; None where it is missing or was built of other sources."""
    folder = clients_folder() / "go"
    current = _current(folder / f"{name}.stamp", _digest(_go_files(GO_PROGRAMS[name])))
    return folder / name if current else None


def install_javascript() -> None:
    """Install the npm packages of the lock file."""
    if node_path() is not None:
        return
    folder = clients_folder() / "javascript"
    folder.mkdir(parents=True, exist_ok=True)
    for path in _javascript_files():
        shutil.copy(path, folder)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "stamp").write_text(_digest(_javascript_files()))


def install_go(name: str) -> None:
    """Build one of the Go programs, with what its go.sum names."""
    if go_program(name) is not None:
        return
    folder = clients_folder() / "go"
    folder.mkdir(parents=True, exist_ok=True)
    source = GO_PROGRAMS[name]
    command = ["go", "build", "-trimpath", "-buildvcs=false", "-o", str(folder / name), "."]
    subprocess.run(command, cwd=source, check=True)
    (folder / f"{name}.stamp").write_text(_digest(_go_files(source)))


def main() -> int:
    wanted = {"npm": [install_javascript], "go": []}
    for name, folder in GO_PROGRAMS.items():
        if folder.is_dir():
            wanted["go"].append(lambda name=name: install_go(name))
    missing = [tool for tool in wanted if shutil.which(tool) is None]
    for tool, steps in wanted.items():
        if tool not in missing:
            for step in steps:
                step()
    for tool in missing:
        print(f"{tool} is not installed: its clients cannot be tested", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
