"""Threads that read for callers: bounded, and left by who goes away."""

from threading import Event

import pytest

from service.errors import NotReady
from service.jobs.readers import Readers
from tests.server import wait_for


@pytest.fixture
def goes_on():
    event = Event()
    yield event
    event.set()


@pytest.fixture
def readers():
    made = Readers(1, 3, "test")
    yield made
    made.close()


def test_an_answer_comes_from_another_thread(readers):
    assert readers.ask(divmod, 7, 3).result(10) == (2, 1)


def test_more_than_can_be_answered_soon_are_told_to_come_back(readers, goes_on):
    asked = [readers.ask(goes_on.wait, 10) for _ in range(3)]
    with pytest.raises(NotReady, match="try again") as caught:
        readers.ask(goes_on.wait, 10)
    assert caught.value.headers == {"Retry-After": "1"}
    goes_on.set()
    assert all(future.result(10) for future in asked)
    wait_for(lambda: readers.ask(divmod, 7, 3).result(10) == (2, 1))


def test_who_goes_away_makes_room_and_is_not_answered(readers, goes_on):
    done = []
    first = readers.ask(goes_on.wait, 10)
    wait_for(first.running)
    for _ in range(2):
        assert readers.ask(done.append, 1).cancel()
    last = readers.ask(done.append, 2)
    goes_on.set()
    last.result(10)
    assert done == [2]


def test_after_the_end_nothing_is_asked(readers):
    readers.close()
    for _ in range(5):
        with pytest.raises(NotReady, match="shuts down"):
            readers.ask(divmod, 7, 3)
