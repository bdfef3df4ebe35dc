"""Looking into a queue while its owner writes: nothing is found wrong, and nothing is disturbed."""

import json
import multiprocessing
from pathlib import Path

from feedhandler.cli.app import chosen
from feedhandler.journal import BlockingQueue
from feedhandler.terminal.console import run_guarded
from tests.support.journal_writer import SETTINGS, work

PATIENCE_S = 60.0
#: How often each command looks: the writer uses blocks anew all the while.
LOOKS = 6


def test_stat_list_and_verify_beside_a_writer_find_nothing_wrong(tmp_path: Path, capsys) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.journal_writer"])
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(str(tmp_path), 1, 1, there))
    child.start()
    there.close()
    counted = []
    try:
        assert here.poll(PATIENCE_S), "the writer did not open the queue"
        for _ in range(LOOKS):
            for verb in ("verify", "list", "stat"):
                code = run_guarded(chosen(["queue", verb, str(tmp_path), "--json"]))
                said = capsys.readouterr()
                assert code == 0, (verb, said.out[-500:], said.err)
                if verb == "stat":
                    counted.append(json.loads(said.out)["next_id"])
                here.recv()
                while here.poll():  # else the writer would wait for us
                    here.recv()
        assert child.is_alive()
    finally:
        child.kill()
        child.join(PATIENCE_S)
        here.close()
    assert counted == sorted(counted)
    assert counted[0] < counted[-1]
    with BlockingQueue(tmp_path, SETTINGS) as queue:
        assert queue.engine.report.items_damaged == 0
        assert len(list(queue.pending())) == queue.statistics()["pending"]
