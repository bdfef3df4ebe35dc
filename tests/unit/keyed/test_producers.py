"""The name of a producer of a keyed queue."""

import pytest

from feedhandler import keyed
from feedhandler.codecs.errors import UsageError
from feedhandler.keyed.producers import ID_BYTES_MAX, OWN

URL = "amqp://127.0.0.1:5672"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": b"\0loader"}, "begins with a zero byte"),
        ({"id": "\0"}, "begins with a zero byte"),
        ({"id": "x" * (ID_BYTES_MAX + 1)}, f"id has {ID_BYTES_MAX + 1} bytes"),
        ({"sequence": 0}, "sequence = 0"),
    ],
)
def test_a_producer_that_no_queue_would_take_is_refused_at_once(options, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        keyed.producer(URL, "orders", **options)


def test_a_producer_without_an_id_has_one_of_its_own_that_every_queue_takes() -> None:
    # 256 ids out of random bytes: one would begin with the byte that only queues' ids begin with.
    made = {keyed.producer(URL, "orders").id for _ in range(512)}
    assert len(made) == 512
    assert not [name for name in made if name.startswith(OWN)]
