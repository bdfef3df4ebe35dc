"""The client of a line by TCP, by its framing."""

from feedhandler.codecs.soupbin import Login
from feedhandler.ingest.lines import TcpServer
from feedhandler.ingest.tcp.length import LengthClient
from feedhandler.ingest.tcp.soupbin import SoupBinClient
from feedhandler.ingest.tcp.stream import StreamClient
from feedhandler.retrans.settings import RecoverySettings


def client_of(server: TcpServer, times: RecoverySettings, packet_bytes_max: int) -> StreamClient:
    """Make the client that a server's framing needs. Raises `UsageError` for wrong credentials."""
    if server.framing == "soupbin":
        login = Login(server.username, server.password, server.session, server.first)
        return SoupBinClient(times, login, packet_bytes_max)
    order = server.framing == "length-little"
    return LengthClient(times, packet_bytes_max, "little" if order else "big")
