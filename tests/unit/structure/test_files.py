"""Files that must be in the tree, and the length of functions."""

import ast
import importlib.util
import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from feedhandler._compiled import COMPILED_ONLY, PURE_MODE
from feedhandler.config import load_config
from feedhandler.ops.config import check
from feedhandler.terminal.console import ExitCode
from tests.support.checkout import CHECKOUT, tree_of
from tests.support.rooms import LINKED, read_table

FOLDERS = ("codecs", "retrans", "replay", "feedhandler", "tests", "bench")

_SPEC = importlib.util.spec_from_file_location(
    "room_files", CHECKOUT / "docs" / "site" / "room_files.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
room_files = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(room_files)

#: Without the docstring. Files have no bound: one is as long as its concept.
FUNCTION_LINES_MAX = 70


def python_files() -> list[Path]:
    """Every Python and Cython file of the project, once."""
    found = {
        path.resolve()
        for folder in FOLDERS
        for suffix in ("*.py", "*.pyx", "*.pxi")
        for path in (CHECKOUT / folder).rglob(suffix)
    }
    return sorted(found)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below, however deep; what expressions are made of takes far longer."""
    below = [node]
    while below:
        node = below.pop()
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            found = getattr(node, name, None)
            if isinstance(found, list):  # a lambda's body is none
                yield from found
                below += found


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function's docstring takes."""
    first = node.body[0]
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or 0) - first.lineno + 1 if said else 0


def cython_functions(text: str) -> list[tuple[int, str, int]]:
    """Return each function's first line, name and line count: up to what is indented no deeper."""
    found, lines = [], text.splitlines()
    head = re.compile(r"( *)(?:async )?(?:def|cdef|cpdef) (?!class )[^=]*?(\w+)\(")
    for at, line in enumerate(lines):
        if (match := head.match(line)) is None:
            continue
        end, indent = at, len(match[1])
        for number, later in enumerate(lines[at + 1 :], at + 1):
            deeper = len(later) - len(later.lstrip()) > indent
            if later.strip() and not deeper and not later.lstrip().startswith(")"):
                break
            end = number if later.strip() else end
        found.append((at + 1, match[2], end - at + 1))
    return found


def test_functions_of_cython_are_measured_to_their_last_line() -> None:
    text = """cdef int first(
    int a
) except -1:
    return a


cdef class Some:
    cdef int count

    async def second(self):

        pass

    cpdef object third(self): return 1
"""
    assert cython_functions(text) == [(1, "first", 4), (10, "second", 3), (14, "third", 1)]


def folders_name(path: Path) -> bool:
    """Return whether a file is called what its folder is, or begins with that and more words."""
    word, *more = path.stem.split("_")
    if more:
        ends = re.compile(r"(ing|ers?|ors?|s|e)$")
        return ends.sub("", word) == ends.sub("", path.parent.name)
    return word.rstrip("s") == path.parent.name.rstrip("s")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("exchange/exchange.py", True),
        ("captures/capture.py", True),
        ("generating/generator_books.py", True),
        ("playing/player_blocks.py", True),
        ("playing/player.py", False),
        ("amqp/publishing/publisher.py", False),
        ("journal/queue.py", False),
        ("retrans/retransmission.py", False),
        ("fix/index.py", False),
    ],
)
def test_a_file_named_after_its_folder_is_recognised(path: str, found: bool) -> None:
    assert folders_name(Path(path)) == found


def test_no_file_is_named_after_its_folder() -> None:
    product = [path for path in python_files() if path.parent.name not in ("tests", "bench")]
    assert not [str(path.relative_to(CHECKOUT)) for path in product if folders_name(path)]


#: Folders of unit tests about no room: benches, pages, the tree, and what supports tests.
NO_ROOMS = {"bench", "docs", "structure", "support"}


