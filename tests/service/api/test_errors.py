"""Parts of error messages."""

import pytest

from hyperscene.errors import format_duration


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
def test_durations_are_written_in_words(seconds, words):
    assert format_duration(seconds) == words
