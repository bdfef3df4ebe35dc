"""Loads whose profiles say what is worth compiling; `bench.profiles` runs them.

Each is a function of a share of its usual size and of a folder. It prepares, and returns what is
measured: so much work, however long it takes. Most are simulations that test the cores that ship,
or what a bench measures, made short; the usual size takes some ten seconds interpreted. Only what
a load needs is imported, for each has a process of its own.
"""

import asyncio
import contextlib
import datetime
import importlib
import itertools
import multiprocessing
import os
import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Work = Callable[[], object]
Prepare = Callable[[float, Path], Work]

SIMULATIONS = Path(__file__).resolve().parent.parent / "tests" / "simulation"
UTP, ITCH, CME, FIX = "euronext-utp-md", "nasdaq-totalview-itch", "cme-mdp3", "fix-marketdata"
DAY = datetime.date(2024, 7, 1)
SECOND_NS = 1_000_000_000
#: A receive stamp.
NOW_NS = 1_795_000_000 * SECOND_NS
SEED = 7


def some(count: float) -> int:
    """Return a count of at least one."""
    return max(round(count), 1)


def simulation(name: str) -> Any:
    """Import a module of `tests/simulation`."""
    if str(SIMULATIONS) not in sys.path:
        sys.path.insert(0, str(SIMULATIONS))
    return importlib.import_module(name)


def seeds(module: str, count: int) -> Prepare:
    """Return the load of a simulation: its `play`, once for each of so many seeds."""

    def prepare(part: float, folder: Path) -> Work:
        play = simulation(module).play
        return lambda: [play(seed) for seed in range(1, some(count * part) + 1)]

    return prepare


# -- codecs -----------------------------------------------------------------------------------


def orders_of(name: str, messages: float) -> tuple[Any, list[bytes]]:
    """Return a feed, and packets of a generated session of about so many order messages."""
    from feedhandler.codecs import load_feed
    from feedhandler.replay.generating.order_session import OrderSession

    feed = load_feed(name)
    session = OrderSession(feed, SEED, messages_per_s=20_000.0)
    return feed, [e.packet for e in session.packets(int(messages * 50_000)) if e.messages]


def utp_packets(count: int) -> tuple[Any, list[bytes]]:
    """Return UTP-MD, and packets of orders and quotes."""
    from bench.bench_codecs import make_packets
    from feedhandler.codecs import load_feed

    feed = load_feed(UTP)
    return feed, make_packets(feed, count)


def scanning(part: float, folder: Path) -> Work:
    """Scan packets of UTP-MD, ITCH and CME into offsets, types, symbols and sizes."""
    from bench import bench_venue_codecs
    from feedhandler.codecs import load_feed

    bench_venue_codecs.SBE_PACKETS = some(8_000 * part)
    cme = load_feed(CME)
    loads = [utp_packets(some(20_000 * part)), orders_of(ITCH, 100_000 * part)]
    loads.append((cme, bench_venue_codecs.sbe_packets(cme)))

    return lambda: [bench_venue_codecs.scanning(feed, packets)() for feed, packets in loads]


def columns(part: float, folder: Path) -> Work:
    """Decode all fields of UTP-MD's orders and quotes into columns."""
    from feedhandler.codecs import feed_table, scanner
    from feedhandler.codecs.columns import Columns

    feed, packets = utp_packets(some(10_000 * part))
    data, index = b"".join(packets), feed_table.MessageIndex(5 * len(packets))
    scanner.scan_packets(feed.table, data, 0, len(data), feed_table.PacketHeader(), index)
    made = [Columns(feed, kind, index.count) for kind in (140, 230)]
    return lambda: [each.decode(data, index, DAY) for each in made]


def fix_messages(part: float, folder: Path) -> Work:
    """Frame, index and check FIX book updates, make columns of them; and write them."""
    from bench import bench_fix_codec as bench

    messages = bench.make_messages(some(4_000 * part))

    def work() -> None:
        # A time that is over: each makes a pass to begin with, and one that counts.
        bench.framing(messages, 0.0)
        bench.indexing(messages, 0.0)
        bench.writing(len(messages), 0.0)

    return work


