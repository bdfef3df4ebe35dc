"""Each command with an operator's mistakes: nothing ever but one clear line, and nothing done."""

import re
import socket
from pathlib import Path

import pytest

from tests.support import free_addresses
from tests.support.commands import run_here
from tests.unit.cli.conftest import GATEWAY

#: Beginnings that many rows have.
BEGINNINGS = {
    "PUBLISH": "fixcast publish ok.toml empty",
    "RECEIVE": "fixcast receive ok.toml",
    "FETCH": "fixcast keys fetch 127.0.0.1:1 --user a --to given",
    "GROUP": "capture --out x.pcap --group 239.1.1.1:5001",
    "REPLAY": "replay day.pcap --as-recorded",
    "DECODE": "decode day.pcap --feed nasdaq-totalview-itch --as mbo --out",
    "CHARACTERISE": "characterise day.pcap --feed nasdaq-totalview-itch --master none --out report",
    "ITCH": "--feed nasdaq-totalview-itch",
    "FIX": "--feed fix-marketdata",
    "MANY": "9" * 400,
}
#: Words, and what is said of them; the exit code stands before the words where it is not 2.
TABLE = """
nope | no such command 'nope' (see `feedhandler --help`)
config | missing command (one of check, show; see `feedhandler config --help`)
queue | missing command (one of stat, list, verify, cancel, drain, repair; see `feedhandler queue -
keyed | missing command (one of create, put, work, stat, list, keys; see `feedhandler keyed --help`)
fix | missing command (one of check; see `feedhandler fix --help`)
fixcast | missing command (one of publish, receive, plan, keys; see `feedhandler fixcast --help`)
fixcast keys | (one of new, list, rotate, give, serve, fetch; see `feedhandler fixcast keys --help`)
overlay | , receive, status, echo, simulate, hooks; see `feedhandler overlay --help`)
overlay hooks | missing command (one of attach,
demo --no-such-option | no such option: --no-such-option
config check --no-such-option | no such option: --no-such-option
demo --loss x | 'x' is no share: write 5% or 0.05
demo --seconds 0 | --seconds
config check | missing argument
decode x.pcap --feed | (see `feedhandler decode --help`)
decode x.pcap --day today | 'today' is no day
replay x.pcap --line-a 1.2.3.4:5 | 1.2.3.4:5 is no multicast group
replay x.pcap --line-a 239.1.1.1:5 --speed fast | 'fast' is no pace
subscribe amqp://127.0.0.1 k --as book | --as
subscribe http://127.0.0.1 euronext.# | 127.0.0.1
keyed put u q - --epoch -1 | --epoch
keyed put u q - --epoch 99999999999999999999999 | --epoch

run none | cannot read none: no such file
config check none | cannot read none: no such file
config show none | cannot read none: no such file
doctor none | cannot read none: no such file
status none | cannot read none: no such file
decode none | cannot read capture none
replay none --line-a 239.190.9.1:5001 | cannot read capture none
run naem.toml | naem.toml:2: gateway.naem: unknown key (did you mean name?)
config check naem.toml | naem.toml:2: gateway.naem: unknown key (did you mean name?)
doctor naem.toml | naem.toml:2: gateway.naem: unknown key (did you mean name?)
run nofeed.toml | unknown feed 'nope'
config check nofeed.toml | unknown feed 'nope'
run card.toml | no-such-card
0 config check cpu.toml | ok
run cpu.toml | receive.cpu: no processor 4095 for this process (it may use 0
0 config check member.toml | ok
run member.toml | overlay.cpu: no processor 4095 for this process (it may use 0
3 status ipc://none.ipc | no such path (start it
status udp://127.0.0.1:5 | is no endpoint
status silent.toml | control.bind is empty
1 doctor --interface no-such-card | no such interface

decode day.pcap --feed nope | unknown feed 'nope' (known feeds:
decode naem.toml | is not a capture
decode empty | is not a capture
1 decode day.pcap | datagrams are no euronext-utp-md packets
DECODE day.pcap --overwrite | is what is read (write to another file)
DECODE link.pcap --overwrite | is what is read (write to another file)
DECODE none/x | cannot write none/x: no such

replay day.pcap | --line-a, or --as-recorded
replay naem.toml --line-a 239.190.9.1:5001 | is not a capture
replay empty --line-a 239.190.9.1:5001 | is not a capture
replay day.pcap --line-a 239.190.9.1:5001 --interface no-such-card | 'no-such-card'
replay day.pcap --line-a 239.190.9.1:5001 --feed euronext-utp-md | none of the first datagrams
REPLAY --line-a 239.190.9.1:5001 | --as-recorded knows no line A and B
REPLAY ITCH --service 999 | no datagram is of what was chosen (see --from, --until
REPLAY ITCH --from 23:59:59 | no datagram is of what was chosen (see --from, --until
REPLAY ITCH --write day.pcap --overwrite | is what is read (write to another file)
REPLAY --write none/x.pcap | cannot write capture
REPLAY --service 104 | known only of a feed (name it with --feed)
REPLAY --loop 2 | name the feed with --feed
REPLAY --stamps now | send times are known only of a feed
REPLAY --from noon | 'noon' is no moment
REPLAY --until 09:00 --zone Paris | 'Paris' is no time zone
REPLAY --group nine | 'nine' is no group
REPLAY --group 239.0.0.9 | no datagram is of what was chosen
REPLAY --sequence 9-1 ITCH | the lower number comes first
REPLAY --loop 0 ITCH --dry-run | has no end
REPLAY --dry-run --write x.pcap | a dry run writes nothing
REPLAY --source-mac 02:11:22:33:44:55 | add --raw
REPLAY --bypass-queue | add --raw
replay fix.pcap --as-recorded FIX --dry-run --loop 2 | those of FIX messages are text
replay fix.pcap --as-recorded FIX --dry-run --stamps now | send times of FIX messages are text
replay day.pcap --map x=y | 'x=y' maps nothing
replay day.pcap --map 239.0.0.9=239.1.1.1 | is of a mapped group
replay-control ipc:///none pause 09:00 | takes no moment (leave 09:00 out, or say seek

capture --out x.pcap | nothing to capture
GROUP --group 239.1.1.1:5001 | given twice
GROUP --rotate-size 1kb | too small
GROUP --out . | . is a folder (name a file in it)
GROUP --out .. --rotate-every 1s | .. is a folder (name a file in it)
GROUP --rotate-keep 3 | one file only
GROUP --duration soon | no span of time
GROUP --interface eth99 | no such interface
GROUP --source abc | no
GROUP --buffer MANY | exabytes

generate --out x.pcap --profile no-such | no profile 'no-such'
generate --out x.pcap --profile euronext-2011-03 --rate 40mbps | is a day: it has no rate
generate --out x.pcap --rate fast | is no rate
generate --out x.pcap --rate 1bps | a rate of 1e-06 Mbit/s (profile market goes from
generate --out x.pcap --rate 1mbps --scale 2 | --scale says nothing
generate --out x.pcap --duration long | is no span of time
generate --out x.pcap --scale 0 | 0.001<=x<=100
generate --out x.pcap --scale 1000000 | 0.001<=x<=100
generate --out x.pcap --loss 2 | is not between
generate --out . --rate 1mbps --duration 1ms | . is a folder (name a file in it)
generate --out day.pcap | day.pcap is there already (name another file, or --overwrite)
generate --out led.pcap | led.pcap.ledger.json is there already (name another file, or --overwr
generate --profile old --out old --overwrite | is what is read (write to another file)
exchange --seconds 1 --ledger old | is there already
exchange --feed fix --seconds 1 --ledger old | is there already
exchange --seconds 1 --ledger old --write-config other.toml | is there already
exchange --seconds 1 --ledger x --write-config x | name two files
lab --out x --bound p90=1ms | --bound says nothing without --sweep
lab --out x --interface eth99 | no such interface 'eth99'
lab --out x --interface 192.0.2.1 | no such interface '192.0.2.1'
lab --out day.pcap/lab | cannot be written to
lab --capture fix.pcap --out x FIX | numbers of FIX messages are text
CHARACTERISE --every 1s | --every says nothing without --follow
CHARACTERISE --write-profile day.pcap | is what is read (write to another file)
CHARACTERISE --write-profile channels.toml --channels channels.toml | is what is read (write to an
characterise fix.pcap --out x --exact FIX | FIX messages have no layouts
characterise --lake x --out x FIX | FIX messages have no layouts
characterise fix.pcap --out x --master none --write-profile x FIX | cannot be generated
characterise day.pcap --out day.pcap/x ITCH | day.pcap cannot be written to (name another folder
characterise day.pcap --out x --feed euronext-utp-md --write-profile none/x | no such folder (make
pipeline fix.pcap --lake x FIX | FIX messages have no layouts

feeds nope | unknown feed 'nope'
feeds chekc a b | no command or feed 'chekc': did you mean check?
feeds iex-deep more | more
feeds missing.toml | cannot read missing.toml: no such file
feeds check | missing argument
feeds check iex-deep | missing argument
feeds check iex-deep a b | unexpected extra argument
feeds check iex-deep a --limit -1 | --limit
feeds check nope missing.pcap | unknown feed 'nope'
feeds check iex-deep missing.pcap | missing.pcap
feeds check iex-deep channels.toml | is not a capture
feeds new | missing
feeds new x | --framing
feeds new x --framing nope | 'nope' is not one of
feeds new X --framing xdp | 'X' is no name of a feed
feeds new x --framing xdp --out x | ends with .toml
feeds new x --framing xdp --out /no/such/x.toml | cannot write /no/such
feeds import | missing argument
feeds import missing.xml | cannot read missing.xml

fixcast plan | missing argument 'FILE'
fixcast plan none | cannot read none: no such file or directory (check the path)
fixcast plan dir | cannot read dir: is a directory
fixcast plan empty | no columns symbol and volume
fixcast plan noise | a capture needs --feed
fixcast plan two.csv | 2 instruments cannot fill 10 channels (ask for fewer
0 fixcast plan two.csv --channels 2 | heaviest channel: 1.00 of the mean
fixcast plan two.csv --channels 0 | --channels
fixcast plan two.csv --channels 2 --prefix 10.1 | '10.1' begins no multicast groups
fixcast plan two.csv --channels 2 --prefix 239.300 | begins no multicast groups
fixcast plan two.csv --channels 2 --source-a here | 'here' is no source (an IPv4
fixcast plan two.csv --by minute | give a capture: --feed
fixcast plan two.csv --by-service | give a capture: --feed
fixcast plan two.csv --feed nofeed | unknown feed 'nofeed' (known feeds:
fixcast plan two.csv --feed fix-marketdata | two.csv is not a capture
fixcast plan none --feed fix-marketdata | cannot read capture none
fixcast publish none empty | cannot read none: no such file or directory (give a def
fixcast publish dir empty | cannot read dir: is a directory
fixcast publish empty empty | empty:1: channel: missing
fixcast publish noise empty | not text in UTF-8 (give a definition of channels)
fixcast publish ok.toml none | cannot read none: no such file or directory (give a f
fixcast publish ok.toml dir | cannot read dir: is a directory
fixcast publish ok.toml noise | noise: byte 0: the message does not begin
0 PUBLISH |
PUBLISH --channel c9 | there is no channel c9 (there are: c1)
PUBLISH --interface 10.99.99.99 | give the address of an interface
PUBLISH --interface here | 'here' is not an IPv4 address
PUBLISH --state empty | cannot write empty/c1.json
PUBLISH --keys none | none: no folder of keys (make one:
PUBLISH --keys dir | dir: no key of channel c1 (make one:
PUBLISH --keys keys --datagram-bytes 64 | more than 64, which the seal takes
0 PUBLISH --keys keys |
PUBLISH --requests here | 'here' is no server (give host:port
PUBLISH --rate-mbit 0 | --rate-mbit
PUBLISH --route sideways | 'sideways' is not one of 'group', 'main', 'tcp'
fixcast receive none | cannot read none: no such file or directory (give a def
RECEIVE --channel c9 | there is no channel c9 (there are: c1)
RECEIVE --interface here | no such interface 'here' (there are:
RECEIVE --interface 10.99.99.99 | no interface has that address
RECEIVE --out dir | cannot write dir: is a directory (check path and rights)
RECEIVE --out none/x | cannot write none/x: no such file or directory
RECEIVE --keys none | none: no folder of keys (make one:
RECEIVE --verify maybe | 'maybe' is not one of 'off', 'before', 'after'
RECEIVE --count -1 | --count
fixcast keys new keys c1 | channel c1 has keys already (feedhandler fixcast keys rot
fixcast keys new keys c/1 | 'c/1' is no channel id (letters, digits
fixcast keys new empty c1 | cannot write empty/c1.1.key: file exists
fixcast keys list none | none: no folder of keys (make one:
fixcast keys list dir | dir: there are no keys (feedhandler fixcast keys new)
0 fixcast keys list keys | valid
fixcast keys rotate dir | dir: there are no keys (feedhandler fixcast keys new)
fixcast keys rotate keys c9 | channel c9 has no key (feedhandler fixcast keys new)
fixcast keys give keys c9 --to given | channel c9 has no key to give (see keys)
fixcast keys give keys c1 --to empty | cannot write empty: file exists (check path
fixcast keys serve none | cannot read none: no such file or directory (give
fixcast keys serve empty | empty:1: listen: missing
FETCH --password-file none | password file none: no such file
FETCH --password-file dir | password file dir: is a directory
3 FETCH --password-file pw | cannot connect to 127.0.0.1:1
FETCH --password-file pw --ca none | ca: none: no such file or directory
fixcast keys fetch here --user a --to given --password-file pw | here is no address (host:port)
fix check none | cannot read none: no such file or directory (check the path)
fix check dir | cannot read dir: is a directory
1 fix check empty | there is no FIX message (fields are separated by SOH
1 fix check noise | the message does not begin with BeginString
fix check empty --dictionary none | cannot read the FIX dictionary none: no such
fix check empty --dictionary dir | cannot read the FIX dictionary dir: is a dir
fix check empty --transport none | fix50sp2 has its own header and session (a tr
fixcast publish ok.toml cut.fix | the last message is not whole
fixcast publish ok.toml sum.fix | CheckSum
fixcast publish ok.toml long.fix --channel c1 --long refuse | at most 1400
fixcast publish channels.toml xyz.fix | no one channel carries XYZ
fixcast publish channels.toml abc.fix | no one channel carries ABC (give the content of its symbols,
fixcast publish channels.toml abc.fix --content x | carries ABC (give a --channel)
fixcast plan twice.csv | twice.csv:4: ABC comes twice, first at line 2 (add its
fixcast receive channels.toml --out channels.toml | is what is read (write to another file)
fixcast receive channels.toml --out old | is there already
fixcast keys serve noise | noise: not text in UTF-8 (give the TOML file of users

overlay plan new.toml --receivers 0 | receivers
overlay plan new.toml --fan-out 3 | a fan-out without a depth (give --depth, too)
overlay plan new.toml --depth 3 --fan-out 9 | 81 proxies in its last layer
overlay plan new.toml --host nowhere | 'nowhere' is no IPv4 address
overlay plan new.toml --port 65530 | ports end at 65535
overlay plan new.toml --measured /nowhere | cannot read /nowhere
overlay plan new.toml --measured y --depth 2 | --depth says nothing beside
overlay plan new.toml --beside none | cannot read
overlay plan new.toml --beside tree.toml --fan-out 3 | --fan-out says nothing beside
overlay plan new.toml --beside tree.toml --tree 1 | two topologies of tree 1
overlay plan new.toml --beside tree.toml --port 65535 | too few ports from 65535
overlay plan tree.toml | is there already (replace a member of it by --replace
overlay plan tree.toml --beside tree.toml | is there already
overlay plan tree.toml --replace nobody=10.0.0.1:5 | no member nobody
overlay plan tree.toml --replace proxy-0-0 | give NAME=HOST:PORT
overlay plan tree.toml --replace abc | not 'abc' (give NAME=HOST:PORT, such as
overlay plan tree.toml --replace =1.2.3.4:5 | not '1.2.3.4:5' (give NAME=HOST:PORT
overlay plan tree.toml --replace sender=127.0.0.1:1 --depth 2 | --depth says no
overlay send tree.toml | a sender has one source of messages
overlay send tree.toml none | cannot read
overlay send tree.toml - --also tree.toml | two topologies of tree 1
overlay send tree.toml - --control ipc:///no/where | --control: cannot bind
overlay send tree.toml - --fair 2 | it goes from 0.5 to 0.999
overlay send tree.toml --from 1.2.3.4:5 | cannot listen to 1.2.3.4:5
overlay send tree.toml --from 239.9.9.9:5001 --interface eth99 | 'eth99' is no IPv4 address (--inter
overlay proxy none proxy-0-0 | cannot read
overlay proxy tree.toml receiver-0 | receiver-0 is a receiver (name a proxy
overlay proxy tree.toml proxy-0-0 --metrics 9 | --metrics: '9' is not host:port
overlay proxy tree.toml proxy-0-0 --metrics 1.2.3.4:5 | leave --metrics out
overlay proxy tree.toml proxy-0-0 --control x | --control: 'x' is no ZeroMQ
overlay proxy tree.toml proxy-0-0 --cpu 999 | no processor 999
overlay receive tree.toml proxy-0-0 | proxy-0-0 is a proxy (name a receiver
overlay receive tree.toml receiver-0 --also none | cannot read
overlay receive tree.toml receiver-0 --to there | 'there' is no address
overlay receive tree.toml receiver-0 --slots 3 | a power of two
overlay receive tree.toml receiver-0 --echo there:1 | 'there' is no IPv4 address
overlay echo there | 'there' is no address
overlay echo 1.2.3.4:5 | cannot have 1.2.3.4:5
overlay status there | 'there' is no endpoint (a member's --control
overlay measure --triangles --read windows.md --report windows.md | is what is read (write to anothe
overlay measure --shape 2by3 | '2by3' is no shape
overlay measure --shape 2x3 --hedging 1 | --hedging says nothing beside --shape
"""
ROWS = [row for row in TABLE.splitlines() if row]
#: What is never said to a user.
TRACES = re.compile(r"Traceback|internal error|\bobject at 0x|<class ")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("row", ROWS)
def test_a_mistake_is_one_line_and_an_exit_code_and_changes_nothing(here: Path, row: str) -> None:
    words, _, said = row.partition(" |")
    given = " ".join(BEGINNINGS.get(word, word) for word in words.split()).split()
    code = int(given.pop(0)) if given[0].isdigit() else 2
    before = contents(here)
    done = run_here(*given)
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert said.strip() in output
    assert not TRACES.search(output)
    if code == 2:
        lines = done.stderr.splitlines()
        (line,) = [each for each in lines if not each.startswith("feedhandler: warn")]
        assert line.startswith("feedhandler: ")
        assert not done.stdout
        assert contents(here) == before


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "gw.toml"
        text = GATEWAY.replace("127.0.0.1:5672", address).replace("tcp://127.0.0.1:5571", "")
        path.write_text(text)
        done = run_here("run", str(path))
    assert (done.returncode, address in done.stderr, done.stderr.count("\n")) == (2, True, 1)


def test_a_node_that_cannot_be_reached_is_exit_code_3() -> None:
    address = f"127.0.0.1:{free_addresses.port()}"
    done = run_here("subscribe", f"amqp://{address}", "euronext.#", "--count", "1")
    assert (done.returncode, address in done.stderr, done.stderr.count("\n")) == (3, True, 1)
