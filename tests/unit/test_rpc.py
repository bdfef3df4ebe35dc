"""Requests to a process: whatever is asked gets an answer, and the gateway's loop stays free."""

import asyncio
import contextlib
import functools
import json
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
import zmq
import zmq.asyncio

from feedhandler import rpc
from feedhandler.codecs.errors import ConfigError, PeerError, UsageError
from feedhandler.rpc import REQUEST_BYTES_MAX, Caller, ControlSocket, Verbs, kept

PATIENCE_S = 60.0
ask = functools.partial(rpc.ask, timeout_s=PATIENCE_S)
SNAPSHOT = {"name": "gate", "channels": [{"service": 104, "quality": "OK"}]}


def refuse(_: Mapping[str, Any]) -> Any:
    raise UsageError("not today", "ask tomorrow")


def break_down(_: Mapping[str, Any]) -> Any:
    raise RuntimeError("pretended")


VERBS: dict[str, rpc.Verb] = {
    "status": lambda request: SNAPSHOT,
    "echo": lambda request: request.get("say"),
    "refuse": refuse,
    "break": break_down,
    "unsayable": lambda request: object(),
}


def reply_to(verbs: Verbs, request: bytes) -> dict[str, Any]:
    reply = verbs.reply(request)
    assert b"\n" not in reply
    return dict(json.loads(reply))


# -- the verbs -------------------------------------------------------------------------------


def test_a_verb_is_answered() -> None:
    verbs = Verbs(VERBS)
    assert reply_to(verbs, b'{"do": "status"}') == {"ok": True, "answer": SNAPSHOT}
    assert reply_to(verbs, b'{"do":"echo","say":[1,"two"]}') == {"ok": True, "answer": [1, "two"]}
    assert (verbs.answered, verbs.refused) == (2, 0)


