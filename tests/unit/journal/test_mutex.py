"""The queue's lock: one at a time, for `with`, for conditions."""

import threading

import pytest

from feedhandler.journal import mutex

PATIENCE_S = 60.0


@pytest.fixture
def lock():
    return mutex.Mutex()


def test_one_has_it_at_a_time(lock) -> None:
    count = 0
    others = threading.Event()

    def work() -> None:
        nonlocal count
        for _ in range(5000):
            with lock:
                before = count
                if not before % 500:
                    others.wait(0)  # which lets another thread run
                count = before + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert count == 20_000


def test_a_caller_that_does_not_wait_is_told(lock) -> None:
    assert lock.acquire()
    assert not lock.acquire(False)
    lock.release()
    assert lock.lock()
    lock.give()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert lock.acquire(blocking=False)
    lock.release()
    with pytest.raises(ValueError, match="time-out"):
        lock.acquire(timeout=1)


def test_a_condition_may_have_it(lock) -> None:
    changed = threading.Condition(lock)
    seen: list[int] = []

    def wait() -> None:
        with changed:
            assert changed.wait_for(lambda: bool(seen), PATIENCE_S)
            seen.append(2)
            changed.notify()

    thread = threading.Thread(target=wait)
    thread.start()
    with changed:
        seen.append(1)
        changed.notify()
        assert changed.wait_for(lambda: len(seen) == 2, PATIENCE_S)
    thread.join(PATIENCE_S)
    assert seen == [1, 2]
