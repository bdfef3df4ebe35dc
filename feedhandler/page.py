"""The HTML page of a report: it opens from disk, follows light and dark mode, has no script."""

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #57606a;
        --line: #d8dee4; --band: #f6f8fa; --mark: #b3424a; --bad: #faf0f0; --good: #eef6f0;
        --well: #2b7a4b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9aa4af; --line: #30363d; --band: #161b22;
          --mark: #ff8b92; --bad: #2d1517; --good: #12261a; --well: #5cc486; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.3rem 0 .6rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.75rem 0 .4rem; }
p { max-width: 75ch; margin: .4rem 0; }
.soft, figcaption { color: var(--soft); font-size: .88rem; }
.verdict { margin: 1rem 0; padding: .7rem 1rem; border-left: 4px solid var(--well);
           background: var(--good); }
.verdict.failed, .odd { border-color: var(--mark); background: var(--bad); }
.odd { margin: 1rem 0; padding: .7rem 1rem; border-left: 4px solid var(--mark); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums;
        margin: .4rem 0; }
th, td { padding: .22rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
         white-space: nowrap; }
.words, td.text { text-align: left; white-space: normal; overflow-wrap: anywhere;
                  min-width: 8rem; }
thead th { background: var(--band); font-weight: 600; }
td.paper, th.paper { color: var(--mark); }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.cards div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .9rem; }
.cards strong { display: block; font-size: 1.25rem; }
figure { display: inline-block; vertical-align: top; width: 520px; max-width: 100%;
         margin: 1rem 1rem 1.75rem 0; }
figure svg { width: 100%; height: auto; }
nav a { margin-right: 1rem; color: var(--ink); }
@media print { main { max-width: none; padding: 0; } h2 { break-after: avoid; } }
"""


def whole_page(title: str, body: str) -> str:
    """Make the page around `body`, which is HTML."""
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def page_figure(svg: str, title: str, caption: str) -> str:
    """Make a figure with its caption; `svg` is one SVG element."""
    named = svg.replace("<svg ", f"<svg role='img' aria-label='{escape(title, quote=True)}' ", 1)
    return f"<figure>\n{named}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def page_section(name: str, title: str, content: str) -> str:
    """Make a section with its heading; `content` is HTML."""
    return f"<section id='{name}'>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def page_table(
    head: Iterable[str], rows: Iterable[Iterable[str]], classes: Sequence[str] = ()
) -> str:
    """Make a table; `classes`: one for each column ("" for none), or none at all."""
    heads = _cells("th", head, classes)
    lines = "\n".join(f"<tr>{_cells('td', row, classes)}</tr>" for row in rows)
    return scrolled(f"<thead><tr>{heads}</tr></thead>\n<tbody>{lines}</tbody>")


def scrolled(rows: str) -> str:
    """Make a table of these rows (HTML), which scrolls where it is wider than the page."""
    return f"<div class='scroll'><table>{rows}</table></div>"


def verdict_box(good: bool, content: str) -> str:
    """Make the box with the report's verdict; `content` is HTML."""
    return f"<div class='verdict{'' if good else ' failed'}'>{content}</div>"


def _cells(tag: str, texts: Iterable[str], classes: Sequence[str]) -> str:
    texts = list(texts)
    attributes = (f" class='{each}'" if each else "" for each in classes or [""] * len(texts))
    return "".join(
        f"<{tag}{attribute}>{escape(text)}</{tag}>"
        for text, attribute in zip(texts, attributes, strict=True)
    )
