"""Check of a RabbitMQ exchange's bindings, by the management plugin, over HTTP.

RabbitMQ 3 settles as accepted what no queue is bound for, so a publisher that relies on its
confirmations needs to know beforehand. AMQP 1.0 shows that an exchange exists, and nothing of its
bindings. The management plugin does: `problem` asks it for the exchange, its bindings, and its
alternate exchange, set at its declaration or by a policy.

The check is of one moment. A binding that is taken away later, or one that does not match every
routing key in use, is not seen; an alternate exchange with a queue behind it is the sure way.

It blocks, for `TIMEOUT_S` a request at most: call it in a thread. Credentials go into one header
and nowhere else; redirections are not followed, so that no other host gets them.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from feedhandler.amqp.security import fault_of

#: How long one request may take.
TIMEOUT_S = 5.0
#: Bytes read of an answer at most: many thousand bindings; one would do.
ANSWER_BYTES_MAX = 1 << 20


def problem(
    management: str,
    vhost: str,
    exchange: str,
    user: str,
    password: str,
    tls: ssl.SSLContext | None = None,
) -> str | None:
    """Return why what is published to `exchange` may be dropped unrouted, in words; None where it
    is routed.

    `management`: the plugin's URL, such as http://broker:15672. `vhost`: "" is the default, "/".
    `tls`: trusted CAs for https, the system's where None.
    """
    return _asked(_problem, management, vhost or "/", exchange, user, password, tls)


def problem_of_queue(
    management: str,
    vhost: str,
    queue: str,
    user: str,
    password: str,
    tls: ssl.SSLContext | None = None,
) -> str | None:
    """Return why what is sent to `queue` may be dropped, in words; None where there is such a
    queue."""
    return _asked(_problem_of_queue, management, vhost or "/", queue, user, password, tls)


def _asked(question: Callable[..., str | None], management: str, *about: Any) -> str | None:
    """Return the question's answer, or why there is none."""
    try:
        return question(management, *about)
    except (OSError, http.client.HTTPException) as error:
        return f"the management API at {_address(management)} cannot be asked: {_words(error)}"
    except ValueError:
        return f"the management API at {_address(management)} answers what is no JSON"


def _problem_of_queue(
    management: str,
    vhost: str,
    queue: str,
    user: str,
    password: str,
    tls: ssl.SSLContext | None,
) -> str | None:
    path = f"/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}"
    status, _ = _get(management, path, _headers(user, password), tls)
    if status == 404:
        return f"there is no queue {queue!r} in virtual host {vhost!r}"
    return None if status == 200 else _refusal(management, status)


def _headers(user: str, password: str) -> dict[str, str]:
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def _problem(
    management: str,
    vhost: str,
    exchange: str,
    user: str,
    password: str,
    tls: ssl.SSLContext | None,
) -> str | None:
    path = f"/api/exchanges/{quote(vhost, safe='')}/{quote(exchange, safe='')}"
    headers = _headers(user, password)
    status, found = _get(management, path, headers, tls)
    if status == 404:
        return f"there is no exchange {exchange!r} in virtual host {vhost!r}"
    if status != 200:
        return _refusal(management, status)
    if found.get("arguments", {}).get("alternate-exchange"):
        return None
    if policy := found.get("policy"):
        at = f"/api/policies/{quote(vhost, safe='')}/{quote(policy, safe='')}"
        status, answer = _get(management, at, headers, tls)
        if status == 200 and answer.get("definition", {}).get("alternate-exchange"):
            return None
    status, bindings = _get(management, f"{path}/bindings/source", headers, tls)
    if status != 200:
        return _refusal(management, status)
    if not bindings:
        return f"nothing is bound to exchange {exchange!r}, and it has no alternate exchange"
    return None


def _get(
    management: str, path: str, headers: dict[str, str], tls: ssl.SSLContext | None
) -> tuple[int, Any]:
    """GET a path; return the status and the decoded body. A list too long to read counts as not
    empty. Raises OSError, HTTPException or ValueError."""
    parts = urlsplit(management)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=TIMEOUT_S, context=tls or ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
    finally:
        connection.close()
    if answer.status == 200 and len(body) == ANSWER_BYTES_MAX:
        return 200, [{}]
    return answer.status, json.loads(body) if answer.status == 200 else None


def _address(management: str) -> str:
    parts = urlsplit(management)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _refusal(management: str, status: int) -> str:
    hint = ": the user wants the management tag" if status in (401, 403) else ""
    return f"the management API at {_address(management)} answers {status}{hint}"


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {fault_of(error).reason}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
