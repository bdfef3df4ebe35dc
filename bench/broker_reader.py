"""Read a queue of RabbitMQ 3 to its last message, with proton's own messaging handler.

    python -m bench.broker_reader PORT QUEUE <password

Nothing is accepted, so that a second read finds everything again. Prints one JSON line: the
sequence numbers found, as ranges; how many messages came a second time (known by their message-id);
how many of those differ from the first; how many first copies were out of order. Exit code 1 where
the connection broke off.
"""

import argparse
import json
import struct
import sys
from typing import Any

from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.support.brokers import USER, VHOST
from tests.support.brokers.clients import LAST

CREDIT = 2000


class Reader(MessagingHandler):
    """The ledger of one queue."""

    def __init__(self, port: int, queue: str, password: str) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.port, self.queue, self.password = port, queue, password
        self.bodies: dict[bytes, int] = {}
        self.sequences: list[int] = []
        self.doubled = self.differing = self.disordered = self.came = 0
        self.complete = False

    def on_start(self, event: Any) -> None:
        self.connection = event.container.connect(
            f"amqp://{USER}@127.0.0.1:{self.port}",
            user=USER,
            password=self.password,
            virtual_host=f"vhost:{VHOST}",
            allowed_mechs="PLAIN",
            reconnect=False,
        )
        receiver = event.container.create_receiver(self.connection, f"/amq/queue/{self.queue}")
        receiver.flow(CREDIT)

    def on_message(self, event: Any) -> None:
        message = event.message
        self.came += 1
        if self.came % (CREDIT // 2) == 0:
            event.receiver.flow(CREDIT // 2)
        if message.id == LAST:
            self.complete = True
            self.connection.close()
        elif not message.subject.endswith(".quality"):
            self._count(bytes(message.id), hash(bytes(message.body)))

    def _count(self, tag: bytes, body: int) -> None:
        first = self.bodies.setdefault(tag, body)
        sequence = struct.unpack(">IHHQH", tag)[3]
        if len(self.bodies) > len(self.sequences):
            self.disordered += bool(self.sequences) and sequence <= self.sequences[-1]
            self.sequences.append(sequence)
        else:
            self.doubled += 1
            self.differing += first != body

    def ranges(self) -> list[list[int]]:
        """Return the first and last number of each run of sequence numbers found."""
        runs: list[list[int]] = []
        for sequence in sorted(self.sequences):
            if runs and runs[-1][1] == sequence - 1:
                runs[-1][1] = sequence
            else:
                runs.append([sequence, sequence])
        return runs


def main() -> int:
    """Read and report; return 1 where the end was not reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.broker_reader", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("queue")
    arguments = parser.parse_args()
    reader = Reader(arguments.port, arguments.queue, sys.stdin.read())
    Container(reader).run()
    figures = {
        "ranges": reader.ranges(),
        "doubled": reader.doubled,
        "differing": reader.differing,
        "disordered": reader.disordered,
    }
    print(json.dumps(figures))
    return 0 if reader.complete else 1


if __name__ == "__main__":
    sys.exit(main())
