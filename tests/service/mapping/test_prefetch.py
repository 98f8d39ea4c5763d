"""Stages overlap, keep their order, and end together."""

import threading
import time

import pytest

from hyperscene.service.mapping.prefetch import StageClock, Stop, prefetch


def stages() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hyperscene-stage"]


def test_items_come_in_order_and_the_thread_ends():
    assert list(prefetch(iter_of(20), Stop())) == list(range(20))
    assert not stages()


def iter_of(count):
    yield from range(count)


def test_an_error_reaches_the_reader_after_the_items_before_it():
    def items():
        yield 1
        raise ValueError("broken")

    chain = prefetch(items(), Stop())
    assert next(chain) == 1
    with pytest.raises(ValueError, match="broken"):
        next(chain)
    assert not stages()


def test_closing_early_ends_the_whole_chain_and_closes_each_stage_in_its_own_thread():
    closed_by = {}

    def source():
        try:
            yield from iter_of(1_000_000)
        finally:
            closed_by["source"] = threading.current_thread().name

    def doubled(items):
        try:
            for item in items:
                yield 2 * item
        finally:
            items.close()

    stop = Stop()
    chain = prefetch(doubled(prefetch(source(), stop)), stop)
    assert next(chain) == 0
    chain.close()
    assert closed_by == {"source": "hyperscene-stage"}
    assert not stages()


def test_the_reader_does_not_wait_for_the_writer():
    made = []

    def items():
        for number in range(3):
            made.append(number)
            yield number

    chain = prefetch(items(), Stop())
    assert next(chain) == 0
    time.sleep(0.2)  # the reader of the chain is busy; one item waits in the queue, the next is being handed over
    assert made == [0, 1, 2]
    chain.close()


def test_a_clock_sums_stages_and_shares():
    clock = StageClock()
    for _ in range(2):
        with clock.stage("read"):
            time.sleep(0.02)
    began = time.perf_counter()
    with clock.stage("network", share=0.5):
        time.sleep(0.04)
    assert clock.seconds["read"] >= 0.04
    assert 0.02 <= clock.seconds["network"] <= (time.perf_counter() - began) / 2
