"""A dictionary as QuickFIX's XML: for QuickFIX itself, and to read it again."""

from collections.abc import Iterator
from xml.sax.saxutils import quoteattr

from feedhandler.codecs.fix import kinds
from feedhandler.codecs.fix.dictionary import Dictionary, Field, Member

#: QuickFIX's names of our types.
TYPES = {
    kinds.STRING: "STRING",
    kinds.CHAR: "CHAR",
    kinds.MULTIPLE_CHAR: "MULTIPLEVALUESTRING",
    kinds.INT: "INT",
    kinds.NUMBER: "LENGTH",
    kinds.GROUP_COUNT: "NUMINGROUP",
    kinds.DECIMAL: "PRICE",
    kinds.BOOLEAN: "BOOLEAN",
    kinds.DATA: "DATA",
    kinds.TIMESTAMP: "UTCTIMESTAMP",
    kinds.DATE: "UTCDATEONLY",
    kinds.TIME: "UTCTIMEONLY",
    kinds.MONTH_YEAR: "MONTHYEAR",
    kinds.CURRENCY: "CURRENCY",
    kinds.COUNTRY: "COUNTRY",
}


def as_xml(dictionary: Dictionary) -> str:
    """The dictionary's fields, header, trailer and messages; components are written out."""
    family, major, minor = dictionary.name.split(".")[:3]
    minor, _, pack = minor.partition("SP")
    lines = [f'<fix type="{family}" major="{major}" minor="{minor}" servicepack="{pack or 0}">']
    for part, members in (("header", dictionary.header), ("trailer", dictionary.trailer)):
        lines += [f"<{part}>", *_members(dictionary, members), f"</{part}>"]
    lines.append("<messages>")
    for message in dictionary.messages.values():
        said = f'name="{message.name}" msgtype="{message.code}" msgcat="app"'
        lines += [f"<message {said}>", *_members(dictionary, message.members), "</message>"]
    lines += ["</messages>", "<components/>", "<fields>"]
    for field in dictionary.fields.values():
        lines += _field(field)
    return "\n".join([*lines, "</fields>", "</fix>"])


def _members(dictionary: Dictionary, members: tuple[Member, ...]) -> Iterator[str]:
    for member in members:
        must = "Y" if member.required else "N"
        said = f"name={quoteattr(dictionary.name_of(member.tag))} required={quoteattr(must)}"
        if member.group:
            yield f"<group {said}>"
            yield from _members(dictionary, member.group)
            yield "</group>"
        else:
            yield f"<field {said}/>"


def _field(field: Field) -> list[str]:
    said = f'number="{field.tag}" name={quoteattr(field.name)} type="{TYPES[field.kind]}"'
    values = [
        f"<value enum={quoteattr(value)} description={quoteattr(value)}/>" for value in field.values
    ]
    return [f"<field {said}>", *values, "</field>"]
