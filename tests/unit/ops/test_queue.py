"""`feedhandler queue`: what it prints, what it answers with, and that looking changes nothing."""

import hashlib
import json
import os
from pathlib import Path

import proton
import pytest

from feedhandler.cli.app import chosen
from feedhandler.journal import BlockingQueue
from feedhandler.terminal.console import run_guarded
from tests.support.journal import SMALL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A queue with five items: one delivered, one cancelled."""
    with BlockingQueue(tmp_path, SMALL) as queue:
        queue.put_many([b"8=FIX.4.3\x0155=IBM\x01", b"b", b"c" * 500, b"\xff\x00", b"needle"])
        queue.delivered(queue.get().id)
        queue.cancel(2)
    return tmp_path


def run(*words: object) -> int:
    """The command's exit code."""
    return run_guarded(chosen(["queue", *map(str, words)]))


def bytes_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file's content, by file name."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_stat_counts_items_by_what_became_of_them(folder: Path, capsys) -> None:
    assert run("stat", folder, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert {figures[name] for name in ("pending", "delivered", "cancelled")} == {3, 1}
    assert figures["pending"] == 3
    assert figures["owner"] == "nobody"
    assert run("stat", folder) == 0
    assert "next_id         6" in capsys.readouterr().out


def test_list_shows_what_is_pending(folder: Path, capsys) -> None:
    assert run("list", folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines] == [3, 4, 5]
    assert lines[0].endswith("... (500 bytes)")
    assert lines[1].endswith("\\xff\\x00")
    assert run("list", folder, "--json", "--limit", 2) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [{"id": 3, "text": "c" * 500}, {"id": 4, "hex": "ff00"}]


def test_looking_changes_nothing_also_beside_the_owner(folder: Path, capsys) -> None:
    with BlockingQueue(folder, SMALL) as queue:
        queue.put(b"more")
        before = bytes_of(folder)
        assert run("stat", folder) == 0
        assert "process" in capsys.readouterr().out
        assert run("list", folder) == 0
        assert run("verify", folder) == 0
        assert bytes_of(folder) == before
        assert "4 pending), " in capsys.readouterr().out


def test_commands_that_change_it_need_the_queue_for_themselves(folder: Path, capsys) -> None:
    with BlockingQueue(folder, SMALL):
        for words in (("cancel", folder, 3), ("drain", folder, "--out", folder / "x"),
                      ("repair", folder)):  # fmt: skip
            assert run(*words) == 2
            assert "open already: process" in capsys.readouterr().err


def test_cancel_tells_what_came_of_each(folder: Path, capsys) -> None:
    assert run("cancel", folder, 3) == 0
    assert run("cancel", folder, 1, 2, 4, 99) == 1
    out = capsys.readouterr().out.split()
    assert out == ["3", "cancelled", "1", "delivered", "2", "cancelled", "4", "cancelled",
                   "99", "unknown"]  # fmt: skip
    assert run("cancel", folder, "--all") == 0
    assert "1 cancelled, 1 delivered" in capsys.readouterr().out
    assert run("cancel", folder) == 2
    assert run("cancel", folder, 3, "--all") == 2


def test_drain_moves_what_is_pending_into_a_file(folder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "orders.jsonl"
    assert run("drain", folder, "--out", out) == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [3, 4, 5]
    assert run("drain", folder, "--out", out) == 0
    assert "0 items moved" in capsys.readouterr().out


def flip(path: Path, at: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_verify_finds_an_item_that_decayed(folder: Path, capsys) -> None:
    assert run("verify", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["items"] == 5
    block = folder / "block-000001.queue"
    flip(block, block.read_bytes().index(b"needle"))
    assert run("verify", folder) == 1
    said = capsys.readouterr()
    assert "1 things do not verify" in said.out
    assert "items 5 are damaged" in said.err
    assert run("list", folder) == 0
    assert "needle" not in capsys.readouterr().out


def test_repair_makes_control_file_header_and_tail_anew(folder: Path, capsys) -> None:
    flip(folder / "control", 40)
    flip(folder / "block-000001.queue", 20)
    flip(folder / "block-000002.queue", (64 << 10) - 4096 + 20)
    assert run("stat", folder) == 1
    assert "feedhandler queue repair" in capsys.readouterr().err
    assert run("repair", folder) == 0
    said = capsys.readouterr().out
    assert "control file made from 2 blocks" in said
    assert "block-000001.queue: header written again" in said
    assert "block-000002.queue: tail written again" in said
    assert "3 items pending; 0 items" in said
    assert run("verify", folder) == 0
    assert run("repair", folder) == 0


def test_repair_finds_blocks_in_other_folders(tmp_path: Path, capsys) -> None:
    queue, other = tmp_path / "queue", tmp_path / "other"
    with BlockingQueue(queue, SMALL) as opened:
        opened.put(b"a")
    other.mkdir()
    (queue / "block-000002.queue").rename(other / "block-000002.queue")
    assert run("stat", queue) == 1
    assert "is missing" in capsys.readouterr().err
    (queue / "control").unlink()
    assert run("repair", queue, "--path", other) == 0
    assert run("list", queue) == 0
    assert "a" in capsys.readouterr().out


def test_repair_does_not_put_two_queues_together_or_make_one_of_nothing(
    folder: Path, tmp_path: Path, capsys
) -> None:
    with BlockingQueue(tmp_path / "second", SMALL):
        pass
    (folder / "control").unlink()
    assert run("repair", folder, "--path", tmp_path / "second") == 1
    assert "blocks of 2 queues" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run("repair", tmp_path / "empty") == 2
    assert not list((tmp_path / "empty").iterdir())
    assert run("repair", folder, "--path", tmp_path / "nowhere") == 2
    assert run("repair", tmp_path / "nowhere") == 2


@pytest.mark.parametrize("verb", ["stat", "list", "verify", "cancel", "drain"])
def test_a_folder_without_a_queue_is_reported(verb: str, tmp_path: Path, capsys) -> None:
    more = {"cancel": ["1"], "drain": ["--out", str(tmp_path / "x")]}.get(verb, [])
    assert run(verb, tmp_path, *more) == 2
    assert "no queue here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_amqp_messages_are_listed_by_message_id_and_body_while_the_queue_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = bytes(proton.Message(id="ORD1", body="35=D\x0155=IBM\x01").encode())
    with BlockingQueue(tmp_path, SMALL) as queue:
        queue.put(message)
        assert run("list", tmp_path) == 0
        assert "ORD1  35=D|55=IBM|" in capsys.readouterr().out
        assert run("list", tmp_path, "--json") == 0
    item = json.loads(capsys.readouterr().out)
    assert (item["message_id"], item["hex"]) == ("ORD1", message.hex())


@pytest.mark.parametrize("verb", ["stat", "list", "verify", "cancel", "drain"])
def test_a_damaged_control_file_is_a_finding_and_no_peers_refusal(
    verb: str, folder: Path, tmp_path: Path, capsys
) -> None:
    flip(folder / "control", 40)
    more = {"cancel": ["1"], "drain": ["--out", str(tmp_path / "x")]}.get(verb, [])
    assert run(verb, folder, *more) == 1
    assert "control: is damaged (`feedhandler queue repair`" in capsys.readouterr().err


def test_a_pipe_cannot_be_drained_into(folder: Path, tmp_path: Path, capsys) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run("drain", folder, "--out", pipe) == 2
    assert "is no file (what is moved must be on a disk" in capsys.readouterr().err


def test_a_file_that_cannot_be_drained_into_is_the_callers_to_mend(folder: Path, capsys) -> None:
    assert run("drain", folder, "--out", folder / "nowhere" / "x") == 2
    assert "no such file or directory (check --out)" in capsys.readouterr().err
    assert run("stat", folder, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pending"] == 3
