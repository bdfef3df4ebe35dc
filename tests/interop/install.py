"""Installs the foreign AMQP clients that the interoperation tests drive, Compose's loader,
Porcupine, which judges histories, and QuickFIX/J, which judges FIX messages.

`python -m tests.interop.install` brings rhea by npm, go-amqp and compose-go by Go's own tool, Qpid
JMS, Vert.x Proton, QuickFIX/J and, for benches, Kafka and Aeron by Maven, fe2o3-amqp by cargo, at
the versions of the files beside this (the benches': `bench/kafka`, `bench/aeron`), and builds the
programs in Go, Java and Rust, in the folder that `FEEDHANDLER_CLIENTS` names (default
`~/.cache/feedhandler/clients`). What is up to date already is left alone. Where a tool is missing
it says so, does the rest, and ends with exit code 1.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.checkout import CHECKOUT

HERE = Path(__file__).resolve().parent
SAMPLES = CHECKOUT / "docs" / "guides" / "samples"
#: Folders with a Go program each, by the name of what is built of them.
GO_PROGRAMS = {
    "client": HERE / "go",
    "compose": HERE / "go-compose",
    "histories": HERE / "go-histories",
    "subscribe": SAMPLES / "go",
    "resume": SAMPLES / "go-resume",
}
#: Folders with a Java program each, `Client.java`, and what it needs, `pom.xml`, by the library.
JAVA_PROGRAMS = {
    "jms": HERE / "jms",
    "vertx": HERE / "vertx",
    # A judge of FIX messages, no client.
    "quickfixj": HERE / "quickfixj",
    # The bench's, with the broker itself among its libraries.
    "kafka": CHECKOUT / "bench" / "kafka",
    # Another bench's, with its driver.
    "aeron": CHECKOUT / "bench" / "aeron",
}
#: The Maven plug-in that brings a program's libraries.
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
RUST = HERE / "rust"


def clients_folder() -> Path:
    """Return the folder where the clients are, or are to be."""
    default = Path.home() / ".cache" / "feedhandler" / "clients"
    return Path(os.environ.get("FEEDHANDLER_CLIENTS", default))


def _digest(files: list[Path]) -> str:
    """Return a digest of the files, so that an installation of other files shows."""
    found = hashlib.sha256()
    for path in files:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _javascript_files() -> list[Path]:
    return [HERE / "javascript" / name for name in ("package.json", "package-lock.json")]


def _go_files(folder: Path) -> list[Path]:
    return sorted([folder / "go.mod", folder / "go.sum", *folder.glob("*.go")])


def _java_files(folder: Path) -> list[Path]:
    return [folder / "pom.xml", folder / "Client.java"]


def _rust_files() -> list[Path]:
    return [RUST / name for name in ("Cargo.toml", "Cargo.lock", "main.rs")]


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


def java_classes(name: str) -> str | None:
    """The class path of one of `JAVA_PROGRAMS`; None where it is missing or of other sources."""
    folder = clients_folder() / "java" / name
    current = _current(folder / "stamp", _digest(_java_files(JAVA_PROGRAMS[name])))
    return f"{folder / 'classes'}:{folder / 'libraries'}/*" if current else None


def rust_program() -> Path | None:
    """The program in Rust, built; None where it is missing or was built of other sources."""
    folder = clients_folder() / "rust"
    return folder / "client" if _current(folder / "stamp", _digest(_rust_files())) else None


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


def install_java(name: str) -> None:
    """Fetch a Java program's libraries and compile it."""
    if java_classes(name) is not None:
        return
    source, folder = JAVA_PROGRAMS[name], clients_folder() / "java" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    libraries = folder / "libraries"
    fetch = ["mvn", "-q", "-B", "-f", str(source / "pom.xml"), COPY]
    # Maven leaves folders of its own wherever it stands.
    with tempfile.TemporaryDirectory() as work:
        options = [f"-DoutputDirectory={libraries}", "-DincludeScope=runtime"]
        subprocess.run([*fetch, *options], cwd=work, check=True)
    compiler = ["javac", "-d", str(folder / "classes"), "-cp", f"{libraries}/*"]
    subprocess.run([*compiler, str(source / "Client.java")], check=True)
    (folder / "stamp").write_text(_digest(_java_files(source)))


def install_rust() -> None:
    """Build the Rust program with what its Cargo.lock names; only the program is kept."""
    if rust_program() is not None:
        return
    folder = clients_folder() / "rust"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        command = ["cargo", "build", "--quiet", "--locked", "--target-dir", work]
        subprocess.run(command, cwd=RUST, check=True)
        shutil.copy(Path(work) / "debug" / "client", folder / "client")
    (folder / "stamp").write_text(_digest(_rust_files()))


def main() -> int:
    java = ("mvn", "javac")
    steps: list[tuple[tuple[str, ...], Callable[[], None]]] = [
        (("npm",), install_javascript),
        *((("go",), partial(install_go, name)) for name, at in GO_PROGRAMS.items() if at.is_dir()),
        *((java, partial(install_java, name)) for name in JAVA_PROGRAMS),
        (("cargo",), install_rust),
    ]
    missing = {tool for tools, _ in steps for tool in tools if shutil.which(tool) is None}
    for tools, step in steps:
        if not missing.intersection(tools):
            step()
    for tool in sorted(missing):
        print(f"{tool} is not installed: its clients cannot be tested", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