def fix_scanning(part: float, folder: Path) -> Work:
    """Scan FIX datagrams as a gateway's packets, and make normalised records of them."""
    from bench.bench_fix_codec import make_messages, normalising
    from bench.fixcast_load import book_updates
    from feedhandler.codecs import load_feed
    from feedhandler.fixcast.datagrams import Packer
    from feedhandler.fixcast.messages import Header

    feed = load_feed(FIX)
    stamper, packer = Header(sender=b"PUB", target=b"c").stamper(NOW_NS), Packer(1, 1400)
    datagrams: list[bytes] = []
    for number, given in enumerate(book_updates(some(15_000 * part), SEED), 1):
        stamped = stamper.stamped(given, number)
        assert stamped is not None
        datagrams += packer.add(stamped, 0)
    messages = make_messages(some(2_000 * part))

    def work() -> None:
        for datagram in datagrams:
            for _ in feed.scanned(datagram):
                pass
        normalising(messages, 0.0)

    return work


# -- ingest and recovery ----------------------------------------------------------------------


def arbitration(part: float, folder: Path) -> Work:
    """Arbitrate lines A and B into the ring, some packets late or lost on one of them."""
    from feedhandler.codecs.feed_table import PacketHeader
    from feedhandler.codecs.scanner import parse_next
    from feedhandler.ingest.arbitration import Arbiter
    from feedhandler.ingest.ring import Ring

    feed, packets = utp_packets(some(60_000 * part))
    chance, ring = random.Random(SEED), Ring(1 << 22)
    arrivals = [
        (at * 1_000 + chance.choice((0, 0, 0, 5_000)), line, packet)
        for at, packet in enumerate(packets)
        for line in (0, 1)
        if chance.random() > 0.01
    ]
    arrivals.sort(key=lambda arrival: arrival[0])
    arbiter = Arbiter(ring, lines=2, table=feed.table)

    def work() -> None:
        header = PacketHeader()
        arbiter.start(0)
        for at_ns, line, packet in arrivals:
            parse_next(feed.table, packet, 0, len(packet), header)
            arbiter.receive(line, header, packet, 0, at_ns, at_ns)
            if arbiter.deadline_ns <= at_ns:
                arbiter.tick(at_ns)
            ring.release(ring.published)

    return work


def recovery(part: float, folder: Path) -> Work:
    """Recover UTP-MD by retransmission and snapshots, behind a bad network."""
    play, drawn = simulation("campaign").play, simulation("world").drawn
    # The sessions that they play are made before.
    for seed in range(1, some(4 * part) + 1):
        drawn(seed)

    def work() -> None:
        for seed in range(1, some(4 * part) + 1):
            assert not play(seed).failures, f"seed {seed}"

    return work


def lossy(part: float, folder: Path) -> Work:
    """Recover a fifth of all packets, lost on both lines."""
    world, network = simulation("world"), simulation("network")
    plans = []
    for seed in range(some(4 * part)):
        faults = network.Shared(loss=0.2, until_ns=2 * SECOND_NS)
        line_a, line_b = network.LineFaults(), network.LineFaults(skew_ns=2_000_000)
        live = [(line_a, line_b, faults)] * 3
        session = world.session((0, 1, 3, 4)[seed % 4])
        plans.append(world.Plan(session, heal_ns=2 * SECOND_NS, live=live))
    return lambda: [world.World(plan, seed).play() for seed, plan in enumerate(plans)]


