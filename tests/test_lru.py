"""The cache of what was used last."""

from hyperscene.lru import LruCache


def test_the_least_recently_used_value_is_dropped():
    cache = LruCache(2)
    for key in "ab":
        cache.get_or_make(key, str)
    cache.get("a")
    cache.get_or_make("c", str)
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]


def test_a_kept_value_is_not_made_again():
    cache = LruCache(2)
    made = [cache.get_or_make("a", object) for _ in range(2)]
    assert made[0] is made[1]


def test_room_is_made_before_a_value_is():
    cache = LruCache(1)
    cache.get_or_make("a", str)
    assert cache.get_or_make("b", lambda: str(cache.get("a"))) == "None"
