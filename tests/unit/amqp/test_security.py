"""TLS over memory: two sessions back to back, and all that may be wrong with a certificate."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feedhandler.amqp.security import (
    TLS_HEADER,
    ClientTls,
    ServerTls,
    TlsFault,
    TlsSession,
    fault_of,
)
from feedhandler.codecs.errors import ConfigError
from tests.support.security import Certificates


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module")
def node(ours: Certificates) -> tuple[str, str]:
    return ours.issue("gateway.example", "127.0.0.1")


def talk(client: TlsSession, server: TlsSession, step: int = 1 << 20) -> None:
    """Carry bytes between the two until neither has any."""
    while True:
        there, back = client.data_to_send(), server.data_to_send()
        if not there and not back:
            return
        for data, session in ((there, server), (back, client)):
            for index in range(0, len(data), step):
                session.receive(data[index : index + step])


def read(session: TlsSession) -> bytes:
    room = bytearray(1 << 16)
    found = b""
    while size := session.read_into(memoryview(room)):
        found += room[:size]
    return found


def pair(
    ours: Certificates,
    node: tuple[str, str],
    host: str = "gateway.example",
    mine: tuple[str, str] = ("", ""),
    client_ca: str = "",
    required: bool = False,
) -> tuple[TlsSession, TlsSession]:
    client = ClientTls(ours.ca, *mine).session(host)
    server = ServerTls(*node, client_ca, required).session()
    return client, server


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
@pytest.mark.parametrize("host", ["gateway.example", "127.0.0.1"])
def test_what_one_side_writes_the_other_reads(
    ours: Certificates, node: tuple[str, str], host: str, step: int
) -> None:
    client, server = pair(ours, node, host)
    talk(client, server, step)
    assert client.ready
    assert server.ready
    assert server.peer_names == []
    payload = bytes(range(256)) * 300
    for one, other in ((client, server), (server, client)):
        one.write(memoryview(payload))
        data = one.data_to_send()
        assert payload[:100] not in data
        for index in range(0, len(data), step):
            other.receive(data[index : index + step])
        assert read(other) == payload
    client.close()
    client.close()
    talk(client, server)
    assert read(server) == b""
    assert server.ended
    assert read(server) == b""


def faults(client: TlsSession, server: TlsSession) -> tuple[str, str]:
    """What is wrong to either, "" for nothing."""
    talk(client, server)
    read(client)
    read(server)
    here, there = (each.fault.reason if each.fault else "" for each in (client, server))
    return here, there


def test_a_server_of_another_ca_is_not_believed(
    ours: Certificates, theirs: Certificates, node: tuple[str, str]
) -> None:
    client, server = pair(theirs, node)
    here, there = faults(client, server)
    assert "CA is not trusted" in here
    assert client.fault.remedy
    assert there
    assert not client.ready
    client.close()
    client.receive(b"more")
    assert read(client) == b""


def test_the_systems_cas_do_not_know_a_certificate_of_ones_own(node: tuple[str, str]) -> None:
    client = ClientTls().session("gateway.example")
    here, _ = faults(client, ServerTls(*node).session())
    assert "not trusted" in here


@pytest.mark.parametrize(
    ("host", "words"),
    [("other.example", "for another name"), ("127.0.0.2", "for another address")],
)
def test_a_certificate_of_another_name_is_not_believed(
    ours: Certificates, node: tuple[str, str], host: str, words: str
) -> None:
    here, _ = faults(*pair(ours, node, host))
    assert words in here


def test_an_expired_certificate_is_not_believed(ours: Certificates) -> None:
    here, _ = faults(*pair(ours, ours.expired("gateway.example")))
    assert here == "its certificate has expired"


def test_a_clients_names_are_those_of_its_certificate(
    ours: Certificates, node: tuple[str, str]
) -> None:
    mine = ours.issue("desk.example", "desk@example.org", common="desk 7")
    client, server = pair(ours, node, mine=mine, client_ca=ours.ca, required=True)
    talk(client, server)
    assert server.peer_names == ["desk 7", "desk.example", "desk@example.org"]
    assert "gateway.example" in client.peer_names


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    ours: Certificates, node: tuple[str, str]
) -> None:
    here, there = faults(*pair(ours, node, client_ca=ours.ca, required=True))
    assert here == "it wants a client certificate"
    assert there
    client, server = pair(ours, node, client_ca=ours.ca)
    talk(client, server)
    assert server.ready
    assert server.peer_names == []


def test_a_client_certificate_of_another_ca_is_refused(
    ours: Certificates, theirs: Certificates, node: tuple[str, str]
) -> None:
    mine = theirs.issue("desk.example")
    here, there = faults(*pair(ours, node, mine=mine, client_ca=ours.ca))
    assert here == "it does not trust our certificate's CA"
    assert "not trusted" in there


def test_a_client_that_begins_with_amqp_is_told_that_tls_is_wanted(node: tuple[str, str]) -> None:
    server = ServerTls(*node).session()
    server.receive(b"AMQP\x03\x01\x00\x00")
    assert server.fault == TlsFault("the client does not begin with TLS", "amqps:// wants it")
    assert server.data_to_send() == TLS_HEADER
    server = ServerTls(*node).session()
    server.receive(b"GET / HTTP/1.1\r\n\r\n")
    assert server.fault is not None
    assert server.data_to_send() == b""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"AMQP\x03\x01\x00\x00", "speaks no TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ""),
        (b"\x16\x03\x03\x00\x04\xff\x00\x00\x00", ""),
    ],
)
def test_a_server_that_speaks_no_tls_is_named(ours: Certificates, said: bytes, words: str) -> None:
    client = ClientTls(ours.ca).session("gateway.example")
    client.receive(said)
    assert words in client.fault.reason


def test_a_handshake_that_breaks_off_is_named(ours: Certificates, node: tuple[str, str]) -> None:
    client, server = pair(ours, node)
    client.eof()
    assert "broke off" in client.fault.reason
    client, server = pair(ours, node)
    talk(client, server)
    server.write(memoryview(b"words"))
    client.receive(server.data_to_send())
    assert read(client) == b"words"
    client.eof()
    assert client.fault is None
    client, server = pair(ours, node)
    talk(client, server)
    server.eof()
    assert server.fault is None
    client.eof()
    client.eof()
    assert client.fault == TlsFault(
        "it closed right after the handshake", "it may want a client certificate"
    )


def test_damaged_records_end_the_session(ours: Certificates, node: tuple[str, str]) -> None:
    client, server = pair(ours, node)
    talk(client, server)
    client.write(memoryview(b"some words"))
    data = bytearray(client.data_to_send())
    data[-1] ^= 1
    server.receive(bytes(data))
    assert read(server) == b""
    assert server.fault is not None
    server.receive(b"more")
    assert server.data_to_send()  # the alert that says so


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_are_not_spoken(ours: Certificates, node: tuple[str, str]) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    here, there = faults(TlsSession(old, False), ServerTls(*node).session())
    assert there
    assert "old TLS" in here


def renegotiating(ours: Certificates, node: tuple[str, str]) -> Iterator[TlsSession]:
    old = ours.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    client, server = TlsSession(old, False, "gateway.example"), ServerTls(*node).session()
    talk(client, server)
    yield from (client, server)


def test_tls_1_2_is_spoken_and_never_renegotiated(
    ours: Certificates, node: tuple[str, str]
) -> None:
    client, server = renegotiating(ours, node)
    assert server.ready
    server.write(memoryview(b"words"))
    client.receive(server.data_to_send())
    assert read(client) == b"words"
    options = ServerTls(*node).context.options
    assert options & ssl.OP_NO_RENEGOTIATION
    assert options & ssl.OP_NO_COMPRESSION


def test_an_error_without_a_name_still_has_words() -> None:
    assert fault_of(ssl.SSLError()) == TlsFault("TLS failed")
    other = ssl.SSLCertVerificationError()
    other.verify_code, other.verify_message = 999, "never heard of"
    assert fault_of(other) == TlsFault("its certificate: never heard of")
    assert "broke off" in fault_of(ssl.SSLEOFError()).reason


# -- files ------------------------------------------------------------------------------------


def empty(path: Path) -> str:
    path.write_text("nothing\n")
    return str(path)


def test_files_that_cannot_be_used_are_named_with_a_remedy(
    ours: Certificates, node: tuple[str, str], tmp_path: Path
) -> None:
    other = ours.issue("other.example")
    locked = tmp_path / "locked.pem"
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(Path(node[1]).read_bytes(), None)
    locked.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"opensesame"),
        )
    )
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: ServerTls("/nowhere", node[1]), "certificate: /nowhere: no such file"),
        (lambda: ServerTls(node[0], "/nowhere"), "key: /nowhere: no such file"),
        (lambda: ServerTls(node[0], other[1]), "is not the key of"),
        (lambda: ServerTls(node[0], str(locked)), "has a passphrase"),
        (lambda: ServerTls(empty(tmp_path / "x"), node[1]), "no certificate and key in PEM"),
        (lambda: ServerTls(*node, "/nowhere"), "client_ca: /nowhere: no such file"),
        (lambda: ServerTls(*node, empty(tmp_path / "y")), "holds no certificate"),
        (lambda: ClientTls("/nowhere"), "ca: /nowhere: no such file"),
        (lambda: ClientTls("", node[0]), "key: missing"),
        (lambda: ClientTls("", "", node[1]), "certificate: missing"),
    ]
    for make, words in cases:
        with pytest.raises(ConfigError) as error:
            make()
        assert words in error.value.message
        assert error.value.hint
        assert "opensesame" not in str(error.value)


def test_files_that_change_are_read_again_and_bad_ones_are_not_taken(
    ours: Certificates, tmp_path: Path
) -> None:
    first = ours.issue("one.example", common="one")
    reported: list[str] = []
    server = ServerTls(*first, report=reported.append)
    before = server.session()
    second = ours.issue("two.example", common="two")
    for source, target in zip(second, first, strict=True):
        Path(target).write_bytes(Path(source).read_bytes())
    client = ClientTls(ours.ca).session("two.example")
    talk(client, server.session())
    assert client.ready
    assert server.loads == 2
    old = ClientTls(ours.ca).session("one.example")
    talk(old, before)
    assert old.ready, "who was there keeps what it had"
    Path(first[0]).write_text("nothing\n")
    client = ClientTls(ours.ca).session("two.example")
    talk(client, server.session())
    assert client.ready
    assert "the old ones serve" in reported[-1]
    Path(first[0]).unlink()
    server.session()
    assert len(reported) == 3


def test_the_expiry_of_a_certificate_can_be_read(ours: Certificates, node: tuple[str, str]) -> None:
    import time

    until = ServerTls(*node).expires_s()
    assert until is not None
    assert until > time.time()
    assert ServerTls(*ours.expired("gateway.example")).expires_s() == 0.0