def snapshot(feed: Any, service: int) -> list[bytes]:
    """Return the messages of a generated market's snapshot."""
    from feedhandler.market.stream_market import Market
    from feedhandler.replay.generating.generator import SessionGenerator

    market = Market(feed, keeps_messages=True)
    for each in SessionGenerator(feed, SEED, instruments=60).packets(SECOND_NS // 4):
        market.apply(each.packet)
    return market.snapshot(service)


def refreshing(part: float, folder: Path) -> Work:
    """Assemble snapshots from a refresh line, compressed and not."""
    from feedhandler.codecs import load_feed
    from feedhandler.retrans.refresh import RefreshAssembler
    from feedhandler.retrans.settings import RecoverySettings
    from feedhandler.retrans.snapshots import SnapshotCutter

    feed, service = load_feed(UTP), 104
    messages, cutter = snapshot(feed, service), SnapshotCutter(feed)
    loops = [cutter.cut(service, messages, 9, 1, 0, compress) for compress in (True, False)]

    def work() -> None:
        assembler, numbers = RefreshAssembler(feed, service, RecoverySettings()), itertools.count(1)
        for _ in range(some(150 * part)):
            for packet in itertools.chain(*loops):
                assembler.packet(packet, next(numbers), 0)
            assert assembler.pop_events()

    return work


def venues(part: float, folder: Path) -> Work:
    """Recover the channels of six venues, each by the venue's own protocol."""
    world = simulation("line_world")
    names = ("cboe", "cme_loops", "cme_replay", "iex", "itch", "nyse")
    every = [simulation(f"{name}_venue").VENUE for name in names]
    os.environ[world.PASSWORD] = "SECRET"
    return lambda: [world.play(venue, seed) for venue in every for seed in range(some(12 * part))]


def retransmission_server(part: float, folder: Path) -> Work:
    """Keep packets for retransmission and look them up again; cut snapshots into packets."""
    from feedhandler.codecs.feed_table import PacketHeader
    from feedhandler.codecs.scanner import parse_next
    from feedhandler.retrans.snapshots import SnapshotCutter
    from feedhandler.retrans.store import PacketStore

    feed, packets = utp_packets(some(200_000 * part))
    store, cutter, service = PacketStore(4 << 20), SnapshotCutter(feed), 104
    messages = snapshot(feed, service)

    def work() -> None:
        header = PacketHeader()
        for number, packet in enumerate(packets, 1):
            parse_next(feed.table, packet, 0, len(packet), header)
            store.append(number, number + 1, packet, 0, len(packet))
            if number % 50 == 0:
                store.packets(number - 20, number)
            if number % 2_000 == 0:
                cutter.cut(service, messages, number, number, 0)

    return work


# -- streams out ------------------------------------------------------------------------------


def fan_out(part: float, folder: Path) -> Work:
    """Fan packets out to links of every grain, and to one that resumes with what it missed."""
    from feedhandler.amqp.framing import WHOLE_PACKET
    from tests.support.amqp import FEED, Rig, prefix_of

    rig = Rig((104, 105), history_bytes=1 << 20)
    addresses = ["#", "euronext.104", "euronext.104?as=batch", "#?as=message",
                 "euronext.104.1003,euronext.105.1004?as=message", "#?types=230"]  # fmt: skip
    links = [rig.attach(address)[1] for address in addresses]

    def work() -> None:
        for turn in range(some(250 * part)):
            for channel in (0, 1):
                rig.packets(50 * turn + 1, 50 * turn + 50, channel)
            rig.pump()
            tag = prefix_of(FEED, 104) + struct.pack(">QH", 50 * turn + 1, WHOLE_PACKET)
            back, link = rig.attach(f"euronext.104?from={tag.hex()}")
            rig.catch_up()
            rig.detach(back)
            for each in (*links, link):
                each.frames.clear()

    return work


def catching_up(part: float, folder: Path) -> Work:
    """Send links that come back after long all that they missed."""
    from feedhandler.amqp.framing import WHOLE_PACKET
    from tests.support.amqp import FEED, Rig, prefix_of

    rig, count = Rig(history_bytes=4 << 20), some(5_000 * part)
    for first in range(1, count + 1, 50):
        rig.packets(first, min(first + 49, count))
        rig.pump()
    tag = prefix_of(FEED, 104) + struct.pack(">QH", 1, WHOLE_PACKET)

    def work() -> None:
        for grain in ("packet", "batch", "message") * 4:
            back, _ = rig.attach(f"euronext.104?as={grain}&from={tag.hex()}")
            rig.catch_up()
            rig.detach(back)

    return work


def conflation(part: float, folder: Path) -> Work:
    """Conflate for links that fall behind, and send them books."""
    from tests.support.flow import ConflatedLink, Traffic

    def work() -> None:
        for grain in ("packet", "message", "batch"):
            made, chance = ConflatedLink(f"#?as={grain}"), random.Random(SEED)
            traffic = Traffic(chance, symbols=20)
            for _ in range(some(1_500 * part)):
                made.put(traffic.messages(5))
                made.rig.pump()
                if chance.random() < 0.05:
                    made.grant(chance.randrange(200))

    return work


def record_fan_out(part: float, folder: Path) -> Work:
    """Normalise ITCH for links of every schema; levels of slow ones conflate."""
    from tests.support.amqp import Rig

    feed, packets = orders_of(ITCH, 15_000 * part)
    rig = Rig((1,), feed, records=True)
    addresses = [f"#?as={schema}" for schema in ("mbo", "bbo", "mbp10", "trades")]
    links = [rig.attach(address)[1] for address in addresses]
    slow, behind = rig.attach("#?as=bbo&full=conflate", grants=0)

    def work() -> None:
        for number, data in enumerate(packets):
            for begin, header, index in feed.scanned(data):
                rig.put(data[begin : begin + header.length], header.sequence, index.count)
            rig.pump()
            if number % 100 == 0:
                behind.grants += 50
                slow.drain()
                for link in (*links, behind):
                    link.frames.clear()

    return work


def destination(part: float, folder: Path) -> Work:
    """Publish to a broker: messages confirmed, some returned, a connection that breaks."""
    from feedhandler.amqp.publishing.destination import Destination
    from feedhandler.amqp.publishing.envelope import Envelope
    from feedhandler.amqp.queueing.unsettled_map import Outcome
    from feedhandler.amqp.routing import parse_address
    from feedhandler.amqp.sender_queue import Peer
    from tests.support.amqp import Rig
    from tests.support.spill import FakeBroker

    rig, now = Rig((104,)), itertools.count()
    made = Destination(
        Peer(rig.fanout.dirty_peers), parse_address("#?as=message", rig.feed.type_code),
        rig.fanout.streams, 10_000, 1 << 20, 65_536, lambda tries: 1_000 * tries,
        now.__next__, None, "drop_oldest",
    )  # fmt: skip
    rig.fanout.add(made)

    def work() -> None:
        link = FakeBroker()
        for turn in range(some(400 * part)):
            if turn % 50 == 0:
                made.disconnect()
                link = FakeBroker()
                made.connect(link, Envelope(b"", lambda subject: f"/exchanges/x/{subject}"))
            rig.packets(50 * turn + 1, 50 * turn + 50)
            rig.pump()
            numbers = [number for number, _ in link.frames]
            link.frames.clear()
            for number in numbers[:2]:
                made.unsettled.come_back(number, Outcome.RELEASED, next(now))
            for number in numbers[2:]:
                made.unsettled.confirm(number, next(now))
            made.unsettled.due(next(now) + 10_000)
            made.drain()

    return work


def spilling(part: float, folder: Path) -> Work:
    """Publish by destinations whose backlog goes to a journal, with every fault."""
    play = simulation("test_spill_seeds").play
    return lambda: [play(seed, folder) for seed in range(1, some(24 * part) + 1)]


def serve(port: Any) -> None:
    """Run a compiled node that sends packets as fast as its subscriber takes them."""
    import uvloop

    from tests.support.amqp import packet
    from tests.support.node import NodeRig

    packets = [packet(number) for number in range(1, 501)]

    async def send() -> None:
        rig, numbers = NodeRig(), itertools.count(1)
        rig.node.start()
        port.send(rig.port)
        while True:
            queues = rig.fanout.sender_queues
            if queues and all(queue.queued_bytes < 1 << 20 for queue in queues):
                for data in packets:
                    rig.put(data, next(numbers), 5)
                await rig.deliver()
            await asyncio.sleep(0)

    uvloop.run(send())


@contextlib.contextmanager
def node_beside() -> Iterator[str]:
    """Run a node in a process of its own, compiled whatever this one is; yield its URL."""
    context, ours = multiprocessing.get_context("spawn"), os.environ.pop("FEEDHANDLER_PURE", None)
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(there,), daemon=True)
    try:
        child.start()
        yield f"amqp://127.0.0.1:{here.recv()}"
    finally:
        child.kill()
        child.join()
        if ours is not None:
            os.environ["FEEDHANDLER_PURE"] = ours


