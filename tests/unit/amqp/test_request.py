"""Several gateways are each asked for what can be merged, and nothing else."""

import pytest

from feedhandler.amqp.request import Request
from feedhandler.codecs.errors import UsageError


@pytest.mark.parametrize(
    ("request_", "address"),
    [
        (Request(pattern="iex.#"), "iex.#?full=detach"),
        (Request(pattern="iex.#", full="drop_oldest"), "iex.#?full=drop_oldest"),
        (Request(pattern="iex.#?full=drop_oldest"), "iex.#?full=drop_oldest"),
        (Request(pattern="iex.#?types=1", stamp=True), "iex.#?types=1&stamp=1&full=detach"),
    ],
)
def test_each_of_several_gateways_detaches_a_slow_link_where_nothing_else_is_asked(
    request_: Request, address: str
) -> None:
    assert request_.of_several().address() == address


@pytest.mark.parametrize(
    "request_",
    [
        Request(pattern="iex.#", full="conflate"),
        Request(pattern="iex.#?stamp=1&full=conflate"),
        Request(pattern="iex.#", grain="bbo"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_a_remedy(request_: Request) -> None:
    with pytest.raises(UsageError, match=r"one gateway|cannot be merged") as raised:
        request_.of_several()
    assert "subscribe to one of them" in str(raised.value)
