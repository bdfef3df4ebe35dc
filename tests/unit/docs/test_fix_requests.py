"""The page of Market Data Requests says what the code does (`docs/fix-requests.md`)."""

import asyncio
import re
from typing import Any

from feedhandler.retrans.fix import market_data
from feedhandler.retrans.fix.market_data import Refusal
from feedhandler.retrans.fix.market_data_client import Complete
from feedhandler.retrans.fix.market_follower import HELD_BYTES_MAX
from tests.support.checkout import CHECKOUT
from tests.support.fix_market import PublishedChannel, full

PAGE = (CHECKOUT / "docs" / "fix-requests.md").read_text()


def test_every_reject_is_on_the_page_with_its_reason() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\w?) ?\|", PAGE, re.MULTILINE)
    assert dict(rows) == {each.name: each.reason for each in Refusal}


def test_every_tag_of_our_own_is_on_the_page() -> None:
    ours = {value for value in vars(market_data).values() if isinstance(value, int)}
    ours = {each for each in ours if 20100 < each < 20200}
    assert len(ours) == 7
    assert {int(each) for each in re.findall(r"\b201\d\d\b", PAGE)} == ours


def test_the_bound_of_held_messages_is_the_pages() -> None:
    assert f"({HELD_BYTES_MAX >> 20} MiB at most" in PAGE


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/fix-requests.md", "exec"), names)
    channel = PublishedChannel()
    channel.publish(full("A", "269=0|270=10|271=5"))
    answer = asyncio.run(asyncio.wait_for(names["state_of"](channel.served), 60))
    assert isinstance(answer, Complete)
    assert answer.last == 1
    assert b"55=A\x01268=1\x01269=0\x01270=10\x01271=5\x01" in answer.messages[0]
