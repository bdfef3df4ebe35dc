"""Fixtures that several unit test files share."""

import pytest

from tests.support.ingest import TWINS, Channel


@pytest.fixture(params=TWINS)
def channel(request):
    """One channel's arbiter, compiled and interpreted."""
    return Channel(request.param)


@pytest.fixture(params=TWINS)
def make(request):
    """A channel's arbiter with options, compiled and interpreted."""
    return lambda **options: Channel(request.param, **options)


@pytest.fixture
def started(channel):
    """A channel that has joined at 1 and published 1..3, line B level with A."""
    channel.data(0, 1, 2, 3)
    channel.data(1, 1, 2, 3)
    channel.story()
    return channel


@pytest.fixture
def without_figures(monkeypatch):
    """Reports of `characterise` have their tables alone: to draw takes longer than to calculate."""
    from feedhandler.characterise import figures, report

    for module in (figures, report):
        monkeypatch.setattr(module, "available", lambda: False)
