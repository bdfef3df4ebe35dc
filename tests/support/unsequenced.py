"""Feeds that set sequence number 0 aside, as Cboe's PITCH does: built-in ones with one key more."""

import tempfile
from pathlib import Path

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.loader import FEEDS_FOLDER

_FOLDER = tempfile.TemporaryDirectory(prefix="feeds-")


def description_setting_aside(name: str, **replaced: str) -> Path:
    """The file of the built-in feed's description with `unsequenced = 0`; `replaced`: other values
    of keys of its sequence."""
    text = (FEEDS_FOLDER / f"{name}.toml").read_text()
    begin = text.index("sequence = {")
    end = text.index("}", begin)
    line = text[begin:end].rstrip() + ", unsequenced = 0 "
    for key, value in replaced.items():
        before = line.split(f"{key} = ")[1].split(",")[0]
        line = line.replace(f"{key} = {before}", f"{key} = {value}")
    path = Path(_FOLDER.name) / f"{name}.toml"
    path.write_text(text[:begin] + line + text[end:])
    return path


def setting_aside(name: str, **replaced: str) -> Feed:
    """The feed of `description_setting_aside`."""
    return load_feed(description_setting_aside(name, **replaced))


UTP = setting_aside("euronext-utp-md")
IEX = setting_aside("iex-deep")
