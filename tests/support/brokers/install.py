"""Install the brokers that no package of this machine brings, where `installations` looks for them.

    python3 -m tests.support.brokers.install

Nothing happens for what is there already; what is interrupted is begun anew. RabbitMQ 4 comes
with a small Debian 13, from the mirror that this machine's apt takes Debian from; Artemis and
Broker-J come by Maven, which has its settings. Needs no more than Python's library.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from feedhandler.lab.brokers import installations

APT = Path("/etc/apt")
#: The Debian that has RabbitMQ 4, and the Maven plug-in that fetches and unpacks.
RELEASE = "trixie"
UNPACK = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:unpack"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Failed(Exception):
    """Error that says what could not be done, in a line, with what the tool said last."""


def mirror(sources: Iterable[str], release: str) -> str:
    """The address that apt takes Debian's `release` from, out of its lists in either format."""
    for text in sources:
        for line in text.splitlines():
            one = re.fullmatch(r"\s*deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+.*", line)
            if one and one[2] == release:
                return one[1]
        for stanza in re.split(r"\n\s*\n", text):
            fields = dict(re.findall(r"^(Types|URIs|Suites|Enabled): *(.*?) *$", stanza, re.M))
            if (
                "deb" in fields.get("Types", "").split()
                and release in fields.get("Suites", "").split()
                and fields.get("Enabled", "yes") != "no"
            ):
                return str(fields["URIs"].split()[0])
    raise Failed(f"apt's lists in {APT} name no mirror of Debian {release}")


def debian_mirror() -> str:
    """The mirror of this machine's own release, which has the others too."""
    named = re.search(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.M)
    lists = [*APT.glob("sources.list"), *sorted((APT / "sources.list.d").glob("*"))]
    texts = [each.read_text() for each in lists if each.suffix in (".list", ".sources")]
    return mirror(texts, named[1] if named else "stable")


def run(*command: str, cwd: Path | None = None, **more: str) -> None:
    """Run a tool, in `cwd`; Failed with the end of what it said."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        said = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        cause = next(
            (line for line in said if re.match(r"\[ERROR\]|E:", line)), (said or ["?"])[-1]
        )
        raise Failed(f"{shlex.join(command[:3])} ...: {cause}")


def as_root() -> list[str]:
    return [] if os.geteuid() == 0 else ["sudo"]


def rabbitmq_4(folder: Path) -> None:
    """A Debian with little but RabbitMQ; what debootstrap mounts meanwhile ends with it."""
    tool = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if tool is None:
        raise Failed("no debootstrap; apt install debootstrap")
    wanted = ["--variant=minbase", "--include=rabbitmq-server", f"--keyring={KEYRING}"]
    asked = ["apt-config", "--format", "%v%n", "dump", "Acquire::http::Proxy"]
    proxy = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    run(
        *(*as_root(), "env", *([f"http_proxy={proxy}"] if proxy else [])),
        *("unshare", "--mount", tool, *wanted, RELEASE, str(folder), debian_mirror()),
    )
    run(*as_root(), "chroot", str(folder), "apt-get", "clean")


def maven(folder: Path, artifact: str, top: str) -> None:
    """Unpack an artifact; `folder` becomes what is `top` in it."""
    unpacked = folder.with_suffix(".unpacked")
    command = ["mvn", "-q", "-B", UNPACK, f"-Dartifact={artifact}", f"-DoutputDirectory={unpacked}"]
    # Maven leaves folders of its own wherever it stands.
    with tempfile.TemporaryDirectory() as work:
        run(*command, cwd=Path(work))
    (unpacked / top).rename(folder)
    shutil.rmtree(unpacked)


def artemis(folder: Path) -> None:
    version = installations.ARTEMIS_VERSION
    artifact = f"org.apache.activemq:apache-artemis:{version}:zip:bin"
    maven(folder, artifact, f"apache-artemis-{version}")


def brokerj(folder: Path) -> None:
    version = installations.BROKERJ_VERSION
    artifact = f"org.apache.qpid:apache-qpid-broker-j:{version}:tar.gz:bin"
    maven(folder, artifact, f"qpid-broker/{version}")


def main() -> int:
    """Install what is missing; 0 where all is there, 1 with a line for what is not."""
    home = installations.home()
    steps = [
        (home / "rabbitmq-4", rabbitmq_4),
        (home / f"apache-artemis-{installations.ARTEMIS_VERSION}", artemis),
        (home / f"qpid-broker-j-{installations.BROKERJ_VERSION}", brokerj),
    ]
    missing = [(folder, install) for folder, install in steps if not folder.exists()]
    try:
        home.mkdir(parents=True, exist_ok=True)
        for folder, install in missing:
            print(f"installing {folder.name} in {home}", flush=True)
            partial = folder.with_name(f"{folder.name}.partial")
            if partial.exists():
                run(*as_root(), "rm", "-rf", "--one-file-system", str(partial))
            install(partial)
            partial.rename(folder)
    except (Failed, OSError) as error:
        print(f"{folder.name if missing else home}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
