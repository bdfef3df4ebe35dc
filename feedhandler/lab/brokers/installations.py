"""Installation folders of the brokers, and the error where one is missing.

RabbitMQ 3 is Debian 12's own package. The others are in the folder that `FEEDHANDLER_BROKERS`
names, `~/.cache/feedhandler/brokers` by default: RabbitMQ 4 in a small Debian 13 that `debootstrap`
made, Artemis and Broker-J as their projects package them for Maven.
"""

import os
import shutil
import subprocess
from pathlib import Path

#: Both run on Java 17.
ARTEMIS_VERSION, BROKERJ_VERSION = "2.40.0", "9.2.1"
RABBITMQ_SCRIPT = Path("usr/lib/rabbitmq/bin/rabbitmq-server")
#: The command that installs the others, from a checkout.
INSTALL = "python3 -m tests.support.brokers.install"


class Absent(Exception):
    """A broker, or what it runs on, is not installed; the text says what installs it."""


def home() -> Path:
    """Return the folder of the brokers that are not packages of this machine."""
    named = os.environ.get("FEEDHANDLER_BROKERS")
    return Path(named).absolute() if named else Path.home() / ".cache" / "feedhandler" / "brokers"


def rabbitmq_3() -> Path:
    """Return the script that starts RabbitMQ 3. Raises `Absent`."""
    script = Path("/") / RABBITMQ_SCRIPT
    if not script.exists() or shutil.which("epmd") is None:
        raise Absent(f"no RabbitMQ 3 at {script}; apt install rabbitmq-server")
    return script


def rabbitmq_4() -> Path:
    """Return the root of the file system that RabbitMQ 4 is installed in. Raises `Absent`."""
    root = home() / "rabbitmq-4"
    if not (root / RABBITMQ_SCRIPT).exists():
        raise Absent(f"no RabbitMQ 4 at {root}; {INSTALL}")
    try:
        subprocess.run([*namespace(), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise Absent("RabbitMQ 4 wants a mount namespace of its own: run as root") from None
    return root


def namespace() -> list[str]:
    """Return the command prefix that runs a program in a mount namespace of its own."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--mount"]


def artemis() -> Path:
    """Return the folder of Artemis. Raises `Absent`."""
    return _java(home() / f"apache-artemis-{ARTEMIS_VERSION}", "Artemis")


def brokerj() -> Path:
    """Return the folder of Broker-J. Raises `Absent`."""
    return _java(home() / f"qpid-broker-j-{BROKERJ_VERSION}", "Broker-J")


def _java(folder: Path, name: str) -> Path:
    if not (folder / "lib").is_dir():
        raise Absent(f"no {name} at {folder}; {INSTALL}")
    if shutil.which("java") is None:
        raise Absent(f"{name} wants Java; apt install default-jre-headless")
    return folder