def test_unit_tests_stand_in_the_folders_of_the_product_or_in_a_few_others() -> None:
    unit = CHECKOUT / "tests" / "unit"
    tests = list(unit.rglob("test_*.py"))
    for folder in {each for path in tests for each in path.relative_to(unit).parents}:
        name = folder.as_posix()
        assert name in NO_ROOMS or (CHECKOUT / "feedhandler" / name).is_dir(), f"{name}: no room"
        below = [path for path in tests if path.is_relative_to(unit / folder)]
        assert len(below) > 1, f"{name}: a single file belongs into the folder above"
        # Without it, no two files of tests could have one name.
        assert (unit / folder / "__init__.py").is_file(), f"{name}: no package"


def test_no_function_outgrows_a_screen() -> None:
    long = []
    for path in python_files():
        if path.suffix != ".py":
            long += [
                f"{path.relative_to(CHECKOUT)}:{at} {name}: {lines}"
                for at, name, lines in cython_functions(path.read_text())
                if lines > FUNCTION_LINES_MAX
            ]
            continue
        for node in statements(tree_of(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{path.relative_to(CHECKOUT)}:{node.lineno} {node.name}: {lines}")
    assert not long


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(CHECKOUT))
        for path in python_files()
        if path.suffix == ".py"
        and path.read_text().strip()
        and not ast.get_docstring(tree_of(path))
    ]
    assert not silent


@pytest.mark.parametrize(("name", "source"), {**PURE_MODE, **COMPILED_ONLY}.items())
def test_every_compiled_module_has_its_source(name: str, source: str) -> None:
    assert (CHECKOUT / source).is_file()
    assert source.rpartition(".")[0].replace("/", ".") == name
    assert source.endswith(".py") == (name in PURE_MODE)


def test_every_make_target_that_the_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "ARCHITECTURE.md", "docs/reliability.md"):
        named = re.findall(r"`make ([a-z-]+)", (CHECKOUT / document).read_text())
        assert set(named) <= targets, document


def test_the_readme_starts_with_the_two_commands() -> None:
    head = (CHECKOUT / "README.md").read_text()[:1500]
    assert "make demo" in head
    assert "make test" in head


def test_every_test_that_the_page_of_faults_names_exists() -> None:
    text = (CHECKOUT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"\]\(\.\./([^)]+)\)", text))
    assert len(named) > 10
    assert not [path for path in named if not (CHECKOUT / path).is_file()]


def test_the_page_of_faults_names_every_simulation_and_mutation_test() -> None:
    text = (CHECKOUT / "docs" / "reliability.md").read_text()
    tests = [
        path.relative_to(CHECKOUT).as_posix()
        for folder in ("simulation", "fuzz")
        for path in (CHECKOUT / "tests" / folder).glob("test_*.py")
    ]
    assert len(tests) > 20
    assert not [test for test in tests if f"](../{test})" not in text]


def test_every_file_that_the_documents_name_exists() -> None:
    for document in ("README.md", "ARCHITECTURE.md"):
        text = (CHECKOUT / document).read_text()
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (CHECKOUT / target).exists(), f"{document}: {target}"
        for path in re.findall(r"`((?:codecs|retrans|replay|feedhandler)/[\w/.]+\.\w+)`", text):
            assert (CHECKOUT / path).exists(), f"{document}: {path}"


def test_every_path_that_the_glossary_names_exists() -> None:
    """Paths are below `feedhandler/`, where the folders at the top are, too, as links."""
    lines = (CHECKOUT / "docs" / "glossary.md").read_text().splitlines()
    cells = [line.rpartition(" | ")[2] for line in lines if line.startswith("| ")]
    paths = [path for cell in cells for path in re.findall(r"`([\w/]+(?:\.\w+|/))`", cell)]
    assert len(paths) > 80
    assert not [path for path in paths if not (CHECKOUT / "feedhandler" / path).exists()]


def rooms() -> list[Path]:
    """The READMEs of rooms."""
    return room_files.readmes()


def folder_of(package: str) -> str:
    """Return where a package stands: of the linked ones, at the top."""
    names = package.split(".")
    return "/".join(names[1:] if names[1:] and names[1] in LINKED else names)


