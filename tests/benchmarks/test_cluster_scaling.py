"""Cost and gain of a cluster; run once on a small scene as a test, measured by tests.scaling."""

import pytest

from tests.scaling import measure


@pytest.mark.slow
def test_a_cluster_is_compared_with_one_machine(tmp_path):
    figures = measure(tmp_path, rows=64, cols=64, rounds=1, device="cpu")
    assert figures["two_to_one"] > 0
    assert figures["one_to_thread"] > 0
    assert set(figures["seconds"]) == {"one thread", "one worker", "two workers"}
