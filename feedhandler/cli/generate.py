"""The command line of `generate`; `app` says how commands work."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from feedhandler.cli.options import (
    Json,
    Loss,
    LossA,
    LossB,
    Overwrite,
    Seed,
    Work,
    is_given,
    refuse_beside,
)
from feedhandler.terminal import arguments

Out = Annotated[
    Path, typer.Option(help="The capture: .pcap, or with .gz or .zst behind.", metavar="FILE")
]


def _profile_names(incomplete: str) -> list[str]:
    """Return the built-in profiles with this prefix, for the shell's completion."""
    from feedhandler.replay.generating.profile import built_in

    return [name for name in built_in() if name.startswith(incomplete)]


ProfileName = Annotated[
    str,
    typer.Option(
        help="A built-in profile, or a file.", metavar="NAME|FILE", autocompletion=_profile_names
    ),
]
Scale = Annotated[
    float,
    typer.Option(
        help="Factor for instruments and bursts; no burst gets thinner.", min=0.001, max=100
    ),
]
Duration = Annotated[
    int | None,
    typer.Option(
        parser=arguments.span_ns,
        metavar="TIME",
        help="Length of a stretch (90s, 15min), or where a day is cut; else the profile's.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        parser=arguments.megabits,
        metavar="RATE",
        help="A stretch's rate in Ethernet frames of both lines, 200mbps: instead of a scale.",
    ),
]


class GeneratedFeed(StrEnum):
    """Feeds whose sessions can be generated."""

    utp = "euronext-utp-md"
    itch = "nasdaq-totalview-itch"
    asx = "asx-ntp-itch"
    pitch = "cboe-byx-pitch"
    memoir = "memx-memoir"
    xdp = "nyse-integrated-pillar"
    xdp_before = "nyse-integrated-xdp"
    options = "cboe-c1-options-pitch"
    deep_plus = "iex-deep-plus"
    deep = "iex-deep"
    tops = "iex-tops"
    cme = "cme-mdp3"


def generate(
    context: typer.Context,
    out: Out,
    feed: Annotated[
        GeneratedFeed, typer.Option(help="The feed; a profile is only UTP-MD's.")
    ] = GeneratedFeed.utp,
    profile: ProfileName = "market",
    scale: Scale = 1.0,
    rate: Rate = None,
    duration: Duration = None,
    seed: Seed = 1,
    refresh: Annotated[bool, typer.Option(help="With the refresh channels.")] = True,
    loss: Loss = 0.0,
    loss_a: LossA = None,
    loss_b: LossB = None,
    instruments: Annotated[
        int | None, typer.Option(help="Of a session of orders: how many; 100.", min=1)
    ] = None,
    messages: Annotated[
        float | None,
        typer.Option("--messages-per-s", help="Of a session of orders: a second, 2000.", min=0.001),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> Work:
    """Write a generated session as a capture.

    Of UTP-MD it follows a profile; of the other feeds it is an order market: orders added, reduced,
    replaced, deleted and executed, the same orders in each feed for the same seed, rate and
    instruments.

    Sizes, mix, bursts and the day's shape follow a profile: `market` is a stretch at one rate,
    `euronext-2011-03` a whole day. Both lines are in it, merged in time. Beside the capture goes
    its ledger, FILE.ledger.json: what is in it, by service, minute and second. A file
    of either name that is there already stays, unless --overwrite says otherwise. The same profile,
    seed, scale and duration give the same messages in the same packets on every machine.

    \b
    Examples:
      feedhandler generate --rate 200mbps --duration 60s --out market.pcap
      feedhandler generate --profile euronext-2011-03 --scale 0.1 --seed 7 --out day.pcap.zst
      feedhandler generate --feed nasdaq-totalview-itch --duration 30s --out itch.pcap
      feedhandler generate --profile ours.json --loss 0.1% --out ours.pcap.gz
    """
    from feedhandler.ops import generate as ops

    if rate is not None:
        refuse_beside(context, "beside --rate", "scale", hint="leave one of them out")
    losses = (loss if loss_a is None else loss_a, loss if loss_b is None else loss_b)
    says_losses = any(is_given(context, name) for name in ("loss", "loss_a", "loss_b"))
    options = ops.Options(
        out=out,
        feed=feed.value,
        instruments=instruments,
        messages_per_s=messages,
        profile=profile,
        scale=scale,
        rate_mbps=rate,
        duration_s=None if not duration else duration / 1e9,
        seed=seed,
        refresh=refresh,
        losses=losses if says_losses else None,
        overwrite=overwrite,
        as_json=as_json,
    )
    return lambda: ops.run(options)
