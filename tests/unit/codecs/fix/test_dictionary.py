"""Dictionaries of FIX: ours, a user's, QuickFIX's; and the page that describes them."""

import re
from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.fix import dictionary as dictionaries
from feedhandler.codecs.fix.dictionary import (
    dictionary_names,
    load_dictionary,
    read_toml,
    read_xml,
)
from feedhandler.codecs.fix.reasons import REJECT_TEXT, FixReject
from tests.support.checkout import CHECKOUT
from tests.support.fix_xml import as_xml

PAGE = (CHECKOUT / "docs" / "fix.md").read_text()
SMALL = """name = "A"
header = "8 9 35"
trailer = "10"
[fields]
8 = "BeginString STRING"
9 = "BodyLength LENGTH"
10 = "CheckSum STRING"
35 = "MsgType STRING"
[parts]
[messages]
"""


@pytest.mark.parametrize("name", dictionary_names())
def test_our_dictionaries_have_market_data_and_the_session(name: str) -> None:
    found = load_dictionary(name)
    assert {"W", "X", "V", "Y", "d", "f", "AE", "0", "A", "5", "4", "UB"} <= set(found.messages)
    assert found.table.slots == len(found.fields) + 1
    assert found.name_of(269) == "MDEntryType"
    assert found.name_of(9999) == "9999"
    assert found.tags["MDEntryType"] == 269


@pytest.mark.parametrize("name", dictionary_names())
def test_quickfix_xml_says_the_same_as_ours(name: str) -> None:
    ours = load_dictionary(name)
    again = read_xml(as_xml(ours), "made.xml")
    assert again.name == ours.name
    assert again.messages == ours.messages
    assert (again.header, again.trailer) == (ours.header, ours.trailer)
    same = {tag: field.data for tag, field in ours.fields.items() if field.data}
    assert {tag: again.fields[tag].data for tag in same} == same


def test_header_and_session_may_stand_in_a_dictionary_of_their_own(tmp_path: Path) -> None:
    whole = as_xml(load_dictionary("fix50sp2"))
    session = re.sub(r'<message name="\w+" msgtype="(W|X)".*?</message>', "", whole, flags=re.S)
    application = re.sub(r"<(header|trailer)>.*?</\1>", r"<\1/>", whole, flags=re.S)
    (tmp_path / "app.xml").write_text(application)
    (tmp_path / "session.xml").write_text(session)
    found = load_dictionary(tmp_path / "app.xml", tmp_path / "session.xml")
    assert found.messages == load_dictionary("fix50sp2").messages
    with pytest.raises(ConfigError, match="no header"):
        load_dictionary(tmp_path / "app.xml")


def test_components_are_parts_whose_needs_count_where_the_part_is_needed() -> None:
    text = """<fix type="FIX" major="4" minor="4"><header><field name="A"/></header><trailer/>
    <messages><message name="M" msgtype="M"><component name="C" required="Y"/></message>
    <message name="N" msgtype="N"><component name="C" required="N"/></message></messages>
    <components><component name="C"><field name="B" required="Y"/></component></components>
    <fields><field number="1" name="A" type="STRING"/><field number="2" name="B" type="INT"/>
    </fields></fix>"""
    found = read_xml(text, "x.xml")
    assert [found.messages[code].members[0].required for code in "MN"] == [True, False]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "Expected|expected|Invalid"),
        ("a = 1", "messages|header"),
        (SMALL.replace('"8 9 35"', '"8 9 36"'), "no field 36"),
        (SMALL.replace('"8 9 35"', '"8 9(35"'), "does not close"),
        (SMALL.replace('"8 9 35"', '"8 9 35)"'), "too many"),
        (SMALL.replace('"8 9 35"', '"8, 9"'), "no layout"),
        (SMALL.replace('"8 9 35"', '"@x"'), "no part"),
        (SMALL.replace('"8 9 35"', '"@x"').replace("[parts]", '[parts]\nx = "@x"'), "nest too"),
        (SMALL.replace("LENGTH", "LONG"), "no type 'LONG'"),
        (SMALL.replace("BodyLength LENGTH", "BodyLength"), "not a FIX dictionary"),
        (SMALL.replace("8 = ", "x = "), "not a FIX dictionary"),
        (SMALL + "W = 1", "not a FIX dictionary"),
    ],
)
def test_what_is_no_dictionary_of_ours_is_refused_with_the_reason(
    text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_toml(text, "ours.toml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<fix", "unclosed|no element"),
        ("<fix/>", "has no header"),
        ("<fix><fields><field name='a' number='x' type='INT'/></fields></fix>", "is no tag"),
        ("<fix><fields><field name='a' number='²' type='INT'/></fields></fix>", "is no tag"),
        ("<fix><fields><field name='a' number='1'/></fields></fix>", "has no type"),
        ("<fix><header><field name='a'/></header></fix>", "no field 'a'"),
        ("<fix><header><component name='a'/></header></fix>", "no component 'a'"),
        (
            "<fix><header><component name='a'/></header><components>"
            "<component name='a'><component name='a'/></component></components></fix>",
            "nest too deep",
        ),
    ],
)
def test_what_is_no_dictionary_of_quickfix_is_refused_with_the_reason(
    text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_xml(text, "their.xml")


def test_files_that_cannot_be_read_are_the_operators_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="cannot read") as caught:
        load_dictionary("fix99")
    assert "fix44" in caught.value.hint
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_dictionary(tmp_path / "latin.toml")
    monkeypatch.setattr(dictionaries, "FILE_BYTES_MAX", 10)
    with pytest.raises(ConfigError, match="more than 10 bytes"):
        load_dictionary("fix44")


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ('70000 = "Far STRING"', "70000 is above 65535"),
        ('0 = "None STRING"', "A: 0 is no tag"),
        ('-5 = "Below STRING"', "-5 is no tag"),
        ('95 = "RawDataLength LENGTH >-96"', "-96 is no tag"),
        ('95 = "RawDataLength LENGTH >99999999999"', "99999999999 is above 65535"),
    ],
)
def test_a_tag_beyond_the_table_is_refused(field: str, complaint: str) -> None:
    text = SMALL.replace("[parts]", f"{field}\n[parts]")
    with pytest.raises(ConfigError, match=complaint):
        read_toml(text, "ours.toml").table  # noqa: B018 - made when it is asked for


def test_a_type_of_two_letters_that_are_more_bytes_is_never_met() -> None:
    text = SMALL + '"éé" = "Far: 35"\nW = "Near: 35"'
    assert read_toml(text, "ours.toml").table.scopes


def test_the_page_tells_every_reason() -> None:
    for reason in FixReject:
        if reason:
            assert f"| `{reason.name.lower()}` | {REJECT_TEXT[reason]} |" in PAGE


def test_the_pages_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for sample in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(sample, names)
    assert "MDEntryPx b'101.25'" in capsys.readouterr().out


def test_the_pages_dictionary_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    found = read_toml(text, "page")
    assert found.messages["W"].members[-1].required
    assert found.table.slots == len(found.fields) + 1
