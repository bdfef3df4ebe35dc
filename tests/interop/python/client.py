"""A stock proton client (`MessagingHandler` in a `Container`) that does what the test tells it.

It reads orders on stdin and tells on stdout what happened; the words are in
`tests/support/foreign_clients.py`.
"""

import base64
import json
import socket
import struct
import sys
import threading
from typing import Any

from proton import Condition, Delivery, Link
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector, LinkOption, Selector


class Attach(LinkOption):
    """Link option for a receiving link: whether its messages are to be sent settled."""

    def __init__(self, settled: bool) -> None:
        self.settled = settled

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = Link.SND_SETTLED if self.settled else Link.SND_UNSETTLED


def report(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def reason(condition: Condition | None) -> dict[str, str]:
    if condition is None:
        return {"condition": "", "description": ""}
    return {"condition": condition.name, "description": condition.description or ""}


class Obedient(MessagingHandler):
    """One method a word; what proton calls is reported."""

    def __init__(self) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=True)
        self.injector = EventInjector()
        self.links: dict[str, Link] = {}
        self.words: dict[str, str] = {}
        self.sessions: dict[str, Any] = {}
        self.deliveries: dict[str, list[Delivery]] = {}
        self.ending: set[str] = set()

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.container.selectable(self.injector)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        for line in sys.stdin:
            self.injector.trigger(ApplicationEvent("order", subject=json.loads(line)))
        self.injector.trigger(ApplicationEvent("order", subject={"do": "leave"}))

    def on_order(self, event: Any) -> None:
        order = event.subject
        getattr(self, f"do_{order.pop('do')}")(**order)

    # -- orders -----------------------------------------------------------------------------

    def do_connect(self, port: int, max_frame: int = 0, idle_ms: int = 0) -> None:
        options: dict[str, Any] = {"reconnect": False, "allowed_mechs": "ANONYMOUS"}
        if max_frame:
            options["max_frame_size"] = max_frame
        if idle_ms:
            options["heartbeat"] = idle_ms / 1000
        self.connection = self.container.connect(f"amqp://127.0.0.1:{port}", **options)

    def session_of(self, name: str) -> Any:
        if not name:
            return self.connection
        if name not in self.sessions:
            self.sessions[name] = self.connection.session()
            self.sessions[name].open()
        return self.sessions[name]

    def keep(self, word: str, link: Link) -> None:
        self.links[word], self.words[link.name], self.deliveries[word] = link, word, []

    def do_attach(
        self,
        link: str,
        address: str,
        settled: bool = True,
        session: str = "",
        name: str = "",
        selector: str = "",
    ) -> None:
        options: list[LinkOption] = [Attach(settled)]
        if selector:
            options.append(Selector(selector))
        where = self.session_of(session)
        made = self.container.create_receiver(where, address, name=name or link, options=options)
        self.keep(link, made)

    def do_dynamic(self, link: str) -> None:
        made = self.container.create_receiver(self.connection, None, name=link, dynamic=True)
        self.keep(link, made)

    def do_sender(self, link: str, address: str) -> None:
        self.keep(link, self.container.create_sender(self.connection, address, name=link))

    def do_credit(self, link: str, count: int) -> None:
        self.links[link].flow(count)

    def do_drain(self, link: str) -> None:
        self.links[link].drain(0)

    def do_outcome(self, link: str, place: int, what: str) -> None:
        delivery = self.deliveries[link][place]
        if what == "reject":
            delivery.local.condition = Condition("amqp:internal-error", "no")
        if what == "modify":
            delivery.local.failed = delivery.local.undeliverable = True
        delivery.update(
            {
                "accept": Delivery.ACCEPTED,
                "reject": Delivery.REJECTED,
                "release": Delivery.RELEASED,
                "modify": Delivery.MODIFIED,
            }[what]
        )
        delivery.settle()

    def do_detach(self, link: str) -> None:
        self.links[link].close()

    def do_end(self, session: str) -> None:
        self.sessions[session].close()

    def do_close(self) -> None:
        self.connection.close()

    def do_reset(self) -> None:
        sock = self.connection.transport._selectable._delegate
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        report("gone")

    def do_leave(self) -> None:
        sys.exit(0)

    # -- what proton tells ------------------------------------------------------------------

    def on_connection_opened(self, event: Any) -> None:
        report("opened")

    def on_link_opened(self, event: Any) -> None:
        link = event.link
        filters = link.remote_source.filter
        filters.rewind()
        names = [str(each) for each in (filters.get_dict() if filters.next() else {})]
        report(
            "attached",
            link=self.words[link.name],
            address=link.remote_source.address or "",
            filter=names,
            settled=link.remote_snd_settle_mode == Link.SND_SETTLED,
        )

    def on_link_closed(self, event: Any) -> None:
        report("detached", link=self.words[event.link.name], **reason(None))

    def on_link_error(self, event: Any) -> None:
        report("detached", link=self.words[event.link.name], **reason(event.link.remote_condition))
        event.link.close()

    def on_session_closed(self, event: Any) -> None:
        name = next((n for n, each in self.sessions.items() if each == event.session), "")
        report("ended", session=name)

    def on_connection_closed(self, event: Any) -> None:
        report("closed", **reason(None))

    def on_connection_error(self, event: Any) -> None:
        report("closed", **reason(event.connection.remote_condition))
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        report("failed", description=str(event.transport.condition))

    def on_disconnected(self, event: Any) -> None:
        # The library takes `amqp:connection:forced` for a lost connection and tells no handler.
        report("closed", **reason(event.connection.remote_condition))
        report("disconnected")

    def on_link_flow(self, event: Any) -> None:
        link = event.link
        if link.is_receiver and link.drain_mode and not link.draining():
            link.drain_mode = False
            report("drained", link=self.words[link.name], credit=link.credit)

    def on_message(self, event: Any) -> None:
        message, delivery = event.message, event.delivery
        word = self.words[event.receiver.name]
        self.deliveries[word].append(delivery)
        report(
            "message",
            link=word,
            subject=message.subject,
            id=bytes(message.id).hex(),
            content=str(message.content_type),
            number=message.group_sequence,
            body=base64.b64encode(bytes(message.body)).decode(),
            settled=bool(delivery.settled),
        )


Container(Obedient()).run()
