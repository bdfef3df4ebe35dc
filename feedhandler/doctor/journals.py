"""`feedhandler doctor` on the gateway's data on disk: durable queues, journals of destinations.

What it is for: each folder of a `[[queue]]` table, and each `journal_folder` of a `[[publish]]`
table with `when_full = "journal"`, is checked as the gateway will find it: whether it can be used,
whether its file system keeps what is written, which process has it open, whether its files verify,
and whether there is room for all that it may grow to.

It writes nothing and holds no lock, so it may run beside the gateway that has the queues open.
"""

import getpass
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from feedhandler.amqp.policies import JOURNAL
from feedhandler.amqp.publishing.spill_disk import settings_of
from feedhandler.codecs import FeedhandlerError, load_feed
from feedhandler.codecs.errors import reason_of
from feedhandler.config import Config
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.doctor import host
from feedhandler.journal.files import Files
from feedhandler.journal.owner import owner_of
from feedhandler.journal.recovery import CONTROL_NAME, block_path, read_control, recover
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.store import block_entry
from feedhandler.terminal.checks import Check
from feedhandler.terminal.outputs import existing_part

#: The remedy: an NFS mount that retries writes instead of failing them, and has locks of its own.
NFS_WANTED = "version 4.1 or later, mounted hard, from a server that exports sync"
NFS_VERSION_MIN = (4, 1)
#: File systems that are in memory, and go with the host's power.
IN_MEMORY = ("tmpfs", "ramfs")


class Journal(Struct, frozen=True):
    """One persistent queue of the configuration; `bound` is the key that bounds its files."""

    label: str
    key: str
    bound: str
    folder: str
    settings: QueueSettings

    @property
    def folders(self) -> list[str]:
        """Its own folder, and those that its blocks are spread over."""
        spread = [os.path.join(self.folder, path) for path in self.settings.paths]
        return list(dict.fromkeys([self.folder, *spread]))


def check_journals(config: Config) -> Iterator[Check]:
    """Check all queues and journals; yields nothing where the configuration has none."""
    journals = journals_of(config)
    folders: dict[str, str] = {}
    for journal in journals:
        real = os.path.realpath(journal.folder)
        if (other := folders.setdefault(real, journal.label)) != journal.label:
            found = f"{journal.folder} is {other}'s too"
            yield Check(f"{journal.label} folder", "fail", found, f"a {journal.key} of its own")
            continue
        usable = True
        for folder in journal.folders:
            check = check_folder(journal, folder)
            yield check
            if check.status == "fail":
                usable = False
            else:
                yield from check_file_system(journal, folder)
        if usable:
            yield from check_contents(journal)
    yield from check_room(journals)


def queues_of(config: Config) -> list[DurableQueueConfig]:
    """Return the queues of a gateway with `config`: its own, and those that clients created."""
    from feedhandler.amqp.durable.creation import configs_in  # it needs the journal compiled

    return [*config.queues, *configs_in(config.amqp.queues_folder)]


def journals_of(config: Config) -> list[Journal]:
    """Return the queues and journals that a gateway with `config` opens."""
    day = config.trading_day.of(load_feed(config.gateway.feed))
    journals = [
        Journal(f"queue {queue.name}", "folder", "blocks_max", queue.folder, queue.settings())
        for queue in (each.resolved(day) for each in queues_of(config))
    ]
    for each in config.publish:
        if each.when_full == JOURNAL:
            settings = settings_of(each.journal_bytes_max, each.journal_durability)
            label, folder = f"publish {each.name}", each.journal_folder
            journals.append(Journal(label, "journal_folder", "journal_bytes_max", folder, settings))
    return journals


def check_folder(journal: Journal, folder: str) -> Check:
    """Check that the folder exists or can be made, and that its files can be written."""
    name = f"{journal.label} folder"
    stands_on = existing_part(folder)
    if not stands_on.is_dir():
        found = f"{folder}: {stands_on} is no folder"
        return Check(name, "fail", found, f"another {journal.key}")
    shut = [path for path in _to_be_written(folder, stands_on) if not _is_writable(path)]
    if shut:
        us = getpass.getuser()
        if host.is_read_only(shut[0]):
            remedy = "mount it for writing"
        else:
            remedy = f"chown -R {us} {shut[0]}, or run this as the user that the gateway runs as"
        return Check(name, "fail", f"{shut[0]} cannot be written by {us}", remedy)
    if stands_on != Path(folder):
        return Check(name, "ok", f"{folder} will be made")
    return Check(name, "ok", f"{folder} can be written")


def _to_be_written(folder: str, stands_on: Path) -> list[Path]:
    """Return the existing paths that the gateway has to write: the folder first, then its files."""
    if stands_on != Path(folder) or not _is_writable(stands_on):
        return [stands_on]
    return [stands_on, *(path for path in sorted(stands_on.iterdir()) if path.is_file())]


def _is_writable(path: Path) -> bool:
    wanted = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    return os.access(path, wanted, effective_ids=True)


