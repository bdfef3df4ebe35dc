"""Subscribers at the node's door: each way in, and each refusal in one line with a remedy."""

import asyncio
from typing import Any

import proton
import pytest

import feedhandler
from tests.support.node import PATIENCE_S, in_thread, running
from tests.support.security import SECRET, Certificates, gate, user


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(ours: Certificates) -> tuple[str, str]:
    return ours.issue("127.0.0.1", "localhost")


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    from feedhandler.amqp.serving import connection

    monkeypatch.setattr(connection, "REFUSAL_SECONDS", 0.01)


async def first(url: str, login: feedhandler.Login | None = None) -> Any:
    async with feedhandler.subscribe(url, "euronext.104?quality=0", login=login) as messages:
        return await anext(messages)


@pytest.mark.gateways_loop
async def test_the_subscriber_comes_in_by_each_way(
    ours: Certificates,
    node: tuple[str, str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = ours.issue("desk.example", common="desk 9")
    (tmp_path / "word").write_text(SECRET + "\n")
    monkeypatch.setenv("NODE_PASSWORD", SECRET)
    door = gate(
        user("ann"),
        user("bob", certificate="desk 9"),
        tls=node,
        client_ca=ours.ca,
        anonymous=True,
        plain_without_tls=True,
    )
    quoted = "tr0ub4dor%263%2F%3F%23%40"
    async with running(gate=door) as rig:
        make = feedhandler.Login
        over = f"127.0.0.1:{rig.tls_port}"
        ways = (
            (f"amqps://ann:{quoted}@{over}", make(ca=ours.ca), "ann"),
            (f"amqps://ann@{over}", make(ca=ours.ca, password=SECRET), "ann"),
            (f"amqps://{over}", make("ann", password_env="NODE_PASSWORD", ca=ours.ca), "ann"),
            (
                f"amqps://localhost:{rig.tls_port}",
                make("ann", password_file=str(tmp_path / "word"), ca=ours.ca),
                "ann",
            ),
            (f"amqps://{over}", make(ca=ours.ca, certificate=mine[0], key=mine[1]), "bob"),
            (f"amqps://{over}", make(ca=ours.ca), "anonymous"),
            (f"amqp://ann:{quoted}@127.0.0.1:{rig.port}", None, "ann"),
        )
        for index, (url, login, name) in enumerate(ways, 1):
            waiting = asyncio.create_task(first(url, login))
            await rig.until(
                lambda task=waiting: rig.node.links == 1 or task.done(),
                f"attached: way {index}",
            )
            if waiting.done():
                waiting.result()
            assert [each.user.name for each in rig.node.connections] == [name]
            await rig.stream(index, index)
            assert (await waiting).seq == index
            await rig.until(lambda: not rig.node.connections, "gone")


@pytest.mark.gateways_loop
async def test_every_refusal_is_one_line_with_a_remedy_and_without_the_password(
    ours: Certificates, node: tuple[str, str], tmp_path: Any
) -> None:
    theirs = Certificates(tmp_path, "theirs")
    door = gate(user("ann"), tls=node, client_ca=ours.ca)
    make = feedhandler.Login
    async with running(gate=door) as rig, running() as plain:
        ann = {"user": "ann", "password": SECRET}
        over = f"amqps://127.0.0.1:{rig.tls_port}"
        cases = (
            (over, make(**ann), "CA is not trusted"),
            (over, make(**ann, ca=theirs.ca), "CA is not trusted"),
            (f"amqps://127.0.0.2:{rig.tls_port}", make(**ann, ca=ours.ca), "127.0.0.2"),
            (over, make("ann", password="no", ca=ours.ca), "it refused user ann"),
            (over, make("eve", password=SECRET, ca=ours.ca), "it refused user eve"),
            (over, make(ca=ours.ca), "wants to know who we are"),
            (rig.url, make(**ann), "it takes no passwords"),
            (rig.url, None, "wants to know who we are"),
            (plain.url.replace("amqp", "amqps"), make(**ann), "speaks no TLS"),
            (f"amqp://127.0.0.1:{rig.tls_port}", make(**ann), "amqps://"),
        )
        for url, login, words in cases:
            with pytest.raises(feedhandler.PeerError) as error:
                await first(url, login)
            assert words in str(error.value), (url, str(error.value))
            assert error.value.hint
            assert SECRET not in str(error.value)
            assert SECRET not in repr(error.value)
            assert "\n" not in str(error.value)


async def test_an_expired_certificate_is_named(ours: Certificates) -> None:
    async with running(gate=gate(tls=ours.expired("127.0.0.1"))) as rig:
        with pytest.raises(feedhandler.PeerError, match="its certificate has expired"):
            await first(f"amqps://127.0.0.1:{rig.tls_port}", feedhandler.Login(ca=ours.ca))


async def test_protons_own_client_comes_in_over_tls(
    ours: Certificates, node: tuple[str, str]
) -> None:
    if not proton.SSL.present():
        pytest.skip("python-qpid-proton was built without OpenSSL")
    from proton.utils import BlockingConnection

    def attach(port: int) -> str:
        domain = proton.SSLDomain(proton.SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(ours.ca)
        domain.set_peer_authentication(proton.SSLDomain.VERIFY_PEER_NAME)
        connection = BlockingConnection(
            f"amqps://localhost:{port}",
            timeout=PATIENCE_S,
            ssl_domain=domain,
            user="ann",
            password=SECRET,
            allowed_mechs="PLAIN",
        )
        receiver = connection.create_receiver("euronext.104", credit=10)
        note = receiver.receive(timeout=PATIENCE_S)
        connection.close()
        return note.content_type

    async with running(gate=gate(user("ann"), tls=node)) as rig:
        assert "quality" in str(await in_thread(attach, rig.tls_port))
