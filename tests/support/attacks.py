"""Attacks of hostile clients on the node, and a process that runs them on request.

Each attack is a coroutine of a `Site`: one round of bounded work, which leaves nothing open that
the site does not close. Its first line says what it does; the counters of the node that it is
decorated with show that it did. Each comes from a loopback address of its own, so that what the
node holds against one does not hide the next.

    python -m tests.support.attacks

reads orders from stdin, a JSON object a line: `name`, `ports`, and how many `rounds` or `seconds`;
and answers each with a line: `rounds` done and an `error`, where a round could not be done at all.
"""

import asyncio
import contextlib
import json
import random
import struct
import sys
import time

import uvloop
import zmq

from tests.support import amqp_wire as wire
from tests.support.attack_site import (
    ATTACKS,
    QUEUE,
    Site,
    answers,
    attack,
    message,
    nested,
    produce,
    request,
    sasl,
    sending,
    tls_hello,
    transfer,
)
from tests.support.raw_peer import ADDRESS, BREACHES

#: No round takes longer: what the node does not take by then it is not going to take.
ROUND_S = 20.0


# -- sessions and frames ------------------------------------------------------------------------


@attack("connections_failed")
async def answered_sessions(site: Site) -> None:
    """Begins that claim to answer a session of the node's, ended under another name."""
    answer = wire.frame(wire.BEGIN, wire.ushort(0), 0, 2048, 2048, channel=1)
    for _ in range(20 if site.long else 5):
        peer = await site.client(wire.attach("a", 0, ADDRESS), answer)
        await peer.push(wire.frame(wire.END, channel=1), wire.frame(wire.END))


@attack("connections_failed")
async def breaches_of_the_protocol(site: Site) -> None:
    """Each breach of the protocol that ends a connection, on one of its own."""
    for breach in BREACHES.values():
        await site.client(wire.attach("a", 0, ADDRESS), wire.flow(0, 100), breach)


@attack("connections_failed")
async def frames_of_random_bytes(site: Site) -> None:
    """Well-framed nonsense behind a proper open."""
    chance = random.Random(7)
    for _ in range(50):
        await site.client(wire.frame_bytes(chance.randbytes(chance.randrange(4, 4000))))


@attack("connections_failed")
async def damaged_frames(site: Site) -> None:
    """Frames of a good client, with a few bytes changed."""
    chance = random.Random(11)
    said = wire.begin() + wire.attach("a", 0, ADDRESS) + wire.flow(0, 100)
    for _ in range(60):
        changed = bytearray(said)
        for _ in range(3):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        peer = await site.peer()
        await peer.push(wire.opening(), bytes(changed))


@attack("logins")
async def sessions_in_quantity(site: Site) -> None:
    """As many sessions as a connection may have, on many connections."""
    for _ in range(40 if site.long else 8):
        peer = await site.peer()
        await peer.push(wire.opening(), *(wire.begin(n) for n in range(2048)))


@attack("connections_opened")
async def sessions_not_read(site: Site) -> None:
    """Sessions begun and ended without end, by clients that read nothing."""
    turn = (wire.begin() + wire.frame(wire.END)) * 500
    for _ in range(5):
        peer = await site.client(wire.frame(wire.END), reads=False)
        for _ in range(40):
            if not await peer.push(turn):
                break


@attack("logins")
async def one_byte_at_a_time(site: Site) -> None:
    """Frames that come a byte in a packet."""
    peer = await site.peer()
    said = wire.opening() + wire.begin() + wire.attach("a", 0, ADDRESS) + wire.flow(0, 10)
    for byte in said * (1 if not site.long else 5):
        await peer.push(bytes([byte]))


@attack("connections_opened")
async def empty_frames(site: Site) -> None:
    """Hundreds of thousands of heartbeats."""
    peer = await site.client()
    beats = wire.frame_bytes(b"") * 8000
    for _ in range(25):
        await peer.push(beats)


