"""A retransmission server that has every packet of the load: it makes each when it is asked.

    python -m bench.rts PORT

Prints `ready` once it listens, and what it served as one JSON line on SIGTERM. The server is the
product's own (`retrans.server`); only its store is made up, so that a load of any length needs no
memory and the server no copy of the load.
"""

import argparse
import asyncio
import json
import signal
import struct

import uvloop

from bench.rig import SEQUENCE_OFFSET, SERVICE, templates
from feedhandler.codecs import load_feed
from feedhandler.retrans.server import RequestServer
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.tcp import serve

#: No load gets this far.
NUMBERS_END = 1 << 31


class EveryPacket:
    """Packet store for `RequestServer`, with packets that are made when asked for."""

    first = 1
    end = NUMBERS_END
    epoch = 0

    def __init__(self) -> None:
        self._packet = bytearray(templates()[0].payload)

    def covers(self, first: int, end: int) -> bool:
        """Return whether it has everything."""
        return self.first <= first and end <= self.end

    def packets(self, first: int, end: int) -> list[tuple[int, int, bytes]]:
        """Return (sequence, next sequence, bytes) of each."""
        packets = []
        for sequence in range(first, end):
            struct.pack_into(">I", self._packet, SEQUENCE_OFFSET, sequence)
            packets.append((sequence, sequence + 1, bytes(self._packet)))
        return packets


async def main(port: int) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    stores = {SERVICE: EveryPacket()}
    server = RequestServer(load_feed("euronext-utp-md"), stores, ServerSettings())  # type: ignore[arg-type]
    listener = await serve(server, "127.0.0.1", port)
    print("ready", flush=True)
    await stop.wait()
    await listener.close()
    print(json.dumps(dict(server.counts)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    uvloop.run(main(parser.parse_args().port))
