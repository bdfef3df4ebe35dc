"""Requests to the management of a queue, one connection each."""

from typing import Any

import msgspec

from feedhandler.amqp.client import Ended
from feedhandler.amqp.identity import Identity, Login
from feedhandler.amqp.request import parse_endpoint
from feedhandler.amqp.working.connection import QueueConnection
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.keyed.definition import Definition

#: Status codes from here on: the request was refused.
REFUSALS = 400
INVALID, DIFFERENT = 400, 409


async def ask(
    url: str, queue: str, *, login: Login | None = None, **arguments: Any
) -> tuple[dict[str, Any], Any]:
    """Send a request to a queue's management; return the answer's properties, and its body. Raises
    `PeerError`."""
    connection = QueueConnection(Identity(parse_endpoint(url), login), lambda error: None)
    try:
        await connection.connect()
        return await connection.ask(queue, **arguments)
    except Ended as error:
        raise PeerError(f"{queue}: {error.message}", error.hint) from None
    finally:
        await connection.close()


async def create(
    url: str,
    queue: str,
    definition: Definition,
    *,
    dead: str = "",
    redeliveries_max: int | None = None,
    login: Login | None = None,
) -> bool:
    """Create a keyed queue; return False where an equal one exists. Raises `UsageError` where a
    different one exists, or the definition is invalid, and `PeerError`."""
    more: dict[str, Any] = {"dead": dead} if dead else {}
    if redeliveries_max is not None:
        more["redeliveries_max"] = redeliveries_max
    text = msgspec.json.encode(definition).decode()
    answer, _ = await ask(url, queue, login=login, operation="create", definition=text, **more)
    if answer.get("status-code", 0) in (INVALID, DIFFERENT):
        raise UsageError(f"queue {queue}: {answer.get('status-description')}", "")
    if answer.get("status-code", 0) >= REFUSALS:
        raise PeerError(f"queue {queue}: {answer.get('status-description')}", "")
    return answer.get("answer") == "created"