@attack("logins")
async def a_mebibyte_in_one_write(site: Site) -> None:
    """Attaches, flows and detaches of one link, a mebibyte of them at once."""
    turn = wire.attach("a", 0, ADDRESS) + wire.flow(0, 10) + wire.frame(wire.DETACH, 0, True)
    for _ in range(4 if site.long else 1):
        await site.client(turn * ((1 << 20) // len(turn)))


@attack("connections_failed")
async def huge_frames_announced(site: Site) -> None:
    """Frames of two gibibytes, by their headers; and clients that would take such ones."""
    for _ in range(20):
        peer = await site.peer()
        await peer.push(wire.opening(2**32 - 1), wire.begin(), wire.attach("a", 0, ADDRESS))
        await peer.push(wire.flow(0, 1000), struct.pack(">IBBH", 2**31, 2, 0, 0), bytes(60_000))


@attack("connections_opened")
async def vast_windows(site: Site) -> None:
    """Sessions whose windows are as large as numbers go, or nothing, and links with such credit."""
    for window in (0, 1, 2**32 - 1):
        for _ in range(5):
            peer = await site.peer(reads=False)
            begun = wire.frame(wire.BEGIN, None, 2**32 - 1, window, window, 2**32 - 1)
            await peer.push(wire.opening(), begun)
            await peer.push(
                *(wire.attach(f"n{n}", n, "#") + wire.flow(n, 2**32 - 1) for n in (0, 1))
            )


# -- opens, log-ins, TLS ------------------------------------------------------------------------


@attack("connections_opened")
async def huge_opens(site: Site) -> None:
    """Opens with container ids, host names and properties of sixty thousand bytes."""
    long = "x" * 60_000
    many = wire.Value(wire.MAP32, [wire.wire(f"p{n}".encode()) for n in range(8000)])
    none = (None,) * 5
    for fields in (
        (long,),
        ("c", long),
        ("c", None, *none, None, None, many),
        ("c", None, 2**32 - 1),
    ):
        for _ in range(5):
            peer = await site.peer()
            await peer.push(wire.AMQP_HEADER, wire.frame(wire.OPEN, *fields), wire.begin())


@attack("connections_opened")
async def connections_without_a_log_in(site: Site) -> None:
    """As many connections as there may be, that say nothing."""
    for _ in range(298):
        await site.peer()


@attack("connections_opened")
async def connection_churn(site: Site) -> None:
    """Connections that open and leave, one after the other."""
    for _ in range(300 if not site.long else 1000):
        peer = await site.client()
        peer.reset()
        site.peers.remove(peer)


@attack("connections_opened")
async def slow_openings(site: Site) -> None:
    """Clients that stop at each byte of the protocol's beginning, in AMQP, SASL and TLS."""
    plain = wire.opening() + wire.begin() + wire.attach("a", 0, ADDRESS)
    login = wire.SASL_HEADER + sasl("PLAIN", b"\0ann\0wrong")
    hello = tls_hello()
    for port, said in (("amqp", plain), ("amqp", login), ("tls", hello)):
        for size in range(1, len(said), max(1, len(said) // 25)):
            peer = await site.peer(port)
            await peer.push(said[:size])


@attack("logins_refused")
async def wrong_passwords(site: Site) -> None:
    """Passwords that are wrong, until nothing more is heard from that address."""
    for _ in range(22):
        peer = await site.peer()
        await peer.push(wire.SASL_HEADER, sasl("PLAIN", b"\0ann\0wrong"))
    for each in site.peers:
        await each.end()
    for _ in range(50):
        await site.peer()


@attack("logins_refused")
async def log_ins_from_everywhere(site: Site) -> None:
    """A hundred wrong passwords at a time from as many addresses: more than may wait."""
    for number in range(100):
        peer = await site.peer(host=f"127.77.{number}.1")
        await peer.push(wire.SASL_HEADER, sasl("PLAIN", b"\0user%d\0guess" % number))
    for each in site.peers:
        await each.end()


@attack("logins_refused")
async def sasl_nonsense(site: Site) -> None:
    """Log-ins with mechanisms, responses and frames that there are not."""
    for said in (
        sasl("EXTERNAL", b"x" * 400), sasl("SCRAM-SHA-1", b""), sasl("", b""), sasl("PLAIN", b""),
        sasl("PLAIN", b"\0" * 400), sasl("PLAIN", b"\xff\0\xfe\0\xfd"), wire.begin(),
        wire.frame_bytes(b"\0\x53\x42\xc0\x01\x00", kind=1), wire.frame_bytes(bytes(500), kind=1),
        wire.frame_bytes(b"", kind=1) * 1000, struct.pack(">IBBH", 2**31, 2, 1, 0),
    ):  # fmt: skip
        peer = await site.peer()
        await peer.push(wire.SASL_HEADER, said)


@attack("tls_failed")
async def tls_nonsense(site: Site) -> None:
    """Bytes that are no handshake, to the port for TLS."""
    hello = tls_hello()
    for said in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(509), hello[:-1] + b"\xff" * 50,
        b"GET / HTTP/1.1\r\n\r\n", wire.opening(), hello + bytes(20_000), b"\x16\x03\x01\xff\xff",
    ):  # fmt: skip
        for _ in range(5):
            peer = await site.peer("tls")
            await peer.push(said)


@attack("connections_opened")
async def half_open_tls(site: Site) -> None:
    """A hundred hellos, answered, whose clients say nothing more."""
    hello = tls_hello()
    for _ in range(100):
        peer = await site.peer("tls", reads=False)
        await peer.push(hello)


@attack("connections_opened")
async def tls_readers_that_stop(site: Site) -> None:
    """Subscribers by TLS that have credit and do not read."""
    for _ in range(10 if site.long else 3):
        peer = await site.peer("tls", tls=True)
        peer.writer.transport.pause_reading()
        await peer.push(wire.opening(), wire.begin(), wire.attach("a", 0, "#"), wire.flow(0, 10**6))


@attack("connections_opened")
async def other_protocols(site: Site) -> None:
    """HTTP, AMQP 0.9.1, SSH and zeros, to the AMQP port."""
    for said in (
        b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n" * 100, b"AMQP\x00\x00\x09\x01",
        b"SSH-2.0-OpenSSH_9.6\r\n", bytes(200_000), b"AMQP" * 50_000,
    ):  # fmt: skip
        for _ in range(5):
            peer = await site.peer()
            await peer.push(said)


@attack("connections_opened")
async def impatient_heartbeats(site: Site) -> None:
    """Clients that ask for a sign of life every millisecond."""
    for _ in range(50):
        peer = await site.peer(reads=False)
        await peer.push(wire.opening(idle_ms=1), wire.begin())
    await asyncio.sleep(0.3)


# -- links of streams ---------------------------------------------------------------------------


@attack("links_refused")
async def refusals_not_read(site: Site) -> None:
    """Links that are refused, asked for by clients that read nothing."""
    for _ in range(5 if site.long else 1):
        peer = await site.client(reads=False)
        for first in range(0, 5000, 250):
            names = range(first, first + 250)
            if not await peer.push(*(wire.attach(f"n{n}", n % 256, "no..such") for n in names)):
                break


@attack("links_refused")
async def attaches_not_read(site: Site) -> None:
    """Attaches with a kibibyte of name, by clients that read nothing."""
    for _ in range(10):
        peer = await site.client(reads=False)
        said = (wire.attach(f"{n}" + "x" * 1000, n, f"{ADDRESS}&as=byte") for n in range(256))
        await peer.push(*said)


@attack("links_refused")
async def refused_links_never_left(site: Site) -> None:
    """Links that are refused, by clients that read all and detach none."""
    for _ in range(4):
        peer = await site.peer()
        await peer.push(wire.opening(), *(wire.begin(n) for n in range(8)))
        for n in range(8):
            await peer.push(*(wire.attach(f"{h}", h, "no..such", n) for h in range(250)))


@attack("links_opened")
async def longest_addresses(site: Site) -> None:
    """Sixty links with the longest address of patterns that there may be, in one write."""
    wild = ",".join(f"*.{n}.*.{'x' * 60}" for n in range(256))
    plain = ",".join(f"e.{n:05}" for n in range(2000))
    await site.client(*(wire.attach(f"n{n}", n, wild if n % 2 else plain) for n in range(60)))


@attack("links_refused")
async def addresses_beyond_the_bounds(site: Site) -> None:
    """Sixty links with 2,048 wildcards each, in one write; addresses of sixty thousand bytes."""
    wild = ",".join(["#.a"] * 2048)
    await site.client(*(wire.attach(f"n{n}", n, wild) for n in range(60)))
    for long in ("x" * 60_000, "#." * 30_000, "a" + ",a" * 25_000, "e?from=" + "0" * 50_000):
        await site.client(*(wire.attach(f"n{n}", n, long) for n in range(10)))


@attack("connections_opened")
async def sources_that_are_huge(site: Site) -> None:
    """Sources with maps of sixty thousand bytes, deep ones, and of a mebibyte."""
    for value in (
        wire.Value(wire.MAP32, [wire.wire(n) for n in range(10_000)]), nested(20), nested(200),
        wire.Value(wire.MAP32, [wire.wire(bytes(1 << 19)), wire.wire(bytes(1 << 19))]),
    ):  # fmt: skip
        source = wire.described(wire.SOURCE, ADDRESS, 0, None, 0, False, value, None, value)
        for _ in range(5):
            await site.client(wire.attach("a", 0, None, source=source), wire.flow(0, 1))


@attack("links_opened")
async def slow_readers_closed_at_once(site: Site) -> None:
    """A hundred readers with credit and a window that they do not read, gone at one instant."""
    asked = wire.attach("a", 0, ADDRESS), wire.flow(0, 10_000)
    for _ in range(100):
        await site.client(*asked, reads=False)
    await asyncio.sleep(0.2)


@attack("links_opened")
async def link_churn(site: Site) -> None:
    """Links that attach, get credit and detach, as quickly as they are answered."""
    peer = await site.client()
    for n in range(400):
        name = f"n{n}"
        await peer.push(wire.attach(name, 0, ADDRESS), wire.flow(0, 10))
        await peer.push(wire.frame(wire.DETACH, 0, True))
        await peer.hear(wire.DETACH)


@attack("links_opened")
async def credit_churn(site: Site) -> None:
    """Credit of one and of none in turns, on ten links, thousands of times."""
    links = range(10)
    peer = await site.client(*(wire.attach(f"n{n}", n, ADDRESS) for n in links))
    churn = b"".join(wire.flow(n, credit) for credit in (1, 0, 1, 0) for n in links)
    for _ in range(100):
        await peer.push(churn)


@attack("links_opened")
async def drain_storms(site: Site) -> None:
    """Credit that is drained at once, on ten links, thousands of times."""
    links = range(10)
    peer = await site.client(*(wire.attach(f"n{n}", n, ADDRESS) for n in links))
    for _ in range(100):
        await peer.push(*(wire.flow(n, 1000, drain=True) for _ in range(4) for n in links))


@attack("links_opened")
async def nothing_is_settled(site: Site) -> None:
    """Subscribers that are owed outcomes, take everything and settle nothing."""
    for _ in range(10):
        await site.client(wire.attach("a", 0, ADDRESS, settle=0), wire.flow(0, 10**6))
    await asyncio.sleep(0.3)


@attack("links_opened")
async def dispositions_of_anything(site: Site) -> None:
    """Outcomes of deliveries that there never were, and of all that there could be."""
    accepted = wire.described(wire.ACCEPTED)
    said = b"".join(
        wire.frame(wire.DISPOSITION, role, first, last, settled, accepted)
        for first, last in ((0, 2**31 - 1), (5, 4), (2**31, 2**32 - 1), (0, 2**32 - 1), (7, 10**6))
        for role in (True, False)
        for settled in (True, False)
    )
    for _ in range(5):
        peer = await site.client(wire.attach("a", 0, ADDRESS, settle=0), wire.flow(0, 1000))
        for _ in range(20):
            await peer.push(said)


@attack("links_refused")
async def tags_that_are_none(site: Site) -> None:
    """Links that resume behind nonsense, behind what is to come, and from the first number on."""
    tags = [
        "0" * 36,
        "f" * 36,
        "01352901000100680000000000000000ffff",
        "zz",
        "0" * 35,
        "0" * 35 + "g",
    ]
    said = [wire.attach(f"n{n}", n, f"euronext.104?from={tag}") for n, tag in enumerate(tags)]
    said += [wire.attach("n9", 9, "euronext.#?from=" + ",".join(["f" * 36] * 500))]
    for _ in range(10):
        await site.client(*said, *(wire.flow(n, 10_000) for n in range(10)), reads=False)


@attack("links_refused")
async def groups_that_do_not_fit(site: Site) -> None:
    """Links that share a stream: more than may, of other addresses, that come and go."""
    shared = wire.wire(b"shared")
    for address in (ADDRESS, "#", f"{ADDRESS}&from=" + "0" * 36, "no..such", ""):
        nothing = (None,) * 9
        source = wire.described(wire.SOURCE, address, *nothing, shared)
        said = [wire.attach(f"g|{n}", n, None, source=source, settle=0) for n in range(100)]
        peer = await site.client(*said, *(wire.flow(n, 5) for n in range(100)))
        await peer.push(*(wire.frame(wire.DETACH, n, True) for n in range(0, 100, 2)))


# -- durable queues -----------------------------------------------------------------------------


@attack("links_unsupported")
async def browsers_and_filters(site: Site) -> None:
    """Consumers that browse, select, want transactions, or an address made for them."""
    copy = wire.described(wire.SOURCE, QUEUE, 0, None, 0, False, None, wire.wire(b"copy"))
    selects = wire.Value(wire.MAP32, [wire.wire(b"s"), wire.wire("x" * 30_000)])
    chosen = wire.described(wire.SOURCE, QUEUE, 0, None, 0, False, None, None, selects)
    dynamic = wire.described(wire.SOURCE, None, 0, None, 0, True)
    peer = await site.client()
    for n in range(300):
        source = (copy, chosen, dynamic)[n % 3]
        await peer.push(wire.attach(f"n{n}", n % 250, None, source=source))
        if n % 250 == 249:
            await peer.push(*(wire.frame(wire.DETACH, handle, True) for handle in range(250)))


@attack("transactions_rolled_back")
async def transactions_left_open(site: Site) -> None:
    """Transactions beyond what may be open, orders that are none, and messages for what is not."""
    coordinator = wire.frame(
        wire.ATTACH, "c", 0, False, wire.ubyte(0), wire.ubyte(0), wire.described(wire.SOURCE),
        wire.described(0x30), None, None, 0,
    )  # fmt: skip
    declare, discharge = b"\x00\x53\x77\x00\x53\x31\x45", b"\x00\x53\x77\x00\x53\x32"
    orders = [
        declare, declare[:-1], discharge + b"\x45", discharge + b"\xc0\x02\x01\x40",
        discharge + b"\xd0" + b"\xff" * 8, discharge + b"\xc0\x04\x02\xa0\x00\x41",
        b"\x00\x53\x77" + nested(100).encode(), bytes(5000), b"",
    ]  # fmt: skip
    states = [
        wire.described(0x34), wire.described(0x34, None), wire.described(0x34, "text"),
        wire.described(0x34, nested(20)), wire.described(0x34, wire.Value(0xA0, bytes(7) + b"\1")),
    ]  # fmt: skip
    for _ in range(10):
        peer = await site.client(coordinator, sending("s", 1, QUEUE))
        await peer.hear(wire.FLOW)
        await peer.push(*(transfer(0, n, declare) for n in range(60)))
        for n, state in enumerate(states * 20, 60):
            tag = wire.Value(0xA0, n.to_bytes(4, "big"))
            put = (wire.TRANSFER, 1, n, tag, 0, n % 2 == 0, False, None, state)
            await peer.push(wire.frame(*put, payload=message(bytes(10_000))))
        other = await site.client(coordinator)
        await other.push(*(transfer(0, n, each) for n, each in enumerate(orders * 5)))


@attack("links_opened")
async def requests_with_odd_ids(site: Site) -> None:
    """Finds and cancels of numbers beyond what there is, of wrong types, of deep maps."""
    ids = [
        wire.ulong(2**63), wire.ulong(2**64 - 1), wire.Value(0x81, -1), wire.Value(0x83, -(2**62)),
        wire.wire("seven"), wire.wire(b"s" * 5000), wire.wire(None), wire.wire(True), nested(3),
        nested(7), nested(100), wire.Value(0x98, bytes(16)), wire.Value(0x82, 7),
        wire.wire([1] * 2000), wire.Value(0xF0, bytes(64)), wire.Value(0x94, bytes(16)),
    ]  # fmt: skip
    peer = await site.client(answers("a", 0, "me"), wire.flow(0, 10_000))
    await peer.push(sending("r", 1, f"{QUEUE}/$management"))
    asked = [
        request(operation, "me", **{key: value})
        for operation in ("find", "cancel", "forward", "cancel-all")
        for key in ("id", "message_id", "after", "until")
        for value in ids
    ]
    await produce(peer, 1, *asked)


@attack("links_opened")
async def requests_that_cannot_be_answered(site: Site) -> None:
    """Requests without a reply-to, to nobody, and to a link without credit; and no requests."""
    peer = await site.client(answers("a", 0, "me"), sending("r", 1, f"{QUEUE}/$management"))
    for reply_to in (None, "nobody", "me"):
        other = await site.client(answers("a", 0, "me"), sending("r", 1, f"{QUEUE}/$management"))
        await produce(other, 1, *[request("stat", reply_to)] * 60)
    await produce(peer, 1, *[b"\x00\x53\x74" + bytes(8000)] * 60)


@attack("links_opened")
async def many_messages_of_one_id(site: Site) -> None:
    """Thousands of messages with one message-id, then finds of it, and a cancel."""
    maker = await site.client(sending("s", 0, QUEUE))
    await produce(maker, 0, *[message(b"x", "the same")] * (40_000 if site.long else 2000))
    peer = await site.client(answers("a", 0, "me"), wire.flow(0, 10_000))
    await peer.push(sending("r", 1, f"{QUEUE}/$management"))
    same = wire.wire("the same")
    await produce(peer, 1, *[request("find", "me", message_id=same)] * 60)
    other = await site.client(answers("a", 0, "me"), wire.flow(0, 10_000))
    await other.push(sending("r", 1, f"{QUEUE}/$management"))
    await produce(other, 1, *[request("cancel", "me", message_id=same)] * 1)
    await other.hear(wire.TRANSFER)


@attack("links_over_credit")
async def messages_beyond_the_credit(site: Site) -> None:
    """More messages than there is credit, before and behind the attach's answer, of any size."""
    for size, count in ((10, 400), (50_000, 40)):
        body = message(bytes(size))
        for _ in range(5):
            peer = await site.client(sending("s", 0, QUEUE))
            await peer.hear(wire.BEGIN)  # with the session's window
            await peer.push(*(transfer(0, n, body) for n in range(count)))


@attack("links_partial")
async def messages_in_part(site: Site) -> None:
    """Messages whose end never comes: many small ones, and large ones on many links."""
    for _ in range(10 if site.long else 3):
        peer = await site.client(*(sending(f"s{n}", n, QUEUE) for n in range(20)))
        for n in range(20):
            await peer.hear(wire.FLOW)
            for _ in range(16):
                await peer.push(transfer(n, n, bytes(60_000), more=True))


@attack("links_opened")
async def messages_to_nowhere(site: Site) -> None:
    """Messages in part, for a link that is refused."""
    peer = await site.client(sending("s", 0, "queue.nowhere"), sending("t", 1, QUEUE))
    for _ in range(300):
        await peer.push(transfer(0, 0, bytes(60_000), more=True))


@attack("links_opened")
async def largest_messages_outcomes_not_read(site: Site) -> None:
    """The largest messages, in quantity, by clients that do not read what became of them."""
    whole = message(bytes((1 << 20) - 100))
    parts = [whole[at : at + 60_000] for at in range(0, len(whole), 60_000)]
    for _ in range(4 if site.long else 1):
        peer = await site.client(sending("s", 0, QUEUE))
        await peer.hear(wire.FLOW)
        peer.opened = False
        peer.writer.transport.pause_reading()
        for number in range(8):
            frames = (transfer(0, number, part, more=True) for part in parts[:-1])
            if not await peer.push(*frames, transfer(0, number, parts[-1])):
                break


@attack("links_opened")
async def consumers_that_never_settle(site: Site) -> None:
    """Consumers with credit for all, which keep what they get, on ten links each."""
    maker = await site.client(sending("s", 0, QUEUE))
    await produce(maker, 0, *[message(bytes(500))] * 1000)
    for _ in range(5):
        links = (wire.attach(f"n{n}", n, QUEUE, settle=0) + wire.flow(n, 10**6) for n in range(10))
        await site.client(*links, reads=False)
    await asyncio.sleep(0.1)


@attack("links_opened")
async def consumers_that_give_back(site: Site) -> None:
    """Consumers that release, or fail, whatever they get."""
    maker = await site.client(sending("s", 0, QUEUE))
    await produce(maker, 0, *[message(bytes(500))] * 200)
    for state in (0x26, 0x27, 0x25):  # released, modified, rejected
        peer = await site.client(wire.attach("a", 0, QUEUE, settle=0), wire.flow(0, 2000))
        back = wire.described(state, True) if state == 0x27 else wire.described(state)
        for _ in range(100):
            number = (await peer.hear(wire.TRANSFER)).field(1)
            await peer.push(wire.frame(wire.DISPOSITION, True, number, number, True, back))


# -- beside AMQP --------------------------------------------------------------------------------


@attack()
async def slow_and_odd_scrapes(site: Site) -> None:
    """Requests to the metrics page that never end, are none, or whose answer is not read."""
    for said in (
        b"", b"G", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 7000,
        bytes(100_000), b"\r\n" * 50_000, b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
    ):  # fmt: skip
        for _ in range(8):
            peer = await site.peer("metrics", reads=False)
            await peer.push(said)


@attack()
async def scrapes_without_a_pause(site: Site) -> None:
    """The metrics page, asked for as quickly as it answers."""
    for _ in range(40):
        peer = await site.peer("metrics")
        await peer.push(b"GET /metrics HTTP/1.1\r\nHost: gateway\r\n\r\n")
        await peer.end()


@attack()
async def odd_questions_to_the_control_socket(site: Site) -> None:
    """Messages that are no ZeroMQ, no JSON or no verb, to the control socket, many at a time."""
    for said in (b"", bytes(1000), b"\xff" * 100_000, b"GET / HTTP/1.1\r\n\r\n"):
        for _ in range(5):
            peer = await site.peer("control")
            await peer.push(said)
    with zmq.Context() as context:
        asked = b'{"do": "status"}', b"[" * 50_000, b"\xff", b"x" * (1 << 19), b'{"do": 7}', b"{}"
        for _ in range(10):
            with context.socket(zmq.DEALER) as client:
                client.setsockopt(zmq.LINGER, 0)
                client.connect(f"tcp://127.0.0.1:{site.ports['control']}")
                for each in asked * 10:
                    with contextlib.suppress(zmq.Again):
                        client.send_multipart([b"", each], zmq.DONTWAIT)
                await asyncio.sleep(0.02)


# -- the process --------------------------------------------------------------------------------


async def rounds(name: str, ports: dict[str, int], count: int, seconds: float) -> dict[str, object]:
    """Do so many rounds, or as many as there is time for; at least one."""
    run = ATTACKS[name].run
    until, done, error = time.monotonic() + seconds, 0, ""
    while not error and (done < count or time.monotonic() < until):
        index = list(ATTACKS).index(name)
        site = Site(ports, f"127.0.{1 + done % 250}.{1 + index}", seconds > 0)
        try:
            async with asyncio.timeout(ROUND_S):
                await run(site)
                await site.heard()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the node has had enough of it
        except Exception as wrong:
            error = f"the attack itself failed: {type(wrong).__name__}: {wrong}"
        finally:
            site.close()
        done += 1
        await asyncio.sleep(0)
    return {"rounds": done, "error": error}


def main() -> None:
    """Carry out orders until there are no more."""
    for line in sys.stdin:
        order = json.loads(line)
        work = rounds(order["name"], order["ports"], order["rounds"], order["seconds"])
        print(json.dumps(uvloop.run(work)), flush=True)


if __name__ == "__main__":
    main()
