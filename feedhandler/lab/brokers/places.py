"""Where the brokers are installed, and what to say where they are not.

RabbitMQ 3 is Debian 12's own package. The others lie in the folder that `FEEDHANDLER_BROKERS`
names, `~/.cache/feedhandler/brokers` by default: RabbitMQ 4 in a small Debian 13 that
`debootstrap` made, Artemis and Broker-J as their projects pack them for Maven.
"""

import os
import shutil
import subprocess
from pathlib import Path

#: Both run on Java 17.
ARTEMIS_VERSION, BROKERJ_VERSION = "2.40.0", "9.2.1"
RABBITMQ_SCRIPT = Path("usr/lib/rabbitmq/bin/rabbitmq-server")
#: What brings the others, from a checkout.
INSTALL = "python3 -m tests.support.brokers.install"


class Absent(Exception):
    """A broker, or what it runs on, is not there; the text says what brings it."""


def home() -> Path:
    """The folder of the brokers that no package of this machine brings."""
    named = os.environ.get("FEEDHANDLER_BROKERS")
    return Path(named).absolute() if named else Path.home() / ".cache" / "feedhandler" / "brokers"


def rabbitmq_3() -> Path:
    """What starts RabbitMQ 3."""
    script = Path("/") / RABBITMQ_SCRIPT
    if not script.exists() or shutil.which("epmd") is None:
        raise Absent(f"no RabbitMQ 3 at {script}; apt install rabbitmq-server")
    return script


def rabbitmq_4() -> Path:
    """The root of the system that RabbitMQ 4 is installed in."""
    root = home() / "rabbitmq-4"
    if not (root / RABBITMQ_SCRIPT).exists():
        raise Absent(f"no RabbitMQ 4 at {root}; {INSTALL}")
    try:
        subprocess.run([*namespace(), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise Absent("RabbitMQ 4 wants a mount namespace of its own: run as root") from None
    return root


def namespace() -> list[str]:
    """The command that gives what follows mounts of its own, which end with it."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--mount"]


def artemis() -> Path:
    """The folder of Artemis."""
    return _java(home() / f"apache-artemis-{ARTEMIS_VERSION}", "Artemis")


def brokerj() -> Path:
    """The folder of Broker-J."""
    return _java(home() / f"qpid-broker-j-{BROKERJ_VERSION}", "Broker-J")


def _java(folder: Path, name: str) -> Path:
    if not (folder / "lib").is_dir():
        raise Absent(f"no {name} at {folder}; {INSTALL}")
    if shutil.which("java") is None:
        raise Absent(f"{name} wants Java; apt install default-jre-headless")
    return folder
