"""Exchanges and queues declared in a broker of any kind, wherever it runs.

What it is for: AMQP 1.0 can declare next to nothing, so each kind of broker has a management
interface of its own. `BrokerAdmin` holds the address of one broker and its operations; each kind's
module implements them.

What it promises: a refusal of the management is a `BrokerFailed` of one line, without any password.
"""

import base64
import http.client
import json
import time
from typing import Any, ClassVar
from urllib.parse import quote

#: How long a management that does not answer is asked again: it comes up after the broker, where
#: that was just started.
ASK_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.05
#: Time-out of one request.
REQUEST_SECONDS = 10.0


class BrokerFailed(Exception):
    """A broker did not start, or its management refuses; the text is one line."""


class BrokerAdmin:
    """The management of one broker at `host`.

    `port` is AMQP's; `http_port` the management's, 0 where it has none over HTTP; `user` and
    `password` are those of a user who may declare in `vhost`.
    """

    #: As `[[publish]] kind` calls it.
    kind: ClassVar[str]
    #: The management's default port.
    HTTP_PORT: ClassVar[int] = 0
    #: How long its management may take to come up.
    patience_s = ASK_SECONDS

    def __init__(
        self, host: str, port: int, http_port: int, user: str, password: str, vhost: str
    ) -> None:
        self.host, self.port, self.http_port = host, port, http_port
        self.user, self.password, self.vhost = user, password, vhost

    @property
    def virtual_host(self) -> str | None:
        """The virtual host as the AMQP open frame's hostname; None where it is not sent."""
        return None

    @property
    def base_url(self) -> str:
        """The URL, password included, without a virtual host."""
        password = f":{quote(self.password, safe='')}" if self.password else ""
        who = f"{quote(self.user, safe='')}{password}@" if self.user else ""
        return f"amqp://{who}{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for a publisher, password included."""
        return self.base_url

    def version(self) -> str:
        """Return the version that the broker reports, with its name."""
        raise AssertionError("each kind has its own")

    def exchange(self, name: str, kind: str = "topic", **arguments: Any) -> None:
        """Declare a durable exchange, or what this kind has instead."""
        raise AssertionError("each kind has its own")

    def queue(
        self, name: str, exchange: str, *keys: str, durable: bool = True, bytes_max: int = 0
    ) -> None:
        """Declare a queue, bound to an exchange by each key; `bytes_max` 0: without a limit."""
        raise AssertionError("each kind has its own")

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        raise AssertionError("each kind has its own")

    def delete_exchange(self, name: str) -> None:
        """Remove an exchange."""
        raise AssertionError("each kind has its own")

    def source(self, queue: str) -> str:
        """Return the address that a consumer of a queue attaches to."""
        return queue

    def empty(self, queue: str) -> None:
        """Remove every message from a queue that has no consumer."""
        raise AssertionError("each kind has its own")

    def count(self, queue: str) -> int:
        """Count the messages in a queue, as the management knows them, which may lag behind."""
        raise AssertionError("each kind has its own")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send one JSON request to the management; return the decoded answer, None if empty.

        Tries again for `patience_s` while the management does not answer. Raises `BrokerFailed`.
        """
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return self._request(method, path, content, headers)
            except OSError as error:
                if time.monotonic() >= deadline:
                    where = f"{self.host}:{self.http_port}"
                    raise BrokerFailed(
                        f"the management at {where} does not answer: {error.strerror or error}"
                    ) from None
                time.sleep(ASK_AGAIN_SECONDS)

    def _request(self, method: str, path: str, content: str | None, headers: dict[str, str]) -> Any:
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=REQUEST_SECONDS)
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            answer_text = answer.read()
        except http.client.HTTPException as error:
            raise BrokerFailed(f"{method} {path}: no answer of a management: {error!r}") from None
        finally:
            connection.close()
        if answer.status >= 400:
            words = answer_text.decode("utf-8", "replace").strip()[:200]
            raise BrokerFailed(f"{method} {path}: {answer.status} {answer.reason}: {words}")
        return json.loads(answer_text) if answer_text else None
