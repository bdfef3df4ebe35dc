"""Subscribes by TLS with a user and a password, and goes on where it ended the last time.

python resume.py amqps://ann@gateway1:5671 'euronext.104?quality=0' ca.pem password.txt tag.txt
"""

import struct
import sys
from pathlib import Path
from urllib.parse import urlsplit

from proton import SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import Container


class Resuming(MessagingHandler):
    """Prints each packet's number and keeps its tag; ends after `count` of them, or never."""

    def __init__(self, url: str, address: str, files: list[str], count: int | None) -> None:
        super().__init__(prefetch=1000)
        self.url, self.address, self.left = url, address, count
        self.ca, self.password, self.tag = files[0], Path(files[1]), Path(files[2])

    def on_start(self, event) -> None:
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(self.ca)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        parts = urlsplit(self.url)
        connection = event.container.connect(
            f"amqps://{parts.hostname}:{parts.port or 5671}",
            ssl_domain=domain,
            user=parts.username,
            password=self.password.read_text().strip(),
            allowed_mechs="PLAIN",
            reconnect=False,
        )
        address = self.address
        if self.tag.exists():
            address += ("&" if "?" in address else "?") + f"from={self.tag.read_text()}"
        event.container.create_receiver(connection, address)

    def on_message(self, event) -> None:
        if self.left == 0:
            return  # it was on its way as we closed
        tag = bytes(event.message.id)
        service, sequence = struct.unpack_from(">HQ", tag, 6)
        print(f"packet {service} {sequence}", flush=True)
        self.tag.write_text(tag.hex())  # once the packet is dealt with
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                event.connection.close()

    def on_link_error(self, event) -> None:
        condition = event.link.remote_condition
        raise SystemExit(f"refused: {condition.name}: {condition.description}")

    def on_transport_error(self, event) -> None:
        raise SystemExit(f"no connection: {event.transport.condition}")


if __name__ == "__main__":
    url, address, *rest = sys.argv[1:]
    count = int(rest[3]) if len(rest) > 3 else None
    Container(Resuming(url, address, rest[:3], count)).run()
