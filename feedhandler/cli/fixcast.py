"""`feedhandler fixcast` on the command line."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.fixcast_keys import keys
from feedhandler.cli.options import FeedName, Json, Work

Definition = Annotated[
    Path, typer.Argument(metavar="CHANNELS", help="The definition of channels, a TOML file.")
]
InterfaceA = Annotated[str, typer.Option(help="Local address of the interface for line A.")]
InterfaceB = Annotated[str, typer.Option(help="Interface for line B, if it is another one.")]
ChannelTag = Annotated[
    int, typer.Option(help="Tag of Resend Requests that names the channel.", min=1)
]


class Long(StrEnum):
    """Treatment of a message that is longer than a datagram may be."""

    alone = "alone"
    refuse = "refuse"


class EpochAfterEnd(StrEnum):
    """Sequence epoch of a publisher after an ordered end."""

    keep = "keep"
    new = "new"


class Answer(StrEnum):
    """Time at which Resend Requests are answered."""

    once = "once"
    timer = "timer"
    never = "never"


class Route(StrEnum):
    """Route of the answers."""

    group = "group"
    main = "main"
    tcp = "tcp"


class Verify(StrEnum):
    """Time at which the signatures of a sealed channel are checked."""

    off = "off"
    before = "before"
    after = "after"


fixcast = typer.Typer(help="FIX over multicast: publish, receive, plan channels.")
fixcast.add_typer(keys, name="keys")

State = Annotated[
    Path | None, typer.Option(help="Folder where sequence epochs are kept, and channels locked.")
]
KeptEpoch = Annotated[
    EpochAfterEnd,
    typer.Option("--epoch", help="After an ordered end: keep the sequence epoch, or a new one."),
]
PeriodUs = Annotated[
    int, typer.Option(help="Longest wait of a message for others of its datagram.", min=0)
]
DatagramBytes = Annotated[int, typer.Option(help="Most bytes of a datagram.", min=1, max=65_507)]
LongMessages = Annotated[Long, typer.Option(help="Too long messages: alone, or refused.")]
RateMbit = Annotated[float, typer.Option(help="Token bucket: Mbit/s of each line.", min=0.001)]
BurstBytes = Annotated[int, typer.Option(help="Token bucket: largest burst in bytes.", min=1)]
HeartbeatMs = Annotated[
    int, typer.Option(help="Silence after which a Heartbeat is sent; 0: none.", min=0)
]
BeaconMs = Annotated[int, typer.Option(help="Interval of Time Beacons; 0: none.", min=0)]
Keys = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Keys of the channels: datagrams are sealed.")
]
Answers = Annotated[Answer, typer.Option(help="When Resend Requests are answered.")]
AnswerRoute = Annotated[
    Route, typer.Option(help="Route of answers: retransmission group, main group, TCP session.")
]
PossDup = Annotated[bool, typer.Option("--poss-dup", help="Mark answers with PossDupFlag.")]


@fixcast.command("publish")
def publish(
    definition: Definition,
    messages: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="FIX messages, or a channel's capture; - for standard input."
        ),
    ],
    channel: Annotated[
        str, typer.Option(help="The channel of all messages; else by their Symbol (55).")
    ] = "",
    content: Annotated[str, typer.Option(help="The content that the symbols are of.")] = "",
    interface: InterfaceA = "",
    interface_b: InterfaceB = "",
    state: State = None,
    epoch_after_end: KeptEpoch = EpochAfterEnd.keep,
    period_us: PeriodUs = 1000,
    datagram_bytes: DatagramBytes = 1400,
    long: LongMessages = Long.alone,
    rate_mbit: RateMbit = 1000.0,
    burst_bytes: BurstBytes = 65_536,
    heartbeat_ms: HeartbeatMs = 1000,
    beacon_ms: BeaconMs = 0,
    answer: Answers = Answer.once,
    route: AnswerRoute = Route.group,
    poss_dup: PossDup = False,
    channel_tag: ChannelTag = 57,
    requests: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Answer Market Data Requests there.")
    ] = "",
    keys: Keys = None,
) -> Work:
    """Publish FIX messages on both lines, until the file ends: numbered, packed, paced. Resend
    Requests are answered meanwhile, where the definition names a server. Of a capture each message
    is published once, under a new number.

    \b
    Examples:
      feedhandler fixcast publish channels.toml updates.fix --channel equities-1
      feed | feedhandler fixcast publish channels.toml - --content equities --state epochs
    """
    from feedhandler.fixcast.publisher import PublisherSettings
    from feedhandler.fixcast.sending import SendingSettings
    from feedhandler.fixcast.session import SessionSettings
    from feedhandler.ops.fixcast import channels as ops
    from feedhandler.retrans.fix.server import ResendSettings

    settings = PublisherSettings(
        interface=interface,
        interface_b=interface_b,
        rate_bytes_s=max(int(rate_mbit * 125_000), 1),
        burst_bytes=burst_bytes,
        state=state,
        epoch_after_end=epoch_after_end.value,
        channel_tag=channel_tag,
        keys=keys,
        resend=ResendSettings(answer=answer.value, route=route.value, poss_dup=poss_dup),
        sending=SendingSettings(
            period_ns=period_us * 1000,
            bytes_max=datagram_bytes,
            long=long.value,
            session=SessionSettings(
                heartbeat_ns=heartbeat_ms * 1_000_000, beacon_ns=beacon_ms * 1_000_000
            ),
        ),
    )
    return lambda: ops.publish(definition, messages, channel, content, settings, requests)


@fixcast.command("receive")
def receive(
    definition: Definition,
    channel: Annotated[
        list[str] | None, typer.Option(help="A channel (repeatable); else all of them.")
    ] = None,
    interface: InterfaceA = "127.0.0.1",
    interface_b: InterfaceB = "",
    out: Annotated[
        Path | None, typer.Option(help="Record the messages in this file, new or empty, in order.")
    ] = None,
    count: Annotated[int, typer.Option(help="Stop after so many messages; 0: never.", min=0)] = 0,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="Later messages do not wait for missing ones.")
    ] = False,
    gap_wait_us: Annotated[
        int, typer.Option(help="Time for which a gap waits for the other line.", min=0)
    ] = 20_000,
    recovery_wait_ms: Annotated[
        int, typer.Option(help="Time after which missing messages are lost.", min=0)
    ] = 2000,
    receivers: Annotated[
        int, typer.Option(help="Receivers that may have the same loss, about.", min=1)
    ] = 100,
    channel_tag: ChannelTag = 57,
    keys: Keys = None,
    verify: Annotated[
        Verify, typer.Option(help="Signatures: before messages are delivered, after, or off.")
    ] = Verify.before,
    states: Annotated[
        bool,
        typer.Option(
            help="Ask for the books' state, late or where something was lost, if the definition "
            "says whom."
        ),
    ] = True,
    as_json: Json = False,
) -> Work:
    """Receive channels, until Ctrl-C: joins their lines, asks for what both lack, and prints the
    ordered stream with its gaps. What it joined too late for, or no server had, is made good by the
    books' present state, where the definition names a server of it. Exit code 1 where something was
    lost, or a channel is sealed and could not be read.

    \b
    Examples:
      feedhandler fixcast receive channels.toml --channel equities-1
      feedhandler fixcast receive channels.toml --out day.fix --json
    """
    from feedhandler.fixcast.receiver import ReceiverSettings
    from feedhandler.fixcast.reception import ReceptionSettings
    from feedhandler.ops.fixcast import channels as ops
    from feedhandler.retrans.fix.client import RequesterSettings

    settings = ReceiverSettings(
        interface=interface,
        interface_b=interface_b,
        reception=ReceptionSettings(
            ordered=not unordered,
            gap_wait_ns=gap_wait_us * 1000,
            recovery_wait_ns=recovery_wait_ms * 1_000_000,
        ),
        requests=RequesterSettings(receivers=receivers),
        channel_tag=channel_tag,
        keys=keys,
        verify=verify.value,
        states=states,
    )
    return lambda: ops.receive(definition, channel or (), out, count, as_json, settings)


class Weighed(StrEnum):
    """Volume of a capture by which channels are planned."""

    all = "all"
    minute = "minute"


@fixcast.command("plan")
def plan(
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A CSV table (symbol, volume and, if any, content), or a capture."
        ),
    ],
    feed: FeedName = "",
    by: Annotated[
        Weighed, typer.Option(help="A capture's volumes: of all of it, or of its busiest minute.")
    ] = Weighed.all,
    by_service: Annotated[
        bool, typer.Option("--by-service", help="Each service of a capture is a content.")
    ] = False,
    channels: Annotated[int, typer.Option(help="Number of channels.", min=1)] = 10,
    prefix: Annotated[
        str, typer.Option(help="Two bytes of the groups: line A gets .1.n, line B .2.n.")
    ] = "239.10",
    port: Annotated[int, typer.Option(help="The port of all groups.", min=1, max=65_535)] = 31_001,
    source_a: Annotated[str, typer.Option(help="The sender's address on line A.")] = "",
    source_b: Annotated[str, typer.Option(help="The sender's address on line B.")] = "",
) -> Work:
    """Spread instruments over few channels by content, letters and volume, and print the
    definition. Volumes come from a table, or are measured: the bytes of each instrument's messages
    in a capture. Exit code 1 where a channel is above 1.2 times the mean.

    \b
    Examples:
      feedhandler fixcast plan volumes.csv --source-a 10.1.0.5 --source-b 10.2.0.5 > channels.toml
      feedhandler fixcast plan day.pcap.zst --feed euronext-utp-md > channels.toml
    """
    from feedhandler.ops.fixcast import plan as ops

    options = ops.Options(
        measured=measured,
        feed=feed,
        channels=channels,
        busiest=by is Weighed.minute,
        by_service=by_service,
        prefix=prefix,
        port=port,
        sources=(source_a, source_b),
    )
    return lambda: ops.make_plan(options)
