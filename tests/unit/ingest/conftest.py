"""Fixtures that several tests of arbitration share."""

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