def subscribing(part: float, folder: Path) -> Work:
    """Subscribe to messages as objects and to batches as columns; the node is apart."""
    import uvloop

    from feedhandler import subscribe

    async def work() -> None:
        wanted = some(50_000 * part)
        with node_beside() as url:
            async with subscribe(url, "euronext.104", as_="message") as messages:
                async for _ in messages:
                    if not (wanted := wanted - 1):
                        break
            wanted = some(100_000 * part)
            async with subscribe(url, "euronext.104", as_="batch") as messages:
                async for batch in messages.batches():
                    if batch.count:
                        wanted -= len(batch.columns(230)["seq"])
                    if wanted <= 0:
                        break

    return lambda: uvloop.run(work())


def single_reads(part: float, folder: Path) -> Work:
    """Read packets that come one by one, each handed to a subscriber's callback."""
    from feedhandler.amqp.subscribing.columns import Workspace
    from feedhandler.amqp.subscribing.fast_dispatch import FastDispatch
    from tests.support.intake import Intake

    intake, packet = Intake(credit=100), bytes(200)
    link = FastDispatch(intake, lambda batch: None, None, "packet", Workspace())

    def work() -> None:
        for _ in range(some(20_000 * part)):
            intake.bring(packet)
            link.dispatch()

    return work


