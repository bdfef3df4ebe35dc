"""The page of questions: its answers are there, and the pages on the way name them."""

import re
from pathlib import Path

from tests.support.checkout import CHECKOUT

PAGE = CHECKOUT / "docs" / "questions.md"


def rows() -> list[list[str]]:
    """Cells of the table: question, answer, way."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def paths_in(answer: str) -> list[str]:
    """Files and folders that an answer names."""
    return re.findall(r"`([\w/]+(?:\.\w+|/))`", answer)


def names(page: Path, path: str) -> bool:
    """Whether a page names a path, in full or from its room; a room's page names its folder."""
    folder = page.parent.relative_to(CHECKOUT).as_posix() + "/"
    text = page.read_text()
    found = {path, path.removeprefix(folder)}
    return path == folder or any(f"`{each}`" in text or f"({each})" in text for each in found)


def test_the_heading_counts_the_questions_and_each_answer_exists() -> None:
    found = rows()
    assert PAGE.read_text().startswith("# Thirty questions\n")
    assert len({question for question, _, _ in found}) == len(found) == 30
    for question, answer, _ in found:
        for path in paths_in(answer):
            assert (CHECKOUT / path).exists(), f"{question}: {path}"


def test_the_way_leads_to_the_answer() -> None:
    for question, answer, way in rows():
        pages = [(PAGE.parent / each).resolve() for each in re.findall(r"\]\(([^)#]+)", way)]
        assert pages, question
        for path in paths_in(answer):
            named = any(names(page, path) for page in pages)
            assert named, f"{question}: no page on the way names {path}"