def test_every_room_has_a_readme_that_lists_its_files() -> None:
    there = {path.parent.relative_to(CHECKOUT).as_posix() for path in rooms()} - {"feedhandler"}
    packages = {path.parent.relative_to(CHECKOUT).as_posix()
                for folder in ("codecs", "retrans", "replay", "feedhandler")
                for path in (CHECKOUT / folder).rglob("__init__.py")}  # fmt: skip
    homeless = {
        name for name in packages - {"feedhandler", "feedhandler/_units"}
        if not any(name == room or name.startswith(f"{room}/") for room in there)
    }  # fmt: skip
    assert not homeless
    named = (part for room in read_table(room_files.ROOMS.read_text()) for part in room.parts)
    folders = {folder_of(part) for part in named} & packages
    assert len(folders) > 30
    assert folders <= there | {"feedhandler"}
    assert room_files.main(["--check"]) == 0


def test_a_rooms_readme_says_what_it_may_import_and_links_to_rooms_within(tmp_path: Path) -> None:
    text = (CHECKOUT / "codecs" / "fix" / "README.md").read_text()
    assert "\nMay import: `codecs.errors`.\n" in text
    text = (CHECKOUT / "codecs" / "README.md").read_text()
    assert "\n**[`fix/`](fix/README.md)**: FIX messages as bytes" in text
    assert "`fix/framing.py` |" not in text.partition(room_files.BEGIN)[2]


def test_a_readme_whose_list_is_old_is_found(tmp_path: Path) -> None:
    room = tmp_path / "replay"
    room.mkdir()
    (room / "one.py").write_text('"""Reads one. And more of it."""\n')
    (room / "README.md").write_text(f"# replay\n\n{room_files.BEGIN}\n{room_files.END}\n")
    (readme,) = room_files.readmes(tmp_path)
    text = room_files.written(readme, {room})
    assert "| `one.py` | Reads one |" in text
    assert text != readme.read_text()
    readme.write_text(text)
    assert room_files.written(readme, {room}) == text


def test_every_file_that_a_rooms_readme_names_exists() -> None:
    for readme in rooms():
        text = readme.read_text().partition(room_files.BEGIN)[0]
        for path in re.findall(r"`([\w/.]+\.(?:py|pyx|pxd|c|toml))`", text):
            there = [readme.parent / path, CHECKOUT / path, CHECKOUT / "feedhandler" / path]
            assert any(each.exists() for each in there), f"{readme}: {path}"
        for target in re.findall(r"\]\(([^)#:]+)", text):
            assert (readme.parent / target).exists(), f"{readme}: {target}"


