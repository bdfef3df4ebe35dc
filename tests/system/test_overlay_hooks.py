"""Hooks of the overlay in the kernel: against their twin, and in namespaces with plain programs."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.hooks import attaching, libbpf
from feedhandler.overlay.hooks.abi import (
    COUNTERS,
    NUMBERING,
    SETTINGS_BYTES,
    SLOT,
    TARGET_BYTES,
    Settings,
)
from feedhandler.overlay.hooks.attaching import Request
from feedhandler.overlay.hooks.compiling import object_file
from feedhandler.overlay.hooks.twin import HEADER, Deduplicator, Verdict, encode, seal
from tests.support.commands import run_here
from tests.support.needs import absent
from tests.support.overlay_hooks import (
    Network,
    NoNetwork,
    folded,
    frame_of,
    require,
    udp_sum,
)

GROUP = ("239.77.0.1", 5000)
PORT, TREE = 6000, 7
ANYWHERE = ("0.0.0.0", PORT)
KEY = bytes(range(16))
XDP_DROP, XDP_PASS = 1, 2
UDP_SEGMENT, SO_NO_CHECK = 103, 11
PLAIN_HOST = ("10.77.0.9", PORT)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The object, compiled."""
    try:
        require()
    except NoNetwork as error:
        absent("hooks", str(error))
    return object_file(tmp_path_factory.mktemp("hooks"))


