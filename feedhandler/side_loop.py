"""An event loop on a thread of its own, for sockets of a program that has none."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

_Opened = TypeVar("_Opened")
#: How long leaving waits for requests that are being answered.
CLOSE_WAIT_S = 1.0


class SideLoop(Generic[_Opened]):
    """A context that holds what `opened` opens on a thread's own event loop.

    Entering returns what `opened` yields, or raises what it raises; leaving closes it.
    """

    def __init__(
        self, opened: Callable[[], AbstractAsyncContextManager[_Opened]], name: str
    ) -> None:
        self._open = opened
        self._opened: Future[_Opened] = Future()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> _Opened:
        self._thread.start()
        try:
            return self._opened.result()
        except BaseException:
            self._thread.join()
            raise

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            # Once open, an error only ends a socket that is closed anyway: no caller waits.
            if not self._opened.done():
                self._opened.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with self._open() as opened:
            self._opened.set_result(opened)
            await self._closing.wait()