def check_file_system(journal: Journal, folder: str) -> Iterator[Check]:
    """Check that the file system keeps what is written, as far as the kernel knows."""
    name = f"{journal.label} file system"
    system = host.file_system_of(folder)
    if system is None:
        return
    if system.kind in IN_MEMORY:
        found = f"{system.kind} at {system.mount_point}: in memory, gone when the host restarts"
        yield Check(name, "warn", found, f"a {journal.key} on a disk")
    elif system.kind == "overlay":
        found = f"overlay at {system.mount_point}: a container's own layer goes with the container"
        yield Check(name, "warn", found, f"a {journal.key} on a volume")
    elif system.kind.startswith("nfs"):
        yield _check_nfs(name, system)
    else:
        yield Check(name, "ok", f"{system.kind} at {system.mount_point}")


def _check_nfs(name: str, system: host.FileSystem) -> Check:
    """Report an NFS mount's faults; where it has none, what only its server knows."""
    version = next((x[5:] for x in system.options if x.startswith("vers=")), "")
    major, _, minor = version.partition(".")
    numbers = (int(major or 0), int(minor or 0)) if (major + minor).isdigit() else (0, 0)
    wrong = []
    if numbers < NFS_VERSION_MIN:
        wrong.append(f"version {version or 'unknown'}")
    if "hard" not in system.options:
        wrong.append("not mounted hard")
    text = ", ".join(wrong) or f"version {version}, hard; whether it exports sync its server knows"
    return Check(name, "warn", f"{system.kind} at {system.mount_point}: {text}", NFS_WANTED)


def check_contents(journal: Journal) -> Iterator[Check]:
    """Check that no process has the queue open, and that this version can open its files."""
    name, folder = f"{journal.label} files", journal.folder
    try:
        if not os.path.exists(os.path.join(folder, CONTROL_NAME)):
            made = journal.settings.blocks * journal.settings.block_bytes
            yield Check(name, "ok", f"none yet; {made:,} bytes are written when it is made")
            return
        if owner := owner_of(folder):
            remedy = "one process owns a queue: stop it before the gateway is started"
            yield Check(name, "fail", f"{folder} is open already: {owner}", remedy)
            return
        yield _read(name, journal)
    except FeedhandlerError as error:
        yield Check(name, "fail", error.message, error.hint)
    except OSError as error:
        found = f"{error.filename or folder}: {reason_of(error)}"
        yield Check(name, "fail", found, "see to the disk, or to the files' owner and mode")


def _read(name: str, journal: Journal) -> Check:
    """Recover the queue as the gateway will, without writing, and report its problems."""
    files = Files(read_only=True)
    try:
        recovered = recover(files, journal.folder)
    finally:
        files.close()
    size, count = recovered.geometry.block_bytes, len(recovered.blocks)
    found = f"format {recovered.control.version}, {count} blocks of {size:,} bytes"
    if problems := recovered.report.problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        remedy = f"feedhandler queue verify {journal.folder} lists all; repair mends what it can"
        return Check(name, "warn", f"{found}: {problems[0]}{more}", remedy)
    return Check(name, "ok", found)


class _Wanted(Struct):
    """Space that journals need of one file system: at once, and when all are at their bounds."""

    mount_point: str
    free_bytes: int
    first_bytes: int = 0
    all_bytes: int = 0
    labels: dict[str, str] = {}


def check_room(journals: list[Journal]) -> Iterator[Check]:
    """Check that each file system has room for all that is to be kept on it, taken together."""
    systems: dict[int, _Wanted] = {}
    for journal in journals:
        have, block_bytes = _blocks_of(journal)
        for number in range(have + 1, journal.settings.blocks_max + 1):
            path = block_path(journal.folder, block_entry(journal.settings, number))
            stands_on = existing_part(path)
            device = stands_on.stat().st_dev
            if device not in systems:
                systems[device] = _Wanted(_mount_point(stands_on), host.free_bytes(stands_on))
            wanted = systems[device]
            wanted.all_bytes += block_bytes
            wanted.labels[journal.label] = journal.bound
            if have == 0 and number <= journal.settings.blocks:
                wanted.first_bytes += block_bytes
    for wanted in systems.values():
        yield _room(wanted)


def _blocks_of(journal: Journal) -> tuple[int, int]:
    """Return number and size of a journal's blocks; (0, configured size) where none can be read."""
    files = Files(read_only=True)
    try:
        control = read_control(files, journal.folder)
    except (FeedhandlerError, OSError):
        return 0, journal.settings.block_bytes
    finally:
        files.close()
    return len(control.blocks), control.block_bytes


def _mount_point(path: Path) -> str:
    system = host.file_system_of(path)
    return system.mount_point if system else str(path)


def _room(wanted: _Wanted) -> Check:
    name = f"room at {wanted.mount_point}"
    who = ", ".join(wanted.labels)
    found = f"{wanted.free_bytes:,} bytes free, {wanted.all_bytes:,} wanted at most by {who}"
    keys = " or ".join(sorted(set(wanted.labels.values())))
    remedy = f"free {wanted.all_bytes - wanted.free_bytes:,} bytes, or a smaller {keys}"
    if wanted.free_bytes < wanted.first_bytes:
        found = f"{found}; {wanted.first_bytes:,} of them at the start"
        return Check(name, "fail", found, remedy)
    if wanted.free_bytes < wanted.all_bytes:
        return Check(name, "warn", found, remedy)
    return Check(name, "ok", found)
