"""Fixtures that several tests of `characterise` share."""

import pytest


@pytest.fixture
def without_figures(monkeypatch):
    """Reports of `characterise` have their tables alone: to draw takes longer than to calculate."""
    from feedhandler.characterise import figures, report

    for module in (figures, report):
        monkeypatch.setattr(module, "available", lambda: False)
