"""Topology files: text and back, what is wrong in one, keys and rights."""

import stat
from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError
from feedhandler.overlay.topology import Shape
from feedhandler.overlay.topology_file import (
    FILE_BYTES_MAX,
    address_text,
    excerpt,
    generate,
    load,
    parse,
    parse_address,
    render,
    save,
)
from tests.support.overlay import SHAPE, tree


def test_a_file_reads_back_and_is_its_owners_alone(tmp_path: Path) -> None:
    topology, path = tree(), tmp_path / "tree.toml"
    save(path, topology)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = load(path)
    assert (again.members, again.key, again.shape, again.version, again.tree) == (
        topology.members, topology.key, topology.shape, 1, 7,
    )  # fmt: skip
    assert len({each.key for each in topology.members} | {topology.key}) == 11
    assert [each.name for each in tmp_path.iterdir()] == ["tree.toml"]


def test_an_excerpt_has_the_keys_of_neighbours_only() -> None:
    own = parse(render(excerpt(tree(), "proxy-0-0")))
    known = {each.name for each in own.members if each.key}
    # Itself, its parent, its own two children, and the two that it hedges.
    assert known == {"proxy-0-0", "sender", "receiver-0", "receiver-1", "receiver-2", "receiver-3"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("version = 1", "version = 0", ":1: version"),
        ("tree = 7", "tree = 65536", ":2: tree"),
        ("tree = 7", "tree = 7\nnoise = 1", "noise"),
        ("depth = 2\n", "", "depth"),
        ("hedge = 1", "hedge = ]", "not TOML"),
        ('role = "proxy"', 'role = "boss"', "role"),
        ('name = "proxy-0-0"', 'name = "a b"', "name"),
        ('key = "', 'key = "zz', "key"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(old: str, new: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse(render(tree()).replace(old, new, 1))


def test_a_file_is_read_to_its_bound_only() -> None:
    with pytest.raises(ConfigError, match="longer"):
        parse(" " * (FILE_BYTES_MAX + 1))


def test_a_file_that_is_missing_no_text_or_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree.toml"
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)
    save(path, tree())
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to everybody"):
        load(path)


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(FeedhandlerError):
        save(tmp_path / "none" / "tree.toml", tree())


@pytest.mark.parametrize("address", [("10.0.0.1", 7000), ("::1", 65535)])
def test_addresses_read_back(address: tuple[str, int]) -> None:
    assert parse_address(address_text(address)) == address


@pytest.mark.parametrize("text", ["", ":1", "host", "host:", "host:0", "host:65536", "host:1x"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


@pytest.mark.parametrize(("shape", "count"), [(SHAPE, 9), (SHAPE, 11), (Shape(1, 2, 0, 2), 2)])
def test_a_tree_wants_an_address_for_each_member(shape: Shape, count: int) -> None:
    with pytest.raises(UsageError, match="addresses"):
        generate(shape, [("h", port) for port in range(1, count + 1)])
