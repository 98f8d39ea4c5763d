"""Words of refusals."""

import pytest

from service.errors import in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (604800, "7 days"),
        (86400, "1 day"),
        (90000, "1 day and 1 hour"),
        (5400, "1 hour and 30 minutes"),
        (61.2, "1 minute and 1 second"),
        (90061, "1 day and 1 hour"),
        (2, "2 seconds"),
        (0.2, "less than a second"),
    ],
)
def test_a_time_is_told_as_a_person_says_it(seconds, words):
    assert in_words(seconds) == words
