"""`feedhandler feeds`: the built-in feeds and what each has, or the messages and fields of one."""

from rich.table import Table

from feedhandler.codecs import Feed, list_feeds, load_feed
from feedhandler.codecs.layouts import Layout
from feedhandler.gateway import CAPABILITIES, capabilities_of
from feedhandler.terminal.console import ExitCode, print_json, stdout_console
from feedhandler.terminal.fitted import FittedTable


def run(name: str | None, as_json: bool) -> int:
    """List the feeds, or show one."""
    if name is None:
        feeds = [load_feed(each) for each in list_feeds()]
        if as_json:
            for feed in feeds:
                print_json({**feed.describe(), "capabilities": capabilities_of(feed)})
        else:
            _print_list(feeds)
    elif as_json:
        _print_json_messages(load_feed(name))
    else:
        _print_feed(load_feed(name))
    return ExitCode.OK


def _print_list(feeds: list[Feed]) -> None:
    headings = ("name", "key", "messages", "sequence counts", "byte order", "what it is")
    table = FittedTable(headings, drop_first=("byte order", "messages", "what it is"))
    for feed in feeds:
        facts = feed.describe()
        table.add_row(
            feed.name,
            feed.key,
            str(facts["messages"]),
            facts["sequence_counts"],
            feed.byte_order,
            feed.title,
        )
    stdout_console().print(table)
    stdout_console().print()
    shared = [each.title for each in CAPABILITIES if all(map(each.has, feeds))]
    stdout_console().print(f"every feed has: {'; '.join(shared)}", markup=False)
    stdout_console().print(_capabilities(feeds))


def _capabilities(feeds: list[Feed]) -> Table:
    """Tabulate what each feed has: a row for each feed, a column for what some have only."""
    some = [each for each in CAPABILITIES if not all(map(each.has, feeds)) or len(feeds) == 1]
    table = FittedTable(("feed", *(each.name.replace("_", " ") for each in some)))
    for feed in feeds:
        table.add_row(feed.key, *("yes" if each.has(feed) else "-" for each in some))
    return table


def _print_feed(feed: Feed) -> None:
    console = stdout_console()
    for key, value in feed.describe().items():
        console.print(f"{key:<18} {value}", markup=False)
    console.print()
    console.print(_capabilities([feed]))
    for layout in _layouts(feed):
        console.print()
        console.print(f"{layout.label}  {_heading(layout)}", markup=False, style="bold")
        table = FittedTable(("offset", "size", "field", "on the wire", "meaning"))
        for column in table.columns[:2]:
            column.justify = "right"
        blocks = [layout] if layout.group is None else [layout, layout.group]
        for block in blocks:
            prefix = "" if block is layout else f"{block.name}[]."
            for field in block.named:
                kind = "text" if field.kind == "c" else f"{field.kind}{8 * field.size}"
                meaning = field.doc
                if field.price is not None:
                    meaning = f"price, decimals in {field.price}" + (f"; {meaning}" * bool(meaning))
                table.add_row(
                    str(field.at),
                    str(field.size),
                    prefix + field.name,
                    f"{field.wire} {kind}",
                    meaning,
                )
        console.print(table)


def _heading(layout: Layout) -> str:
    title = f": {layout.title}" if layout.title else ""
    return f"{layout.name}{title}, {layout.size} bytes"


def _layouts(feed: Feed) -> list[Layout]:
    return [layout for ways in feed.layouts.values() for layout in ways]


def _print_json_messages(feed: Feed) -> None:
    """Print one JSON object for each message layout."""
    for layout in _layouts(feed):
        print_json(
            {
                "feed": feed.name,
                "type": layout.label,
                "name": layout.name,
                "size": layout.size,
                "symbol": layout.symbol or None,
                "fields": [
                    {"name": field.name, "wire": field.wire, "at": field.at, "size": field.size}
                    for field in layout.named
                ],
            }
        )
