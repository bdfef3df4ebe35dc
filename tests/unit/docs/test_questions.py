"""The page of questions: its answers are there, and the pages on the way name them."""

import re

from tests.support.checkout import CHECKOUT

PAGE = CHECKOUT / "docs" / "questions.md"


def rows() -> list[list[str]]:
    """Cells of the table: question, answer, way."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_there_are_twenty_and_each_answer_exists() -> None:
    found = rows()
    assert len(found) >= 20
    for question, answer, _ in found:
        for path in re.findall(r"`([\w/]+(?:\.\w+|/))`", answer):
            assert (CHECKOUT / path).exists(), f"{question}: {path}"


def test_the_way_leads_to_the_answer() -> None:
    """A page on the way names the answer's file, in full or from its room."""
    for question, answer, way in rows():
        files = re.findall(r"`([\w/]+\.\w+)`", answer)
        pages = [(PAGE.parent / each).resolve() for each in re.findall(r"\]\(([^)#]+)", way)]
        assert pages, question
        for file in files:
            named = any(
                f"`{name}`" in page.read_text() or f"({name})" in page.read_text()
                for page in pages
                for name in (file, str(CHECKOUT / file).removeprefix(f"{page.parent}/"))
            )
            assert named, f"{question}: no page on the way names {file}"