def measuring(part: float, folder: Path) -> Work:
    """Count, check and time what a client is sent, as the laboratory's do."""
    import uvloop

    from bench.subscriber import Subscriber
    from feedhandler import subscribe
    from feedhandler.amqp.subscribing.columns import Batch

    async def work() -> None:
        client, done = Subscriber("packet", True), asyncio.Event()

        def on_batch(batch: Batch) -> None:
            client.add(batch)
            if client.tally.deliveries >= 100_000 * part:
                done.set()

        with node_beside() as url:
            async with subscribe(url, "euronext.104", stamp=True) as messages:
                delivering = asyncio.create_task(messages.deliver(on_batch))
                ended = asyncio.create_task(done.wait())
                await asyncio.wait((delivering, ended), return_when=asyncio.FIRST_COMPLETED)
                delivering.cancel()
                assert done.is_set()

    return lambda: uvloop.run(work())


# -- queues -----------------------------------------------------------------------------------


def journal(part: float, folder: Path) -> Work:
    """Put many messages at once and one by one, take them, deliver them; then reopen the queue."""
    import uvloop

    from feedhandler.journal import PersistentQueue, QueueSettings

    content, chosen = bytes(512), QueueSettings(durability="fast")

    async def put(queue: Any) -> None:
        for _ in range(some(250 * part)):
            await queue.put_many([content] * 8)
            await asyncio.gather(*(queue.put(content) for _ in range(8)))

    async def work() -> None:
        async with PersistentQueue.open(folder / "queue", chosen) as queue:
            await asyncio.gather(*(put(queue) for _ in range(8)))
            left = queue.statistics()["pending"]
            for _ in range(left // 2):
                item = await queue.get()
                await queue.delivered(item.id)
        async with PersistentQueue.open(folder / "queue", chosen) as queue:
            left = queue.statistics()["pending"]
            while left > 0:
                items = await queue.get_many(64)
                left -= len(items)
                await queue.delivered(*(item.id for item in items))

    return lambda: uvloop.run(work())


def journal_reading(part: float, folder: Path) -> Work:
    """Open a queue again and read it from its files, 256 items at a time."""
    import uvloop

    from feedhandler.journal import PersistentQueue, QueueSettings

    count, chosen = some(40 * part), QueueSettings(durability="fast")

    async def fill() -> None:
        async with PersistentQueue.open(folder / "queue", chosen) as queue:
            for _ in range(count):
                await queue.put_many([bytes(100)] * 256)

    async def work() -> None:
        for _ in range(5):
            async with PersistentQueue.open(folder / "queue", chosen) as queue:
                for _ in range(count):
                    await queue.get_many(256)

    uvloop.run(fill())
    return lambda: uvloop.run(work())


def talk(port: int, turns: int) -> None:
    """Put messages into a durable queue, take and settle them: the process of a client."""
    from tests.support.durable import QueueClient

    client = QueueClient(port)
    putting, taking = client.sender(), client.taker(credit=1_000)
    for _ in range(turns):
        client.put_numbers(putting, *range(200))
        client.wait_for(taking, 200)
        client.settle_all(taking)
        taking.flow(200)
    client.close()


def durable_queue(part: float, folder: Path) -> Work:
    """Put messages into a node's durable queue over AMQP; another process takes and settles."""
    from tests.support.durable import orders, running

    async def work() -> None:
        async with running(orders(folder / "orders")) as rig:
            client = multiprocessing.get_context("spawn").Process(
                target=talk, args=(rig.port, some(160 * part)), daemon=True
            )
            client.start()
            await asyncio.to_thread(client.join)
            assert client.exitcode == 0

    return lambda: asyncio.run(work())


def keyed(part: float, folder: Path) -> Work:
    """Dispatch by key: messages taken in, handed out and ended, while thousands wait."""
    from bench.bench_keyed_core import cycles_a_second

    return lambda: cycles_a_second(some(20_000 * part), 1.0, some(500_000 * part))


# -- exchange, captures, replay ---------------------------------------------------------------


def generating(part: float, folder: Path) -> Work:
    """Generate a stretch of the built-in market, and write it as a capture."""
    from feedhandler.replay.generating.profile import load_profile
    from feedhandler.replay.generating.traffic import Traffic
    from feedhandler.replay.generating.traffic_capture import write_capture

    traffic = Traffic(load_profile("market"), SEED, duration_s=max(part, 0.05))
    return lambda: write_capture(traffic, folder / "market.pcap")


def recorded(folder: Path, seconds: float) -> Path:
    """Return a capture of both lines, generated by the product compiled or not."""
    from feedhandler.codecs import load_feed
    from feedhandler.replay.captures.writer import CaptureWriter
    from feedhandler.replay.generating.generator import SessionGenerator

    feed, path = load_feed(UTP), folder / "session.pcap"
    with CaptureWriter(path) as writer:
        for each in SessionGenerator(feed, SEED).packets(int(seconds * SECOND_NS)):
            for line in (1, 2):
                at_ns = NOW_NS + each.due_ns + line * 3_000
                writer.write(at_ns, f"239.1.{line}.1", 5_001, each.packet)
    return path


def captures(part: float, folder: Path) -> Work:
    """Read files down to the payloads: classic pcap, and pcapng."""
    import dpkt

    from bench.bench_captures import write_session
    from feedhandler.replay.captures.reading import Capture
    from tests.support.captures import PcapngBytes

    count = some(80_000 * part)
    plain, blocks = folder / "session.pcap", folder / "session.pcapng"
    write_session(plain, count)
    made = PcapngBytes().section().interface()
    with plain.open("rb") as file:
        for number, (_, frame) in enumerate(dpkt.pcap.Reader(file)):
            made.packet(frame, number)
    blocks.write_bytes(bytes(made.data))
    return lambda: [len(batch) for path in (plain, blocks) for batch in Capture(path).batches()]


def replay(part: float, folder: Path) -> Work:
    """Loop a recording with new numbers to other groups, as `--write` would have it."""
    from feedhandler.codecs import load_feed
    from feedhandler.replay.captures.reading import Capture
    from feedhandler.replay.playing.block_records import RecordMaker
    from feedhandler.replay.playing.blocks import all_blocks, make_preparer
    from feedhandler.replay.playing.frame_headers import Destination
    from feedhandler.replay.playing.pace import Pace
    from feedhandler.replay.playing.pipeline import Pipeline
    from feedhandler.replay.playing.sender_lines import MulticastLine, number_lines
    from feedhandler.replay.playing.source import chunks_of

    path, feed = recorded(folder, 0.8 * part), load_feed(UTP)
    lines = [MulticastLine("A", ("239.2.1.1", 6_001)), MulticastLine("B", ("239.2.2.1", 6_001))]
    numbered = number_lines(lines)
    maker = RecordMaker([Destination(group, port) for _, group, port in numbered.destinations])

    def work() -> None:
        source = Pipeline([Capture(path)], feed=feed, passes=3)
        chunks = chunks_of(source, None, numbered.channels, ["A", "B"])
        for block in all_blocks(make_preparer(lines, Pace()), chunks, NOW_NS):
            if len(block):
                maker.records(block, NOW_NS)

    return work


def playing(part: float, folder: Path) -> Work:
    """Loop a recording with new numbers, prepared for being sent on two lines."""
    from feedhandler.codecs import load_feed
    from feedhandler.replay.captures.reading import Capture
    from feedhandler.replay.playing.blocks import all_blocks, make_preparer
    from feedhandler.replay.playing.pace import Pace
    from feedhandler.replay.playing.pipeline import Pipeline
    from feedhandler.replay.playing.sender_lines import MulticastLine, number_lines
    from feedhandler.replay.playing.source import chunks_of

    path, feed = recorded(folder, 2 * part), load_feed(UTP)
    lines = [MulticastLine("A", ("239.2.1.1", 6_001)), MulticastLine("B", ("239.2.2.1", 6_001))]

    def work() -> None:
        source = Pipeline([Capture(path)], feed=feed, passes=4)
        chunks = chunks_of(source, None, number_lines(lines).channels, ["A", "B"])
        for _ in all_blocks(make_preparer(lines, Pace()), chunks, NOW_NS):
            pass

    return work


def recording(part: float, folder: Path) -> Work:
    """Lay out as records of a capture what lines received."""
    from feedhandler.ingest.records import RecordKind
    from feedhandler.ingest.ring import Ring
    from feedhandler.recording.frame_writer import FrameWriter

    _, packets = utp_packets(some(150_000 * part))
    tap = Ring(1 << 20)
    writer = FrameWriter([("239.1.1.1", 5_001, ""), ("239.1.2.1", 5_001, "")], 1 << 18, True)

    def work() -> None:
        for at, packet in enumerate(packets):
            if not tap.put(RecordKind.PACKET, line=at & 1, received_ns=NOW_NS, payload=packet):
                raise RuntimeError("the tap is full")
            if at % 100 == 99:
                tap.publish()
                writer.drain(tap, 1 << 18)

    return work


def characterise(part: float, folder: Path) -> Work:
    """Characterise a recorded session in this process: find its slices, merge their digests."""
    from feedhandler.characterise.files import look_at
    from feedhandler.characterise.job import Request, characterise, in_process
    from feedhandler.characterise.planning import exact_slices

    path = str(recorded(folder, 6 * part))

    def work() -> None:
        exact_slices([look_at(path)], 1 << 20)
        characterise([path], Request(UTP), in_process, slice_size=1 << 20)

    return work


# -- markets ----------------------------------------------------------------------------------


def markets(part: float, folder: Path) -> Work:
    """Rebuild markets from UTP-MD and from ITCH, keep orders' latest messages, make snapshots."""
    from feedhandler.codecs import load_feed
    from feedhandler.market.stream_market import Market
    from feedhandler.replay.generating.generator import SessionGenerator

    utp = load_feed(UTP)
    generated = SessionGenerator(utp, SEED).packets(int(2 * SECOND_NS * part))
    loads = [(utp, [each.packet for each in generated], 104), (*orders_of(ITCH, 80_000 * part), 0)]

    def work() -> None:
        for feed, packets, service in loads:
            market = Market(feed, keeps_messages=True)
            for packet in packets:
                market.apply(packet)
            market.snapshot(service)

    return work


def books(part: float, folder: Path) -> Work:
    """Apply MBO records to books of 500 instruments."""
    from bench.bench_books import market
    from feedhandler.market.depth_book import DepthBook

    records = market(some(200_000 * part), some(10_000 * part))
    return lambda: DepthBook().apply(records)


# -- FIX over multicast, the overlay ----------------------------------------------------------


def fixcast_publishing(part: float, folder: Path) -> Work:
    """Stamp, pack and pace FIX messages, without a socket."""
    from bench.fixcast_load import book_updates
    from feedhandler.fixcast.messages import Header
    from feedhandler.fixcast.pacing import TokenBucket
    from feedhandler.fixcast.send_queue import SendQueue
    from feedhandler.retrans.store import PacketStore

    messages = book_updates(some(60_000 * part), SEED)
    stamper = Header(sender=b"PUB", target=b"c").stamper(NOW_NS)
    queue, store, bucket = (
        SendQueue(0, 1400, 1400, 4_096),
        PacketStore(4 << 20),
        TokenBucket(10**9, 1 << 20),
    )

    def work() -> None:
        for number, message in enumerate(messages, 1):
            now_ns = NOW_NS + number * 2_000
            queue.publish(stamper, store, message, number, now_ns)
            if number % 20 == 0:
                count = queue.due(bucket, now_ns, 64)
                queue.datagrams(count)
                queue.gone(bucket, count, now_ns)

    return work


def fixcast(part: float, folder: Path) -> Work:
    """Run FIX over multicast, publishers and receivers, with losses and retransmission."""
    module = simulation("test_fixcast")
    return lambda: [module.play(module.World(seed)) for seed in range(1, some(60 * part) + 1)]


def releasing(part: float, folder: Path) -> Work:
    """Hold messages by 100 receivers until their deadline; one thread releases them."""
    from feedhandler.overlay.release import Release
    from feedhandler.overlay.releasing import release_all, soonest
    from feedhandler.overlay.wire import Head, Kind

    holding = [Release(2_000_000) for _ in range(100)]

    def work() -> None:
        for number in range(1, some(10_000 * part) + 1):
            at = NOW_NS // 2 + number * 1_000
            head = Head(Kind.DATA, 1, 1, number, at - 1_000, at)
            for each in holding:
                each.put(head, b"", at - 500)
            soonest(holding)
            release_all(holding)

    return work


LOADS: dict[str, Prepare] = {
    "scanning": scanning,
    "columns": columns,
    "fix-messages": fix_messages,
    "fix-scanning": fix_scanning,
    "arbitration": arbitration,
    "arbitration-seeds": seeds("test_arbitration_seeds", 30),
    "recovery-seeds": recovery,
    "lossy": lossy,
    "refreshing": refreshing,
    "venue-seeds": venues,
    "fix-recovery-seeds": seeds("test_fix_recovery_seeds", 12),
    "retransmission-server": retransmission_server,
    "fan-out": fan_out,
    "catching-up": catching_up,
    "conflation": conflation,
    "record-fan-out": record_fan_out,
    "destination": destination,
    "spilling-seeds": spilling,
    "subscribing": subscribing,
    "single-reads": single_reads,
    "measuring": measuring,
    "journal": journal,
    "journal-reading": journal_reading,
    "durable-queue": durable_queue,
    "keyed": keyed,
    "keyed-seeds": seeds("test_keyed_queue", 200),
    "generating": generating,
    "captures": captures,
    "replay": replay,
    "playing": playing,
    "recording": recording,
    "characterise": characterise,
    "markets": markets,
    "books": books,
    "fixcast-publishing": fixcast_publishing,
    "fixcast-seeds": fixcast,
    "overlay-seeds": seeds("test_overlay", 200),
    "releasing": releasing,
}
