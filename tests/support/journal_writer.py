"""A process that works on a queue until it is killed, and says before and afterwards what it does.

What it sends through its pipe survives it: ("try", what, about) before a call, ("did", ...) once
the queue has acknowledged it.
"""

import random
from multiprocessing.connection import Connection

from feedhandler.journal import BlockingQueue, CancelAnswer, QueueSettings

SETTINGS = QueueSettings(
    block_bytes=256 << 10, blocks=2, blocks_max=8, journal_bytes=16 << 10, checkpoint_bytes=64 << 10
)


def content_of(token: int) -> bytes:
    """An item's bytes, which begin with its token."""
    return b"%016d" % token + bytes(token % 997)


def token_of(content: bytes) -> int:
    """The token of an item whose bytes are right; -1 of any other."""
    token = int(content[:16])
    return token if content == content_of(token) else -1


def work(folder: str, seed: int, token: int, pipe: Connection) -> None:
    """Put, deliver, cancel until killed; `token` is the first to put."""
    draw = random.Random(seed)
    with BlockingQueue(folder, SETTINGS) as queue:
        pipe.send(("did", "open", None))
        while True:
            count = draw.choice((1, 3, 20))
            tokens = list(range(token, token + count))
            token += count
            pipe.send(("try", "put", tokens))
            numbers = list(queue.put_many([content_of(each) for each in tokens]))
            pipe.send(("did", "put", dict(zip(numbers, tokens, strict=True))))
            items = queue.get_many(draw.choice((1, 10, 20)), 0)
            numbers = [item.id for item in items]
            pipe.send(("try", "end", numbers))
            queue.delivered(*numbers)
            pipe.send(("did", "end", numbers))
            number = draw.randrange(max(1, (numbers or [1])[-1] - 5), (numbers or [1])[-1] + 30)
            pipe.send(("try", "end", [number]))
            if queue.cancel(number) is CancelAnswer.CANCELLED:
                pipe.send(("did", "end", [number]))
