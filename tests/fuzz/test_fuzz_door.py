"""The node's door: log-ins and TLS handshakes with mutated bytes.

The layers ahead of the engine by themselves, which the node's fuzz meets at its beginnings only: a
log-in must be read the same whole, byte by byte and in pieces; a handshake that went wrong ends
with a fault and nothing else.
"""

import random
import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from feedhandler.amqp.security import ServerTls
from feedhandler.amqp.serving.sasl import AMQP_HEADER, SASL_HEADER, SaslServer, State
from tests.fuzz.frame_mutator import RESPONSES, SASL_INIT, SASL_RESPONSE
from tests.fuzz.node_fuzz import GROWTH_BYTES_MAX, Run, resident_bytes
from tests.support.amqp_wire import Frame, Value, described

trustme = pytest.importorskip("trustme", reason="makes the certificates")

LOGINS, HANDSHAKES = 5_000, 600
#: Mutations of one log-in at most, and the bytes that sizes and constructors are made of.
CHANGES_MAX = 4
TELLING = (0, 1, 8, 0x40, 0x41, 0x43, 0x45, 0x53, 0x80, 0xA0, 0xA3, 0xB0, 0xC0, 0xD0, 0xFF)
#: What stands for the engine's bytes behind a log-in.
REST = AMQP_HEADER + bytes(40)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, dropped or doubled, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, CHANGES_MAX)):
        if not changed:
            break
        at = rng.randrange(len(changed))
        way = rng.randrange(6)
        if way < 3:
            changed[at] = rng.choice(TELLING) if way else rng.randrange(256)
        elif way == 3:
            del changed[at : at + rng.choice((1, 1, 4))]
        elif way == 4:
            changed[at:at] = changed[at : at + rng.choice((1, 8))]
        else:
            del changed[at:]
    return bytes(changed)


def login(rng: random.Random) -> bytes:
    """A client's log-in and what follows it, as it should be; some begin without one."""
    if rng.random() < 0.05:
        return REST
    response = Value(rng.choice((0xA0, 0xB0)), rng.choice(RESPONSES))
    mechanism = Value(rng.choice((0xA3, 0xB3)), rng.choice((b"PLAIN", b"PLAIN", b"ANONYMOUS")))
    fields = [mechanism, response, "host"]
    said = [Frame(0, described(SASL_INIT, *fields[: rng.randrange(1, 4)]), kind=1)]
    if rng.random() < 0.5:
        said.append(Frame(0, described(SASL_RESPONSE, response), kind=1))
    return SASL_HEADER + b"".join(each.encode() for each in said) + REST


def read(pieces: list[bytes], welcome: bool) -> tuple[Any, ...]:
    """All that a log-in comes to; what it asks for is decided at the end."""
    server = SaslServer(lambda: ("PLAIN", "ANONYMOUS"), bare=True)
    for piece in pieces:
        server.receive(piece)
    asked = server.asked and (server.asked.mechanism, server.asked.name, server.asked.password)
    before = server.state
    server.decide(welcome, "nobody")
    return before, server.state, asked, server.reason, server.data_to_send(), server.rest()


def test_a_damaged_log_in_is_read_the_same_in_whatever_pieces_it_comes(seed: int) -> None:
    rng = random.Random(seed)
    states: Counter[State] = Counter()
    for _ in range(LOGINS):
        data = login(rng)
        if rng.random() < 0.9:
            data = damaged(data, rng)
        welcome = rng.random() < 0.5
        whole = read([data], welcome)
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(5)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert read([bytes([byte]) for byte in data], welcome) == whole, data.hex()
        assert read(pieces, welcome) == whole, data.hex()
        states[whole[0]] += 1
    assert set(states) == set(State), "every state is one's end"


class Client:
    """A client's TLS, by hand."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def says(self, heard: bytes) -> bytes:
        """Its next words, once it has heard these; a first log-in behind the handshake."""
        self.incoming.write(heard)
        try:
            self.tls.do_handshake()
            self.tls.write(login(random.Random(len(heard))))
        except ssl.SSLError:
            pass
        return self.outgoing.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_damaged_handshake_ends_its_own_connection_only(
    version: ssl.TLSVersion, tmp_path: Path, seed: int
) -> None:
    rng, run = random.Random(seed), Run(seed)
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(made.cert_chain_pems[0].bytes())
    made.private_key_pem.write_to_path(str(key))
    run.node.gate.certificates = ServerTls(str(certificate), str(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    context.minimum_version = context.maximum_version = version
    faults: Counter[str] = Counter()
    settled = 0
    for turn in range(HANDSHAKES // 2):
        theirs, ours = socket.socketpair()
        theirs.setblocking(False)
        connection = run.welcome(ours, encrypted=True)
        client, harmed, heard = Client(context), rng.randrange(4), b""
        for flight in range(4):
            said = client.says(heard)
            if flight == harmed:
                said = damaged(said, rng) if said else rng.randbytes(rng.randrange(1, 99))
            try:
                theirs.sendall(said)
                if not connection.gone:
                    connection.on_readable()
                run.loop.turn()
                heard = theirs.recv(1 << 16)
            except OSError:
                heard = b""
        fault = connection.admission.tls and connection.admission.tls.fault
        faults[fault.reason if fault else ""] += 1
        theirs.close()
        if not connection.gone:
            connection.on_readable()
        if not connection.gone:
            connection.end()
        if turn % 50 == 0:
            run.market()
            settled = settled or (resident_bytes() if turn else 0)
    run.market()
    print(faults)
    assert run.node.connections == {run.watcher.connection}
    assert len(faults) > 3, "handshakes fail in several ways"
    assert faults[""] > HANDSHAKES // 20, "and some are done before it comes to that"
    assert resident_bytes() - settled < GROWTH_BYTES_MAX
