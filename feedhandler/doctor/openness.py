"""`feedhandler doctor`, and a gateway's start, on what is open to others: files, folders, ports.

What it checks: keys and password files, the configuration where it holds a password or its hash,
and the folders of queues, journals and recordings, which hold what users get by entitlement only.
What the gateway makes itself only its own user can read (`private_files`); the others were made by
another user or by an older version. And the endpoints without a log-in (metrics, statistics,
control), where other machines reach them.
"""

import getpass
import os
from collections.abc import Iterator
from pathlib import Path

from feedhandler.addresses import is_loopback
from feedhandler.amqp.policies import JOURNAL
from feedhandler.config import Config
from feedhandler.private_files import openness
from feedhandler.terminal.checks import Check


def check_openness(config: Config, path: Path | None = None) -> Iterator[Check]:
    """Yield a finding for each secret, each open folder and each endpoint that others reach.

    `path` is the configuration's file.
    """
    for label, secret in secrets_of(config, path):
        yield check_secret(label, secret)
    for label, folder in folders_of(config):
        if os.path.isdir(folder) and (found := openness(folder)):
            text = f"{folder} is open to {found}"
            yield Check(f"{label} folder rights", "warn", text, _remedy_of_folder(folder))
    for label, endpoint in endpoints_of(config):
        if is_reachable(endpoint):
            text = f"{endpoint}: any machine that reaches it may ask, without a password"
            remedy = "127.0.0.1, or an address of a management network and a firewall before it"
            yield Check(label, "warn", text, remedy)


def endpoints_of(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the endpoints without a log-in: the setting's name and its value."""
    yield "metrics.listen", config.metrics.listen
    yield "stats.bind", config.stats.bind
    yield "control.bind", config.control.bind


def is_reachable(endpoint: str) -> bool:
    """Return whether other machines may reach an endpoint (host:port, or a ZeroMQ one)."""
    scheme, separator, rest = endpoint.partition("://")
    if separator and scheme != "tcp":
        return False
    host = (rest if separator else endpoint).rpartition(":")[0].strip("[]")
    # Others: a name, the name of an interface, or * for all.
    return bool(host) and not is_loopback(host)


def secrets_of(config: Config, path: Path | None) -> Iterator[tuple[str, str]]:
    """Yield each file with a secret: a label, and the path."""
    if path is not None and _holds_secrets(config):
        yield "configuration rights", str(path)
    if config.amqp.tls.key:
        yield "TLS key rights", config.amqp.tls.key
    for user in config.amqp.users:
        if user.password_file:
            yield f"user {user.name} password_file rights", user.password_file
    topologies = (each for _, line in config.overlay_lines for each in line.topologies)
    for topology in dict.fromkeys(topologies):
        yield f"topology {topology} rights", topology
    for destination in config.publish:
        if destination.password_file:
            yield f"publish {destination.name} password_file rights", destination.password_file
        if destination.key:
            yield f"publish {destination.name} key rights", destination.key


def folders_of(config: Config) -> Iterator[tuple[str, str]]:
    """Yield each folder of the gateway's own data: its owner's label, and the path."""
    if config.amqp.queues_folder:
        yield "amqp.queues_folder", config.amqp.queues_folder
    for queue in config.queues:
        for folder in dict.fromkeys(("", *queue.paths)):
            yield f"queue {queue.name}", os.path.join(queue.folder, folder).rstrip("/")
    for destination in config.publish:
        if destination.when_full == JOURNAL:
            yield f"publish {destination.name}", destination.journal_folder
    if config.record.dir:
        yield "record", config.record.dir


def _holds_secrets(config: Config) -> bool:
    """Return whether the configuration itself has a password, or the hash of one."""
    return any(user.password for user in config.amqp.users) or any(
        destination.to != destination.shown_to for destination in config.publish
    )


def check_secret(name: str, path: str) -> Check:
    """Check whether a file with a secret is open to others than its user."""
    found = openness(path)
    if not found:
        return Check(name, "ok", f"{path}: its user's alone")
    text = f"{path} is open to {found}"
    if found.startswith("everybody"):
        return Check(name, "fail", text, _remedy(path))
    return Check(name, "warn", text, _remedy(path))


def _remedy_of_folder(folder: str) -> str:
    """Return the `chmod` command; where the folder holds what is not ours, to take another one."""
    root = Path(folder)
    if not any(root.iterdir()) or any(any(root.glob(name)) for name in _own_names()):
        return f"chmod -R go= {folder}"
    return "name a folder of its own: this one holds other files"


def _own_names() -> tuple[str, ...]:
    """Return the names by which a folder is one of ours: a journal's, of queues, of recordings."""
    # Only where it is asked: the doctor also examines a build that lacks the journal's unit.
    from feedhandler.amqp.durable.creation import FILE_NAME
    from feedhandler.journal.recovery import CONTROL_NAME
    from feedhandler.journal.store import BLOCK_NAME
    from feedhandler.recording.recorder import LOCK_NAME

    return CONTROL_NAME, BLOCK_NAME.format(0)[:6] + "*", FILE_NAME, f"*/{FILE_NAME}", LOCK_NAME


def _remedy(path: str) -> str:
    """Return the `chmod` command; behind a `chown` where another user owns the file."""
    close = f"chmod 600 {path}"
    if os.stat(path).st_uid == os.geteuid():
        return close
    return f"chown {getpass.getuser()} {path} && {close}, as the user that the gateway runs as"
