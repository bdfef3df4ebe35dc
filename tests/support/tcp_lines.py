"""A simulated server of a line by TCP: SoupBinTCP sessions, or packets behind their lengths.

`SoupSession` is one client's session without I/O; `TcpFeed` listens on loopback and can cut its
connections at any byte.
"""

import asyncio
from collections.abc import Callable

from feedhandler.codecs import soupbin
from feedhandler.codecs.soupbin import Login, LoginAccepted, SoupStream

SESSION, USER, PASSWORD = "SESSION001", "MEUSER", "SECRET"


class SoupSession:
    """One connection of a client to a session whose messages are `messages`, which may grow."""

    def __init__(self, messages: list[bytes], session: str = SESSION) -> None:
        self.messages, self.session = messages, session
        self.logins: list[Login] = []
        self.next = 0
        self.closed = False
        self._stream = SoupStream(soupbin.FROM_CLIENT)

    def feed(self, data: bytes) -> bytes:
        """Take in what the client sent; return the answers."""
        packets, fault = self._stream.feed(data)
        assert not fault, fault
        answers = b""
        for kind, payload in packets:
            if kind == soupbin.LOGIN_REQUEST:
                answers += self._login(Login.decode(payload))
            self.closed |= kind == soupbin.LOGOUT_REQUEST
        return answers

    def _login(self, login: Login) -> bytes:
        self.logins.append(login)
        reason = b""
        if (login.username, login.password) != (USER, PASSWORD):
            reason = soupbin.NOT_AUTHORIZED
        elif login.session not in ("", self.session):
            reason = soupbin.NO_SESSION
        if reason:
            self.closed = True
            return soupbin.packet(soupbin.LOGIN_REJECTED, reason)
        self.next = login.number or max(len(self.messages), 1)
        return LoginAccepted(self.session, self.next).encode() + self.go_on()

    def go_on(self) -> bytes:
        """The messages that the client has not been sent yet."""
        if not self.next:
            return b""
        sent = self.messages[self.next - 1 :]
        self.next += len(sent)
        return b"".join(soupbin.packet(soupbin.SEQUENCED, message) for message in sent)


class TcpFeed:
    """A server on loopback. `send` gives every client what is new.

    `cut_after` has, for each coming connection, how many bytes it is given before it is cut; those
    behind the list stay. `framed` makes what a client is sent of a packet, for `length`.
    """

    def __init__(
        self,
        messages: list[bytes] | None = None,
        framed: Callable[[bytes], bytes] | None = None,
        session: str = SESSION,
    ) -> None:
        self.messages = [] if messages is None else messages
        self.session = session
        self.cut_after: list[int] = []
        self.address = ""
        self.cuts = 0
        self.logouts = 0
        self.logins: list[Login] = []
        self.clients: set[asyncio.StreamWriter] = set()
        self._framed = framed
        self._sessions: dict[asyncio.StreamWriter, SoupSession] = {}
        self._left: dict[asyncio.StreamWriter, int] = {}
        self._server: asyncio.Server
        self._beating: asyncio.Task[None]

    async def __aenter__(self) -> "TcpFeed":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beating.cancel()
        self._server.close()
        for writer in list(self.clients):
            writer.transport.abort()

    def send(self, message: bytes) -> None:
        """Give every client the next message, or packet."""
        self.messages.append(message)
        for writer in list(self.clients):
            if self._framed is not None:
                self._write(writer, self._framed(message))
            elif writer in self._sessions:
                self._write(writer, self._sessions[writer].go_on())

    async def _beat(self) -> None:
        """Send every client, logged in where that is needed, a heartbeat each second."""
        while True:
            await asyncio.sleep(soupbin.HEARTBEAT_NS / 1e9)
            for writer in list(self.clients):
                if self._framed is not None:
                    self._write(writer, self._framed(b""))
                elif self._sessions[writer].next:
                    self._write(writer, soupbin.packet(soupbin.SERVER_HEARTBEAT))

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer not in self.clients:
            return
        left = self._left.get(writer)
        if left is None or len(data) <= left:
            writer.write(data)
            if left is not None:
                self._left[writer] = left - len(data)
            return
        writer.write(data[:left])
        self.cuts += 1
        self.clients.discard(writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut_after:
            self._left[writer] = self.cut_after.pop(0)
        session = SoupSession(self.messages, self.session)
        self.clients.add(writer)
        self._sessions[writer] = session
        try:
            while data := await reader.read(65_536):
                if self._framed is None:
                    answer = session.feed(data)
                    self.logins += session.logins
                    session.logins.clear()
                    self._write(writer, answer)
                if session.closed:
                    self.logouts += session.next > 0
                    break
        except OSError:
            pass  # cut
        self.clients.discard(writer)
        del self._sessions[writer]
        writer.close()