@pytest.fixture(autouse=True)
def pins(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of pins for this test alone, empty afterwards."""
    folder = attaching.BPFFS / f"overlay-hooks-{os.getpid()}"
    monkeypatch.setattr(attaching, "FOLDER", folder)
    yield folder
    for each in folder.glob("*"):
        for name in each.iterdir():
            name.unlink()
        each.rmdir()
    if folder.exists():
        folder.rmdir()


def loaded(compiled: Path, role: str = "receive", **changed: object) -> libbpf.Loaded:
    """A program that is at no device."""
    values: dict[str, object] = {
        "match": ANYWHERE,
        "tree": TREE,
        "device": 1,
        "plain": GROUP,
        "slots": 64,
    }
    return attaching.load(role, Settings(**{**values, **changed}), (), compiled)  # type: ignore[arg-type]


def counted(program: libbpf.Loaded) -> Counter[str]:
    """Counters of a loaded program that are not zero."""
    return +Counter(dict(zip(COUNTERS, program.map("counters").sums(len(COUNTERS)), strict=True)))


def attached(net: Network, host: str, role: str, compiled: Path, **values: object) -> Path:
    """A hook in a host."""
    given: dict[str, object] = {"device": "eth0", "tree": TREE, "match": ANYWHERE, "to": [GROUP]}
    with net.inside(host):
        request = Request(role=role, **{**given, **values})  # type: ignore[arg-type]
        return attaching.attach(request, compiled)


def counters(folder: Path) -> Counter[str]:
    """Return the counters of an attached hook that are not zero, by name."""
    return +Counter(attaching.read(folder).counters)


def sender(net: Network, host: str = "s") -> socket.socket:
    """A plain program's socket."""
    with net.inside(host):
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def next_frame(raw: socket.socket, port: int) -> bytes:
    """The next UDP frame to this port."""
    while True:
        frame = raw.recv(4096)
        if (
            frame[12:14] == b"\x08\x00"
            and frame[23] == 17
            and frame[36:38] == port.to_bytes(2, "big")
        ):
            return frame


def nothing_more(plain: socket.socket, marker: bytes) -> None:
    """Only the marker, which was sent last, is still to come."""
    assert plain.recv(2048) == marker


# ---- One program on frames, without a device. ----


def test_the_maps_are_laid_out_as_this_process_packs_them(compiled: Path) -> None:
    program = loaded(compiled)
    sizes = {
        name: program.map(name).value_bytes
        for name in ("settings", "targets", "numbering", "slots")
    }
    assert sizes == {
        "settings": SETTINGS_BYTES,
        "targets": TARGET_BYTES,
        "numbering": NUMBERING.size,
        "slots": SLOT.size,
    }
    program.close()


def mutated(draw: random.Random, datagram: bytes) -> bytes:
    """A datagram with a byte changed, cut or grown."""
    at = draw.randrange(len(datagram))
    kind = draw.randrange(3)
    if kind == 0:
        return datagram[:at] + bytes([draw.randrange(256)]) + datagram[at + 1 :]
    return datagram[:at] if kind == 1 else datagram + draw.randbytes(draw.randrange(1, 9))


@pytest.mark.parametrize("key", [b"", KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("slots", [1, 64])
def test_the_kernel_judges_random_datagrams_as_the_twin(
    compiled: Path, seed: int, key: bytes, slots: int
) -> None:
    draw = random.Random(seed)
    program = loaded(compiled, key=key, slots=slots)
    twin = Deduplicator(TREE, slots, key)
    judged: Counter[str] = Counter()
    newest, highest = 1, 1
    for _ in range(4000):
        if draw.random() < 0.01:
            newest, highest = newest + 1, 1
        highest += draw.random() < 0.5
        id = max(0, highest - draw.randrange(8) * draw.choice((1, 1, slots)))
        datagram = encode(
            TREE,
            max(1, newest - draw.choice((0,) * 9 + (1,))),
            id,
            draw.randbytes(draw.randrange(200)),
            key,
        )
        if draw.random() < 0.3:
            datagram = mutated(draw, datagram)
        verdict = twin.judge(datagram)
        judged[verdict.value] += 1
        frame = frame_of(datagram, PLAIN_HOST)
        result, after = libbpf.run_test(program.program, frame)
        passed = verdict in (Verdict.FIRST, Verdict.OTHER_KIND)
        assert result == (XDP_PASS if passed else XDP_DROP), (verdict, datagram)
        if verdict is Verdict.FIRST:
            assert after[42:] == datagram[56:]
            assert folded(after[14:34]) == 0xFFFF
            assert udp_sum(after) == 0xFFFF
        else:
            assert after == frame
    judged["restarts"] = twin.restarts
    assert counted(program) == +judged
    program.close()


def test_frames_of_any_bytes_do_no_harm(compiled: Path, seed: int) -> None:
    draw = random.Random(seed)
    program = loaded(compiled)
    whole = frame_of(encode(TREE, 1, 1, b"payload"), PLAIN_HOST)
    for _ in range(20_000):
        frame = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        cut = bytes(frame[: draw.randrange(14, len(frame) + 1)])
        result, after = libbpf.run_test(program.program, cut)
        assert result in (XDP_DROP, XDP_PASS)
        assert after == cut or len(after) == len(cut) - HEADER.size - 16
    program.close()


@pytest.mark.parametrize("checksum", ["whole", "partial", "none"])
def test_checksums_of_each_kind_stay_right_when_the_header_is_stripped(
    compiled: Path, seed: int, checksum: str
) -> None:
    draw = random.Random(seed)
    program = loaded(compiled, slots=1)
    for id in range(1, 400):
        payload = draw.randbytes(draw.randrange(1401))
        frame = frame_of(encode(TREE, 1, id, payload), PLAIN_HOST, checksum=checksum)
        result, after = libbpf.run_test(program.program, frame)
        assert result == XDP_PASS
        assert folded(after[14:34]) == 0xFFFF
        if checksum == "whole":
            assert udp_sum(after) == 0xFFFF
        else:
            # Nothing is there to be verified, which 0 says.
            assert after[40:42] == bytes(2)
    program.close()


def test_what_was_damaged_on_the_way_has_a_wrong_checksum_afterwards_too(compiled: Path) -> None:
    program = loaded(compiled)
    for id, at in enumerate((66, 75, 100), 1):  # the time of sending, the deadline, the payload
        frame = bytearray(frame_of(encode(TREE, 1, id, bytes(40)), PLAIN_HOST))
        frame[at] ^= 4
        result, after = libbpf.run_test(program.program, bytes(frame))
        assert result == XDP_PASS
        assert udp_sum(after) != 0xFFFF
    program.close()


def test_one_slot_from_two_processors_gives_each_id_once(compiled: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        absent("hooks", "one processor only")
    program = loaded(compiled, slots=1)
    offers = 15_000
    firsts: list[list[int]] = [[], []]

    def offer(which: int) -> None:
        os.sched_setaffinity(0, {cpus[which]})
        for id in range(1, offers + 1):
            frame = frame_of(encode(TREE, 1, id, b"x"), PLAIN_HOST, checksum="none")
            if libbpf.run_test(program.program, frame)[0] == XDP_PASS:
                firsts[which].append(id)

    threads = [threading.Thread(target=offer, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted = firsts[0] + firsts[1]
    assert len(set(accepted)) == len(accepted)
    assert offers in accepted
    assert all(each == sorted(each) for each in firsts)
    counts = counted(program)
    assert counts["messages"] == len(accepted)
    assert counts["duplicates"] + counts["violations"] == 2 * offers - len(accepted)
    program.close()


# ---- Plain programs in namespaces. ----


@pytest.mark.parametrize("bridged", [True, False], ids=["bridge", "cables"])
@pytest.mark.parametrize("offload", ["on", "off"])
@pytest.mark.parametrize("mode", ["native", "generic"])
def test_a_plain_programs_datagrams_reach_plain_programs(
    compiled: Path, mode: str, offload: str, bridged: bool
) -> None:
    with Network(["s", "a", "b", "c"], bridged=bridged) as net:
        hosts = net.hosts[1:]
        plain = [net.bind(host, GROUP[1], GROUP[0]) for host in hosts]
        unstripped = [net.bind(host, PORT) for host in hosts]
        hooks = [attached(net, host, "receive", compiled, mode=mode) for host in hosts]
        device = "eth0" if bridged else "eth1"
        net.exec("s", "ethtool", "-K", device, "tx", offload)
        to = [(net.address(host), PORT) for host in hosts]
        sending = attached(net, "s", "send", compiled, device=device, match=GROUP, to=to)
        program = sender(net)
        messages = [bytes([at]) * (at * 70) for at in range(21)]
        for message in messages:
            program.sendto(message, GROUP)
        # Generic XDP passes by what was redirected on this host and comes by no bridge.
        bypassed = mode == "generic" and not bridged
        for reader in unstripped if bypassed else plain:
            got = [reader.recv(2048)[56 if bypassed else 0 :] for _ in messages]
            assert got == messages
        for hook in hooks:
            assert counters(hook) == ({} if bypassed else {"messages": len(messages)})
        counts = counters(sending)
        assert (counts["messages"], counts["copies"]) == (len(messages), len(messages) * len(hosts))
        assert counts["failed"] == counts["no_neighbour"] == 0


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_what_is_sent_by_a_socket_over_a_cable_is_not_passed_by(compiled: Path, mode: str) -> None:
    with Network(["s", "a"], bridged=False) as net:
        plain = net.bind("a", GROUP[1], GROUP[0])
        attached(net, "a", "receive", compiled, mode=mode)
        program = sender(net)
        for id in (1, 1, 2):
            program.sendto(encode(TREE, 1, id, b"%d" % id), (net.address("a"), PORT))
        assert [plain.recv(2048), plain.recv(2048)] == [b"1", b"2"]


@pytest.mark.parametrize("offload", ["on", "off"])
def test_what_leaves_has_a_header_and_checksums_that_are_right(
    compiled: Path, offload: str
) -> None:
    with Network(["s", "a", "b"]) as net:
        net.exec("s", "ethtool", "-K", "eth0", "tx", offload)
        # The switch's ports complete what was left to a device, in software.
        for host in ("a", "b"):
            net.exec("switch", "ethtool", "-K", f"to-{host}", "tx", "off")
        raws = [net.raw(host) for host in ("a", "b")]
        to = [(net.address("a"), PORT), (net.address("b"), PORT + 1)]
        attached(net, "s", "send", compiled, match=GROUP, to=to, key=KEY, hold_ns=1_000_000)
        program = sender(net)
        deadline = 0
        for id, length in enumerate((0, 1, 2, 33, 500, 1399, 1400), 1):
            payload = bytes(range(256)) * 6
            program.sendto(payload[:length], GROUP)
            for raw, (host, port) in zip(raws, to, strict=True):
                frame = next_frame(raw, port)
                assert frame[30:34] == socket.inet_aton(host)
                assert folded(frame[14:34]) == 0xFFFF
                assert udp_sum(frame) == 0xFFFF
                header = frame[42:82]
                fields = HEADER.unpack(header)
                assert fields[:5] == (b"OV", 1, 1, TREE, length)
                assert fields[6] == id
                assert fields[8] - fields[7] == 1_000_000
                assert frame[82:98] == seal(KEY, header)
                assert frame[98:] == payload[:length]
            assert fields[8] > deadline
            deadline = fields[8]


def test_a_program_that_wants_no_checksum_gets_none(compiled: Path) -> None:
    with Network(["s", "a"]) as net:
        raw = net.raw("a")
        attached(net, "s", "send", compiled, match=GROUP, to=[(net.address("a"), PORT)])
        program = sender(net)
        program.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        program.sendto(b"unchecked", GROUP)
        frame = next_frame(raw, PORT)
        assert frame[40:42] == bytes(2)
        assert frame[98:] == b"unchecked"


def test_deadlines_never_go_back_when_the_hold_does(compiled: Path) -> None:
    with Network(["s", "a"]) as net:
        reader = net.bind("a", PORT)
        hold = 3_600_000_000_000
        to = [(net.address("a"), PORT)]
        hook = attached(net, "s", "send", compiled, match=GROUP, to=to, hold_ns=hold)
        program = sender(net)
        program.sendto(b"held", GROUP)
        attaching.set_hold(hook, 1)
        program.sendto(b"less", GROUP)
        attaching.set_hold(hook, 0)
        program.sendto(b"none", GROUP)
        deadlines = [HEADER.unpack(reader.recv(2048)[:40])[8] for _ in range(3)]
        assert deadlines[1] == deadlines[0]
        assert deadlines[2] == 0


def test_what_cannot_be_replicated_goes_out_as_it_is_and_is_counted(compiled: Path) -> None:
    with Network(["s", "a"], mtu=600) as net:
        plain = net.bind("a", GROUP[1], GROUP[0])
        hook = attached(net, "s", "send", compiled, match=GROUP, to=[(net.address("a"), PORT)])
        overlay = net.bind("a", PORT)
        program = sender(net)
        limit = 600 - 28 - 56
        program.sendto(bytes(limit + 1), GROUP)
        assert len(plain.recv(2048)) == limit + 1
        program.sendto(bytes(1000), GROUP)
        assert len(plain.recv(2048)) == 1000
        program.sendto(bytes(limit), GROUP)
        assert len(overlay.recv(2048)) == limit + 56
        program.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
        program.sendto(bytes(400), GROUP)
        assert [len(plain.recv(2048)) for _ in range(4)] == [100] * 4
        counts = counters(hook)
        assert counts == {"too_long": 1, "fragments": 2, "segmented": 1, "messages": 1, "copies": 1}


def test_a_proxy_in_the_kernel_forwards_the_first_copy_to_its_children(compiled: Path) -> None:
    with Network(["s", "p", "q", "a", "b"]) as net:
        plain = [net.bind(host, GROUP[1], GROUP[0]) for host in ("a", "b")]
        receiving = [attached(net, host, "receive", compiled, key=KEY) for host in ("a", "b")]
        children = [(net.address(host), PORT) for host in ("a", "b")]
        proxies = []
        for host in ("p", "q"):
            own = (net.address(host), PORT)
            proxies.append(
                attached(net, host, "forward", compiled, match=own, to=children, key=KEY)
            )
        to = [(net.address(host), PORT) for host in ("p", "q")]
        attached(net, "s", "send", compiled, match=GROUP, to=to, key=KEY)
        program = sender(net)
        messages = [b"message %d" % at for at in range(50)]
        for message in messages:
            program.sendto(message, GROUP)
        for reader in plain:
            assert [reader.recv(2048) for _ in messages] == messages
        for hook in proxies:
            assert counters(hook) == {"messages": 50, "copies": 100}
        for hook in receiving:
            assert counters(hook) == {"messages": 50, "duplicates": 50}


def test_with_two_proxies_the_end_of_one_loses_nothing(compiled: Path) -> None:
    with Network(["s", "p", "q", "a", "b"]) as net:
        plain = [net.bind(host, GROUP[1], GROUP[0]) for host in ("a", "b")]
        for host in ("a", "b"):
            attached(net, host, "receive", compiled)
        children = [(net.address(host), PORT) for host in ("a", "b")]
        for host in ("p", "q"):
            attached(net, host, "forward", compiled, match=(net.address(host), PORT), to=children)
        to = [(net.address(host), PORT) for host in ("p", "q")]
        attached(net, "s", "send", compiled, match=GROUP, to=to)
        program = sender(net)
        messages = [b"message %d" % at for at in range(90)]
        for at, message in enumerate(messages):
            if at == 30:
                net.ip("p", "link", "set", "eth0", "down")
            if at == 60:
                net.ip("p", "link", "set", "eth0", "up")
            program.sendto(message, GROUP)
        for reader in plain:
            assert [reader.recv(2048) for _ in messages] == messages


def test_a_sender_that_is_attached_anew_begins_a_new_epoch(compiled: Path) -> None:
    with Network(["s", "a"]) as net:
        plain = net.bind("a", GROUP[1], GROUP[0])
        receiving = attached(net, "a", "receive", compiled)
        program = sender(net)
        for start in range(3):
            attached(net, "s", "send", compiled, match=GROUP, to=[(net.address("a"), PORT)])
            for at in range(4):
                program.sendto(b"%d %d" % (start, at), GROUP)
                assert plain.recv(2048) == b"%d %d" % (start, at)
            with net.inside("s"):
                assert attaching.detach("eth0") == ["send"]
        assert counters(receiving) == {"messages": 12, "restarts": 2}


def test_forged_replayed_and_foreign_datagrams_reach_no_program(compiled: Path) -> None:
    with Network(["s", "a"]) as net:
        plain = net.bind("a", GROUP[1], GROUP[0])
        hook = attached(net, "a", "receive", compiled, key=KEY)
        program, to = sender(net), (net.address("a"), PORT)
        for datagram in (
            encode(TREE, 5, 1, b"first", KEY),
            encode(TREE, 5, 1, b"first", KEY),
            encode(TREE, 5, 2, b"unsealed"),
            encode(TREE, 9, 1, b"another's key", bytes(16)),
            encode(TREE + 1, 5, 3, b"another tree", KEY),
            encode(TREE, 4, 9, b"an old epoch", KEY),
            b"no header",
            encode(TREE, 5, 9, b"last", KEY),
        ):
            program.sendto(datagram, to)
        assert plain.recv(2048) == b"first"
        nothing_more(plain, b"last")
        assert counters(hook) == {
            "messages": 2,
            "duplicates": 1,
            "forged": 2,
            "malformed": 2,
            "old_epochs": 1,
        }


# ---- Attaching and detaching. ----

ATTACH = """
import sys
from pathlib import Path
from feedhandler.overlay.hooks import attaching
attaching.FOLDER = Path(sys.argv[1])
attaching.attach(attaching.Request("receive", "eth0", ("0.0.0.0", 6000), [("239.77.0.1", 5000)], 7),
                 Path(sys.argv[2]))
print("attached", flush=True)
sys.stdin.read()
"""


def test_a_hook_outlives_the_process_that_attached_it_and_is_shown_until_it_is_detached(
    compiled: Path, pins: Path
) -> None:
    with Network(["s", "a"]) as net:
        plain = net.bind("a", GROUP[1], GROUP[0])
        with net.inside("a"):
            child = subprocess.Popen(
                [sys.executable, "-c", ATTACH, str(pins), str(compiled)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert child.stdout is not None
        assert child.stdout.readline() == b"attached\n"
        child.kill()
        child.communicate()
        program, to = sender(net), (net.address("a"), PORT)
        program.sendto(encode(TREE, 1, 1, b"after its death"), to)
        assert plain.recv(2048) == b"after its death"
        with net.inside("a"):
            (hook,) = attaching.show()
            assert (hook.role, hook.device, hook.to) == ("receive", "eth0", (GROUP,))
            assert hook.counters["messages"] == 1
            with pytest.raises(UsageError, match="already"):
                attached(net, "a", "receive", compiled)
            assert attaching.detach("eth0") == ["receive"]
            assert attaching.show() == []
            with pytest.raises(UsageError, match="no hook"):
                attaching.detach("eth0")
        overlay = net.bind("a", PORT)
        program.sendto(encode(TREE, 1, 2, b"plain again"), to)
        assert overlay.recv(2048)[56:] == b"plain again"


def test_what_is_detached_is_off_when_that_is_reported(compiled: Path) -> None:
    with Network(["s", "a"]) as net, net.inside("a"):
        request = Request("receive", "eth0", ANYWHERE, [GROUP], TREE)
        settings = attaching.settings_of(request)
        other = attaching.load("receive", settings, request.to, compiled)
        for _ in range(20):
            attaching.attach(request, compiled)
            assert attaching.detach("eth0") == ["receive"]
            # A device takes no second program: that would be refused as busy.
            os.close(libbpf.link(other.program, settings.device, libbpf.XDP))
        other.close()


def test_pins_of_a_device_that_has_gone_are_shown_and_removed_by_name(compiled: Path) -> None:
    with Network(["s", "a"]) as net:
        folder = attached(net, "a", "receive", compiled)
        net.ip("a", "link", "del", "eth0")
        with net.inside("a"):
            (hook,) = attaching.show()
            assert hook.device == ""
            assert attaching.detach(folder.name) == ["receive"]
            assert attaching.show() == []


def test_a_refused_attachment_leaves_nothing_behind(compiled: Path) -> None:
    with Network(["s", "a"]) as net:
        folder = attached(net, "a", "receive", compiled, mode="generic")
        for name in folder.iterdir():
            if name.name != "link":
                continue
            name.rename(folder.parent / "kept")
        for name in folder.iterdir():
            name.unlink()
        folder.rmdir()
        with pytest.raises(attaching.HostFault, match="takes no hook"):
            attached(net, "a", "receive", compiled, mode="native")
        (folder.parent / "kept").unlink()
        with net.inside("a"):
            assert attaching.show() == []


COMMAND = """
import sys
from pathlib import Path
from feedhandler.cli.app import chosen
from feedhandler.terminal.console import run_command
from feedhandler.overlay.hooks import attaching
attaching.FOLDER = Path(sys.argv[1])
sys.exit(run_command(lambda: chosen(["overlay", "hooks", *sys.argv[2:]])))
"""


def command(pins: Path, *words: str, before: tuple[str, ...] = ()) -> tuple[int, str, list[str]]:
    """Run `overlay hooks`: the exit code, what it prints, and its lines of complaint."""
    line = [*before, sys.executable, "-c", COMMAND, str(pins), *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr.splitlines()


def test_without_privilege_the_command_says_so_in_one_line(pins: Path) -> None:
    code, printed, complaints = command(
        pins, "show", before=("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    )
    assert (code, printed, len(complaints)) == (2, "", 1)
    assert "CAP_BPF" in complaints[0]


def test_the_commands_attach_show_change_and_detach(pins: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY.hex() + "\n")
    key.chmod(0o600)
    with Network(["s", "a"]) as net:
        there = ("nsenter", f"--net=/run/netns/{net.name('s')}")
        reader = net.bind("a", PORT)
        to = f"{net.address('a')}:{PORT}"
        match = f"{GROUP[0]}:{GROUP[1]}"
        words = ["attach", "send", "eth0", "--match", match, "--to", to, "--tree", "7"]
        assert command(pins, *words, "--key-file", str(key), before=there)[0] == 0
        code, _, complaints = command(pins, *words, before=there)
        assert (code, len(complaints)) == (2, 1)
        assert command(pins, "hold", "eth0", "--us", "350", before=there)[0] == 0
        sender(net).sendto(b"by command", GROUP)
        fields = HEADER.unpack(reader.recv(2048)[:40])
        assert fields[8] - fields[7] == 350_000
        code, printed, _ = command(pins, "show", "--json", before=there)
        row = json.loads(printed)
        assert code == 0
        assert (row["role"], row["device"], row["match"]) == ("send", "eth0", match)
        assert (row["to"], row["sealed"], row["hold_us"], row["messages"]) == ([to], True, 350, 1)
        code, printed, _ = command(pins, "show")
        assert code == 1
        assert "another namespace" in printed
        assert command(pins, "detach", "eth0", before=there)[:2] == (0, "eth0: send detached\n")
        assert command(pins, "show", before=there)[:2] == (0, "no hooks\n")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"--match": "group:5000"}, "no IPv4 address"),
        ({"--match": "239.77.0.1"}, "not host:port"),
        ({"--to": "10.77.0.2:0"}, "no port"),
        ({"--key-file": "/no/such/file"}, "no such file"),
        ({"--key-file": "open"}, "open to others"),
        ({"--key-file": "wrong"}, "no key"),
        ({"--messages-per-second": "99999999"}, "slots"),
    ],
)
def test_wrong_arguments_are_reported_in_a_line(
    tmp_path: Path, changed: dict[str, str], says: str
) -> None:
    for name, mode in (("open", 0o644), ("wrong", 0o600)):
        (tmp_path / name).write_text("not a key")
        (tmp_path / name).chmod(mode)
    options = {"--match": "239.77.0.1:5000", "--to": "10.77.0.2:6000", "--tree": "7", **changed}
    if "--key-file" in options:
        options["--key-file"] = str(tmp_path / options["--key-file"])
    words = [word for option in options.items() for word in option]
    done = run_here("overlay", "hooks", "attach", "send", "lo", *words)
    complaints = done.stderr.splitlines()
    assert (done.returncode, len(complaints)) == (2, 1)
    assert says in complaints[0]