@pytest.mark.parametrize(
    ("request_bytes", "error", "hint"),
    [
        (b"", "not JSON", '{"do": "status"}'),
        (b"status", "not JSON", '{"do": "status"}'),
        (b"\xff\xfe", "not JSON", '{"do": "status"}'),
        (b'{"do": "status"', "not JSON", '{"do": "status"}'),
        (b"[" * 60_000, "not JSON", '{"do": "status"}'),
        (b'["status"]', "no verb", '{"do": "status"}'),
        (b"{}", "no verb", '{"do": "status"}'),
        (b'{"do": 7}', "no verb", '{"do": "status"}'),
        (b'{"do": "halt"}', "unknown verb 'halt'", "verbs: break, echo, refuse, status"),
        (b'{"do": "' + b"x" * 9_000 + b'"}', "unknown verb 'xxx", "verbs: "),
        (b" " * (REQUEST_BYTES_MAX + 1), "a request of 65,537 bytes", "at most 65,536"),
        (b'{"do": "refuse"}', "not today", "ask tomorrow"),
        (b'{"do": "break"}', "internal error: RuntimeError: pretended", "please report it"),
        (b'{"do": "unsayable"}', "internal error: TypeError", "please report it"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_its_reason(
    request_bytes: bytes, error: str, hint: str
) -> None:
    verbs = Verbs(VERBS)
    refusal = reply_to(verbs, request_bytes)
    assert refusal["ok"] is False
    assert error in refusal["error"]
    assert hint in refusal["hint"]
    assert len(refusal["error"]) < 300
    assert (verbs.answered, verbs.refused) == (0, 1)


def test_any_bytes_get_a_reply() -> None:
    verbs = Verbs(VERBS)
    draw = random.Random(17)
    whole = b'{"do": "echo", "say": {"a": [1, 2.5, null, "\\u00e9"]}}'
    for _ in range(3_000):
        request = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            request[draw.randrange(len(request))] = draw.randrange(256)
        assert reply_to(verbs, bytes(request[: draw.randrange(len(request) + 1)]))["ok"] in (
            True,
            False,
        )


def test_a_costly_answer_is_kept_for_a_while() -> None:
    made: list[int] = []
    now = [1_000]

    def make() -> int:
        made.append(len(made))
        return made[-1]

    verbs = Verbs({"status": kept(make, keep_ns=50, now_ns=lambda: now[0])})
    answers = []
    for step in (0, 49, 1, 10, 50):
        now[0] += step
        answers.append(reply_to(verbs, b'{"do":"status"}')["answer"])
    assert answers == [0, 0, 1, 1, 2]


# -- the socket ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(bind: str, verbs: Mapping[str, rpc.Verb] = VERBS) -> AsyncIterator[Any]:
    control_socket = ControlSocket(bind, verbs)
    control_socket.open()
    try:
        yield control_socket
    finally:
        control_socket.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Runs a coroutine on either loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def on_loop(coroutine: Any) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(coroutine, PATIENCE_S))

    return on_loop


@pytest.fixture(params=["ipc", "tcp", "tcp6"])
def bind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "ipc": f"ipc://{tmp_path}/gate.ipc",
        "tcp": "tcp://127.0.0.1:0",
        "tcp6": "tcp://[::1]:0",
    }[request.param]


async def test_a_command_gets_its_answer(run: Callable[[Any], Any], bind: str) -> None:
    async with served(bind) as gate:
        assert await asyncio.to_thread(ask, gate.endpoint) == SNAPSHOT
        request = {"do": "echo", "say": "hello"}
        assert await asyncio.to_thread(ask, gate.endpoint, request) == "hello"
        with pytest.raises(PeerError, match=r"unknown verb 'halt' \(verbs: "):
            await asyncio.to_thread(ask, gate.endpoint, "halt")
        assert gate.counts == {"answered": 2, "refused": 1}


async def test_a_burst_of_many_clients_is_answered_to_the_last(run: Callable[[Any], Any]) -> None:
    """An edge-triggered descriptor tells once: nothing may be left lying, nothing blocks."""
    each, clients = 50, 6
    async with served("tcp://127.0.0.1:0") as gate:
        beats = 0

        def burst(number: int) -> None:
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                dealer.connect(gate.endpoint)
                for turn in range(each):
                    body = msgspec.json.encode({"do": "echo", "say": [number, turn]})
                    dealer.send_multipart([b"", body] if number % 2 else [body])
                for turn in range(each):
                    assert dealer.poll(int(PATIENCE_S * 1000))
                    reply = msgspec.json.decode(dealer.recv_multipart()[-1])
                    assert reply == {"ok": True, "answer": [number, turn]}

        waiting = [asyncio.create_task(asyncio.to_thread(burst, n)) for n in range(clients)]
        while not all(task.done() for task in waiting):
            beats += 1
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert beats > 1
        assert gate.counts["answered"] == each * clients


async def test_requests_that_came_before_the_loop_looked_are_answered(
    run: Callable[[Any], Any], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/early.ipc"
    answers: list[Any] = []
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.connect(endpoint)
        client.send(b'{"do": "status"}')
        async with served(endpoint):
            while not client.poll(0):
                await asyncio.sleep(0)
            answers.append(msgspec.json.decode(client.recv()))
    assert answers == [{"ok": True, "answer": SNAPSHOT}]


async def test_strange_clients_do_no_harm(run: Callable[[Any], Any]) -> None:
    """Frames in odd numbers, an oversized request, one that breaks the bound, noise, silence."""
    async with served("tcp://127.0.0.1:0") as gate:
        host, port = gate.endpoint.removeprefix("tcp://").split(":")

        def misbehave() -> list[Any]:
            replies = []
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.connect(gate.endpoint)
                for frames in (
                    [b""],
                    [b"", b"", b""],
                    [b"a", b"b", b"c", b"d"],
                    [b"x" * (REQUEST_BYTES_MAX + 1)],
                ):
                    dealer.send_multipart(frames)
                    assert dealer.poll(int(PATIENCE_S * 1000))
                    replies.append(msgspec.json.decode(dealer.recv_multipart()[-1]))
                dealer.send(b"x" * (rpc.FRAME_BYTES_MAX + 1))
            with socket.create_connection((host, int(port))) as noise:
                noise.sendall(bytes(range(256)) * 8)
            with socket.create_connection((host, int(port))) as silent:
                silent.sendall(b"\xff")
            with zmq.Context() as context, context.socket(zmq.REQ) as gone:
                gone.setsockopt(zmq.LINGER, 100)
                gone.connect(gate.endpoint)
                gone.send(b'{"do": "status"}')
            return replies

        replies = await asyncio.to_thread(misbehave)
        assert [reply["ok"] for reply in replies] == [False] * 4
        assert "65,537 bytes" in replies[-1]["error"]
        assert await asyncio.to_thread(ask, gate.endpoint) == SNAPSHOT


async def test_a_client_that_takes_no_replies_costs_bounded_memory(
    run: Callable[[Any], Any],
) -> None:
    big = "x" * 60_000
    async with served("tcp://127.0.0.1:0", {"big": lambda _: big, "status": lambda _: 1}) as g:
        with zmq.Context() as context, context.socket(zmq.DEALER) as deaf:
            deaf.setsockopt(zmq.LINGER, 0)
            deaf.setsockopt(zmq.RCVHWM, 1)
            deaf.setsockopt(zmq.RCVBUF, 4096)
            deaf.connect(g.endpoint)
            sent = 0
            while sent < 2_000:
                try:
                    deaf.send(b'{"do": "big"}', zmq.DONTWAIT)
                    sent += 1
                except zmq.Again:
                    pass
                await asyncio.sleep(0)
            while g.counts["answered"] < sent:
                await asyncio.sleep(0)
            assert await asyncio.to_thread(ask, g.endpoint) == 1


async def test_an_endpoint_that_cannot_be_had_is_reported_at_the_start(tmp_path: Path) -> None:
    async def refusal(bind: str) -> str:
        with pytest.raises(ConfigError) as caught:
            ControlSocket(bind, VERBS).open()
        assert "\n" not in str(caught.value)
        assert "choose a free one, or leave control.bind empty" in str(caught.value)
        return str(caught.value)

    path = f"ipc://{tmp_path}/gate.ipc"
    async with served(path), served("tcp://127.0.0.1:0") as gate:
        assert "already in use" in await refusal(path)
        assert "address already in use" in await refusal(gate.endpoint)
        assert await asyncio.to_thread(ask, path) == SNAPSHOT, "it was not taken away"
    assert "cannot bind" in await refusal(f"ipc://{tmp_path}/missing/gate.ipc")
    assert "cannot bind" in await refusal(f"ipc://{tmp_path}/{'x' * 200}")
    assert "cannot bind" in await refusal("tcp://192.0.2.1:5572")
    assert not (tmp_path / "gate.ipc").exists(), "it is tidied away"
    (tmp_path / "gate.ipc").touch()
    async with served(path):
        assert await asyncio.to_thread(ask, path) == SNAPSHOT, "a dead one's path is free"


async def test_closing_twice_or_before_opening_does_nothing() -> None:
    never = ControlSocket("tcp://127.0.0.1:0", VERBS)
    never.close()
    async with served("tcp://127.0.0.1:0") as gate:
        gate.close()


async def test_a_verb_that_waits_holds_up_no_other_and_ends_with_the_socket(
    run: Callable[[Any], Any],
) -> None:
    ended: list[str] = []

    async def wait(request: Mapping[str, Any]) -> Any:
        try:
            await asyncio.sleep(request["seconds"])
        finally:
            ended.append("waited")
        return refuse(request)

    async with served("tcp://127.0.0.1:0", {**VERBS, "wait": wait}) as gate:
        with callers(gate.endpoint, 2) as (first, second):
            with pytest.raises(UsageError, match="not today"):
                await first.ask("wait", seconds=0)
            waiting = asyncio.create_task(first.ask("wait", seconds=PATIENCE_S))
            while not gate._tasks:
                await asyncio.sleep(0)
            assert await second.ask("echo", say="hello") == "hello"
            await gate.closed()
            assert ended == ["waited"] * 2
            assert gate.counts == {"answered": 1, "refused": 1}
            waiting.cancel()


# -- the clients' side on a loop ------------------------------------------------------------


@contextlib.contextmanager
def callers(endpoint: str, count: int = 1) -> Iterator[list[Caller]]:
    context = zmq.asyncio.Context()
    try:
        yield [Caller(context, endpoint, "role") for _ in range(count)]
    finally:
        context.destroy(linger=0)


async def test_a_caller_waits_for_who_will_listen_and_tells_whose_fault_an_error_is(
    run: Callable[[Any], Any], tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/role"
    with callers(endpoint) as (caller,):
        asking = asyncio.create_task(caller.ask("echo", say=1))
        await asyncio.sleep(0)
        async with served(endpoint):
            assert await asking == 1
            with pytest.raises(UsageError, match=r"^role: not today \(ask tomorrow\)$"):
                await caller.ask("refuse")
            with pytest.raises(PeerError, match=r"^role: internal error: RuntimeError"):
                await caller.ask("break")
        with pytest.raises(TimeoutError):
            await caller.ask("echo", 0.01)


# -- the commands' side ----------------------------------------------------------------------


def complaint(endpoint: str, **options: Any) -> str:
    with pytest.raises(PeerError) as caught:
        ask(endpoint, **options)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_endpoint_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match=r"is no endpoint \(a gateway's control\.bind"):
        ask("gateway")


def test_a_gateway_that_is_not_there_is_reported_at_once(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "connection refused (start it" in complaint(f"tcp://127.0.0.1:{port}")
    assert "no such path (start it" in complaint(f"ipc://{tmp_path}/gate.ipc")
    assert "no gateway at" in complaint("tcp://nowhere.invalid:5572")


def test_a_gateway_that_does_not_answer_in_time_is_reported() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        endpoint = f"tcp://127.0.0.1:{deaf.getsockname()[1]}"
        assert "no answer from" in complaint(endpoint, timeout_s=0.5)


def test_a_gateway_that_goes_before_it_answers_is_reported_then() -> None:
    with socket.socket() as going:
        going.bind(("127.0.0.1", 0))
        going.listen()
        endpoint = f"tcp://127.0.0.1:{going.getsockname()[1]}"

        def go() -> None:
            for _ in range(2):  # who looks whether it is there, and who asks
                going.accept()[0].close()
            going.close()

        gone = threading.Thread(target=go)
        gone.start()
        assert "connection refused" in complaint(endpoint, timeout_s=PATIENCE_S)
        gone.join()


@pytest.mark.parametrize("reply", [b"", b"hello", b"[1]", b'{"ok": false}', b"{}"])
def test_another_programs_answer_is_reported_as_such(reply: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.REP) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")

        def answer() -> None:
            other.recv()
            other.send(reply)

        answering = threading.Thread(target=answer)
        answering.start()
        assert "not as a gateway does" in complaint(f"tcp://127.0.0.1:{port}")
        answering.join()
