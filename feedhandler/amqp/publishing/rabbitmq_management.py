"""Check of a RabbitMQ exchange's bindings, by the management plugin, over HTTP.

RabbitMQ 3 settles as accepted what no queue is bound for, so a publisher that relies on its
confirmations needs to know beforehand. AMQP 1.0 shows that an exchange exists, and nothing of its
bindings. The management plugin does: `Management.problem` asks it for the exchange, its bindings,
and its alternate exchange, set at its declaration or by a policy.

The check is of one moment. A binding that is taken away later, or one that does not match every
routing key in use, is not seen; an alternate exchange with a queue behind it is the sure way.

It blocks, for `TIMEOUT_S` a request at most: call it in a thread. Credentials go into one header
and nowhere else; redirections are not followed, so that no other host gets them.
"""

import base64
import http.client
import json
import ssl
from typing import Any
from urllib.parse import quote, urlsplit

from feedhandler.amqp.security import fault_of

#: How long one request may take.
TIMEOUT_S = 5.0
#: Bytes read of an answer at most: many thousand bindings; one would do.
ANSWER_BYTES_MAX = 1 << 20


class Management:
    """The management plugin at a URL, such as http://broker:15672, as a user of a virtual host.

    `vhost`: "" is the default, "/". `tls`: trusted CAs for https, the system's where None.
    """

    def __init__(
        self, url: str, vhost: str, user: str, password: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._parts = urlsplit(url)
        self._vhost = vhost or "/"
        self._tls = tls
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}

    def problem(self, form: str, name: str) -> str | None:
        """Return why what is sent to an exchange or queue (`form`) may be dropped, in words; None
        where it is not."""
        question = self._problem_of_queue if form == "queue" else self._problem_of_exchange
        try:
            return question(name)
        except (OSError, http.client.HTTPException) as error:
            return f"the management API at {self._address} cannot be asked: {_words(error)}"
        except (ValueError, RecursionError):
            return f"what the management API at {self._address} answers is not its JSON"

    def _problem_of_queue(self, name: str) -> str | None:
        status, _ = self._get("queues", name)
        if status == 404:
            return f"there is no queue {name!r} in virtual host {self._vhost!r}"
        return None if status == 200 else self._refusal(status)

    def _problem_of_exchange(self, name: str) -> str | None:
        status, found = self._get("exchanges", name)
        if status == 404:
            return f"there is no exchange {name!r} in virtual host {self._vhost!r}"
        if status != 200:
            return self._refusal(status)
        found = _object(found)
        if _object(found.get("arguments", {})).get("alternate-exchange"):
            return None
        if policy := found.get("policy"):
            status, answer = self._get("policies", str(policy))
            definition = _object(answer).get("definition", {}) if status == 200 else {}
            if _object(definition).get("alternate-exchange"):
                return None
        status, bindings = self._get("exchanges", name, "/bindings/source")
        if status != 200:
            return self._refusal(status)
        if not bindings:
            return f"nothing is bound to exchange {name!r}, and it has no alternate exchange"
        return None

    def _get(self, kind: str, name: str, part: str = "") -> tuple[int, Any]:
        """Request the virtual host's object of this name; return the status and the decoded body. A
        list too long to read counts as not empty. Raises OSError, HTTPException or ValueError."""
        parts = self._parts
        path = f"/api/{kind}/{quote(self._vhost, safe='')}/{quote(name, safe='')}{part}"
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, parts.port, timeout=TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()
        if answer.status == 200 and len(body) == ANSWER_BYTES_MAX:
            return 200, [{}]
        return answer.status, json.loads(body) if answer.status == 200 else None

    @property
    def _address(self) -> str:
        parts = self._parts
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    def _refusal(self, status: int) -> str:
        hint = ": the user wants the management tag" if status in (401, 403) else ""
        return f"the management API at {self._address} answers {status}{hint}"


def _object(found: Any) -> dict[str, Any]:
    """Return what must be an object of JSON. Raises ValueError where it is something else."""
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {fault_of(error).reason}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
