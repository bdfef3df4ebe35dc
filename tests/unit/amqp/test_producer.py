"""A producer's futures, without a node."""

import asyncio

import pytest

from feedhandler import keyed


def test_a_flush_that_is_given_up_leaves_the_messages_to_their_callers() -> None:
    async def main() -> None:
        producer = keyed.producer("amqp://127.0.0.1:1", "orders")
        sent = [await producer.put_soon(b"one"), await producer.put_soon(b"two")]
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)  # until it waits
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        assert not any(future.done() for future in sent)

    asyncio.run(main())


def test_a_flush_is_not_ended_by_a_caller_that_has_left() -> None:
    async def main() -> None:
        producer = keyed.producer("amqp://127.0.0.1:1", "orders")
        left, refused = await producer.put_soon(b"one"), await producer.put_soon(b"two")
        left.cancel()
        refused.set_exception(keyed.Refused("message 2: it has no key", ""))
        with pytest.raises(keyed.Refused, match="message 2"):
            await producer.flush()

    asyncio.run(main())
