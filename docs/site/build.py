"""Builds the pages as a site: `python docs/site/build.py [--out FOLDER]` (`make site`).

Pages stand where readers of the repository look for them: in `docs/`, and some beside it. They are
gathered as they are, the README as the site's first page. Links between them stay links; a link to
anything else of the repository (a test, a module) becomes the name of that file. Then mkdocs builds
them, strictly: a link or an anchor that leads nowhere, or a page that no menu has, ends it with
exit code 1.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from room_files import readmes

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = CHECKOUT / "build" / "site" / "pages"
#: Pages outside `docs/`, beside the rooms' READMEs.
BESIDE = (
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "codecs/FORMAT.md", "tests/README.md",
    "bench/README.md",
)  # fmt: skip
#: What a page may show or offer beside other pages.
SHOWN = {".svg", ".png", ".html", ".csv"}
INDEX = Path("index.md")
_LINK = re.compile(r"(?<!\!)\[([^\]]*)\]\(([^()#\s]+)(#[^()\s]*)?\)")
_ELSEWHERE = re.compile(r"[a-z]+:")


def sources() -> dict[Path, Path]:
    """Yield each page and picture of the site: its path in the repository, and in the site."""
    found = [*(CHECKOUT / name for name in BESIDE), *readmes()]
    found += [path for path in (CHECKOUT / "docs").rglob("*") if path.suffix in {".md", *SHOWN}]
    targets = {path: path.relative_to(CHECKOUT) for path in sorted(found)}
    targets[CHECKOUT / "README.md"] = INDEX
    return targets


def relinked(text: str, page: Path, targets: dict[Path, Path]) -> str:
    """Return the page's text, with links as the site has them."""

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if _ELSEWHERE.match(target):
            return match[0]
        aim = Path(os.path.normpath(page.parent / target))
        if not aim.exists():
            raise SystemExit(f"{page.relative_to(CHECKOUT)}: {target} is not there")
        if aim in targets:
            return f"[{words}]({os.path.relpath(targets[aim], targets[page].parent)}{anchor})"
        named = str(aim.relative_to(CHECKOUT))
        return words if named in words else f"{words} (`{named}`)"

    return _LINK.sub(link, text)


def gather() -> None:
    """Put the pages where mkdocs takes them from."""
    shutil.rmtree(PAGES, ignore_errors=True)
    targets = sources()
    for path, target in targets.items():
        to = PAGES / target
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            to.write_text(relinked(path.read_text(), path, targets))
        else:
            shutil.copyfile(path, to)


def main() -> int:
    """Gather and build; mkdocs' exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "site" / "html")
    options = parser.parse_args()
    gather()
    config = Path(__file__).with_name("mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    return subprocess.run(
        [*command, "--config-file", str(config), "--site-dir", str(options.out.resolve())],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