def test_ci_runs_the_readmes_test_command_and_the_checks() -> None:
    script = CHECKOUT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    text = script.read_text()
    assert "set -euo pipefail" in text
    assert "export FEEDHANDLER_REQUIRE" in text
    assert re.search(r"^make test$", text, re.MULTILINE)
    assert re.search(r"^make .*\bbench-smoke check fuzz-asan\b", text, re.MULTILINE)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file, parsed."""
    return yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())


def test_the_compose_file_has_what_it_promises(compose: dict[str, Any]) -> None:
    services = compose["services"]
    plain = {name for name, service in services.items() if not service.get("profiles")}
    assert plain == {"exchange", "gateway", "subscriber", "rabbitmq"}
    assert {*services} - plain == {"session", "spark-master", "spark-worker", "characterise"}
    assert services["rabbitmq"]["image"].startswith("rabbitmq:4")


def test_every_compose_service_stands_on_what_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            # A service without a profile cannot wait for one that is only there with it.
            assert {*services[other].get("profiles", [])} <= {*service.get("profiles", [])}, name
            waits = how["condition"]
            assert waits != "service_healthy" or "healthcheck" in services[other], name
            ends = "restart" not in services[other]
            assert (waits == "service_completed_successfully") == ends, name
        if "service:" in service.get("network_mode", ""):
            assert "ports" not in service, f"{name}: ports belong to the namespace's owner"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (CHECKOUT / source).is_file(), name


def test_every_containers_log_is_bounded(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name


def test_a_broker_that_is_down_does_not_keep_the_gateway_from_starting(
    compose: dict[str, Any],
) -> None:
    gateway = compose["services"]["gateway"]
    assert gateway["depends_on"]["rabbitmq"] == {"condition": "service_started"}


def test_the_gateway_of_the_compose_file_publishes_to_its_rabbitmq(compose: dict[str, Any]) -> None:
    path = CHECKOUT / "docs" / "gateway.compose.toml"
    assert check(path) == ExitCode.OK
    (destination,) = load_config(path).publish
    assert destination.broker_address.host in compose["services"]
    assert destination.kind == "rabbitmq-4"
    definitions = json.loads((CHECKOUT / "docs" / "rabbitmq.compose.json").read_text())
    (user,) = definitions["users"]
    assert (destination.broker_address.user, destination.broker_address.password) == (
        user["name"],
        user["password"],
    )
    (binding,) = definitions["bindings"]
    assert binding["source"] == destination.exchange
    mounted = [each.split(":")[:2] for each in compose["services"]["rabbitmq"]["volumes"]]
    (loaded,) = re.findall(
        r"^load_definitions = (.+)$",
        (CHECKOUT / "docs" / "rabbitmq.compose.conf").read_text(),
        re.MULTILINE,
    )
    assert ["./docs/rabbitmq.compose.json", loaded] in mounted


def test_the_job_on_spark_is_sent_to_the_master_and_reads_what_the_worker_sees(
    compose: dict[str, Any],
) -> None:
    services = compose["services"]
    master, worker, job = (services[x] for x in ("spark-master", "spark-worker", "characterise"))
    host, port = (master["command"][master["command"].index(x) + 1] for x in ("--host", "--port"))
    assert worker["command"][-1] == job["command"][-1] == f"spark://{host}:{port}"
    assert host in services
    assert set(worker["volumes"]) <= set(job["volumes"])
    written = services["session"]["command"][-1]
    assert job["command"][1] == written
    assert services["session"]["volumes"][0].split(":")[1] == str(Path(written).parent)


def test_multicast_stays_in_one_network_namespace(compose: dict[str, Any]) -> None:
    for name in ("gateway", "subscriber"):
        assert compose["services"][name]["network_mode"] == "service:exchange"


def test_who_lives_in_anothers_namespace_restarts_with_it(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        owner = service.get("network_mode", "").removeprefix("service:")
        if owner in services:
            assert service["depends_on"][owner]["restart"] is True, name


def test_the_containers_node_can_be_reached_from_outside() -> None:
    assert "COPY docs/gateway.compose.toml" in (CHECKOUT / "Dockerfile").read_text()
    config = load_config(CHECKOUT / "docs" / "gateway.compose.toml")
    assert config.amqp.address == ("0.0.0.0", 5672)


def test_compose_commands_are_commands_of_ours(compose: dict[str, Any]) -> None:
    text = (CHECKOUT / "feedhandler" / "cli" / "app.py").read_text()
    text += (CHECKOUT / "feedhandler" / "cli" / "generate.py").read_text()
    text += (CHECKOUT / "feedhandler" / "cli" / "characterise.py").read_text()
    for service in compose["services"].values():
        if service["image"].startswith("feedhandler") and "entrypoint" not in service:
            assert f"def {service['command'][0]}(" in text


def test_every_image_that_is_ours_is_built_by_one_service(compose: dict[str, Any]) -> None:
    ours = {s["image"] for s in compose["services"].values() if "feedhandler" in s["image"]}
    built = {s["image"] for s in compose["services"].values() if "build" in s}
    assert ours == built


def test_the_dockerfile_has_the_images_that_the_compose_file_builds(
    compose: dict[str, Any],
) -> None:
    text = (CHECKOUT / "Dockerfile").read_text()
    _, *stages = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)
    named = {re.match(r"FROM \S+ AS (\S+)", stage)[1]: stage for stage in stages}  # type: ignore
    targets = {s["build"]["target"] for s in compose["services"].values() if "build" in s}
    assert targets == {"gateway", "spark"}
    assert next(reversed(named)) == "gateway", "what is built where nothing is said"
    for target in targets:
        assert "FROM python:3.11-slim" in named[target]
        assert re.search(r"^USER feedhandler$", named[target], re.MULTILINE)
        assert "gcc" not in named[target]
    assert "jre" in named["spark"]


#: An installer that is given the project's name: until there is a release, the owner of that name
#: elsewhere decides what comes.
BY_NAME = re.compile(
    r"\b(?:pip3?|pipx|uv|uvx|poetry|pdm|conda)\s+(?:install|add|tool\s+install|pip\s+install)"
    r"(?:\s+(?!['\"]?\.)[^\s`();|]+)*?\s+['\"]?feedhandler\b(?!/)|\bfeedhandler\[(?=[a-z])"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pip install feedhandler", True),
        ("`pip install -U 'feedhandler[lab]'`", True),
        ("pip install numpy pyarrow feedhandler==0.1", True),
        ("(`pip install\n'feedhandler[spark]'`, Java)", True),
        ("the extra `feedhandler[lab]`", True),
        ("uv pip install feedhandler", True),
        ("uv tool install feedhandler", True),
        ("pip install '.[spark]' in the checkout; feedhandler does the rest", False),
        ("/opt/feedhandler/bin/pip install .", False),
        ("`pip install .`, then `feedhandler demo`", False),
        ("pip install ./feedhandler", False),
    ],
)
def test_what_would_install_a_strangers_package_is_recognised(text: str, found: bool) -> None:
    assert bool(BY_NAME.search(text)) == found


def test_nothing_tells_to_install_the_project_by_its_name() -> None:
    pages = [CHECKOUT / name for name in ("Dockerfile", "Makefile", "pyproject.toml")]
    pages += [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("examples/**/*"), *CHECKOUT.glob("docs/**/*")]
    pages += [path for path in python_files() if CHECKOUT / "tests" not in path.parents]
    found = {
        str(page.relative_to(CHECKOUT)): match[0]
        for page in pages
        if page.is_file() and page.suffix not in (".png", ".parquet", ".pyc")
        if (match := BY_NAME.search(page.read_text()))
    }
    assert not found


def test_the_licence_is_apache_2() -> None:
    text = (CHECKOUT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def tracked(pattern: str) -> list[Path]:
    """Files of the checkout that git knows."""
    found = subprocess.run(
        ["git", "ls-files", pattern], cwd=CHECKOUT, capture_output=True, text=True
    )
    if found.returncode:
        pytest.skip("no git checkout")
    return [CHECKOUT / name for name in found.stdout.split()]


def test_declarations_stand_once() -> None:
    """By hand there are those of a `.pyx`, and inline C: none beside a compiled Python module."""
    assert not [path for path in tracked("*.pyi") if not path.with_suffix(".pyx").exists()]
    beside = {(CHECKOUT / source).resolve().with_suffix(".pxd") for source in PURE_MODE.values()}
    assert not beside & set(tracked("*.pxd"))


@pytest.mark.parametrize("source", sorted(PURE_MODE.values()))
def test_a_twin_says_nothing_again_of_what_is_compiled(source: str) -> None:
    """Under `else` of `if cython.compiled` stand functions that C has otherwise, nothing else."""
    for node in tree_of(CHECKOUT / source).body:
        if isinstance(node, ast.If) and "cython.compiled" in ast.unparse(node.test):
            other = node.body if "not" in ast.unparse(node.test) else node.orelse
            assert all(isinstance(each, ast.FunctionDef) for each in other), ast.unparse(node)


def test_the_table_of_rooms_and_a_rooms_readme_name_the_same_file_to_begin() -> None:
    differ = []
    for line in (CHECKOUT / "docs" / "rooms.md").read_text().splitlines():
        row = re.search(r"^\| `([\w.]+)` \|.*\| `([\w/]+)/(\w+\.pyx?)` \|$", line)
        if row is None or row[3] == "__init__.py" or not row[2].endswith(row[1].replace(".", "/")):
            continue  # a room of single modules
        readme = CHECKOUT / row[2] / "README.md"
        text = readme.read_text() if readme.exists() else ""
        named = re.search(r"\*\*Begin reading\*\* at\s`([\w./]+)`", text)
        if named is not None and named[1] != row[3]:
            differ.append(f"{row[2]}: {named[1]}, {row[3]}")
    assert differ == []
