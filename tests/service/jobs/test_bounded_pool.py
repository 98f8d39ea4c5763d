"""A thread pool with a bounded queue."""

from threading import Event

import pytest

from hyperscene.errors import NotReady
from hyperscene.service.jobs.bounded_pool import BoundedPool
from tests.server import wait_for


@pytest.fixture
def released():
    event = Event()
    yield event
    event.set()


@pytest.fixture
def pool():
    pool = BoundedPool(1, 3, "test")
    yield pool
    pool.close()


def test_a_call_runs_in_another_thread(pool):
    assert pool.submit(divmod, 7, 3).result(10) == (2, 1)


def test_calls_above_the_limit_are_refused_until_others_finish(pool, released):
    waiting = [pool.submit(released.wait, 10) for _ in range(3)]
    with pytest.raises(NotReady, match="try again") as caught:
        pool.submit(released.wait, 10)
    assert caught.value.headers == {"Retry-After": "1"}
    released.set()
    assert all(future.result(10) for future in waiting)
    wait_for(lambda: pool.submit(divmod, 7, 3).result(10) == (2, 1))


def test_a_cancelled_call_makes_room_and_does_not_run(pool, released):
    done = []
    first = pool.submit(released.wait, 10)
    wait_for(first.running)
    for _ in range(2):
        assert pool.submit(done.append, 1).cancel()
    last = pool.submit(done.append, 2)
    released.set()
    last.result(10)
    assert done == [2]


def test_a_closed_pool_refuses_calls(pool):
    pool.close()
    for _ in range(5):
        with pytest.raises(NotReady, match="shutting down"):
            pool.submit(divmod, 7, 3)
