"""Addresses: which may be read, and under which name GDAL reads them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.errors import RequestUnusable
from service.mapping.remote import address_of, allowed_path, is_remote
from service.settings import Settings

PLACES = ("https://data.example.org/scenes/", "http://127.0.0.1:9000/", "s3://flights/2026/")


@pytest.mark.parametrize(
    ("href", "packed"),
    [
        ("https://data.example.org/scenes/a.tif", "https%3A%2F%2Fdata.example.org%2Fscenes%2Fa.tif"),
        ("HTTPS://DATA.example.org/scenes/a.tif", "HTTPS%3A%2F%2FDATA.example.org%2Fscenes%2Fa.tif"),
        ("http://127.0.0.1:9000/a%20b.tif?X-Sig=1", "http%3A%2F%2F127.0.0.1%3A9000%2Fa%2520b.tif%3FX-Sig%3D1"),
    ],
)
def test_an_address_in_an_allowed_place_is_one_of_gdals_names(href, packed):
    assert str(allowed_path(href, PLACES)) == f"/vsicurl?list_dir=no&url={packed}"
    assert is_remote(allowed_path(href, PLACES))


def test_a_bucket_is_another_of_gdals_names():
    assert str(allowed_path("s3://flights/2026/line 7.tif", PLACES)) == "/vsis3/flights/2026/line 7.tif"


@pytest.mark.parametrize(
    "href",
    [
        "https://data.example.org/other/a.tif",
        "https://data.example.org/scenes.old/a.tif",
        "https://data.example.org:8443/scenes/a.tif",
        "http://data.example.org/scenes/a.tif",
        "https://data.example.org.evil.org/scenes/a.tif",
        "https://data.example.org@evil.org/scenes/a.tif",
        "https://someone@data.example.org/scenes/a.tif",
        "https://data.example.org/scenes/../private/a.tif",
        "https://data.example.org/scenes/%2e%2e/private/a.tif",
        "https://data.example.org/scenes/%2E%2E%2Fprivate/a.tif",
        "https://data.example.org/scenes/..\\private\\a.tif",
        "https://data.example.org/scenes/",
        "https://data.example.org/scenes/a.tif#b",
        "https://data.example.org/scenes/a.tif\n",
        "s3://flights/2025/a.tif",
        "s3://flights/2026//a.tif",
        "s3://flights/2026/a.tif?versionId=3",
        "s3://flights-private/2026/a.tif",
        "s3://FLIGHTS/2026/a.tif",
        "https://data.example.org/scenes/..%5cprivate%5ca.tif",
        "https://data.example.org/scenes/..;/private/a.tif",
        "https://data.example.org/scenes/%252e%252e/private/a.tif",
        "https://data.example.org/scenes/a%00.tif",
        "https://data.example.org/scenes/a b.tif",
        " https://data.example.org/scenes/a.tif",
        "http://[::1/scenes/a.tif",
        "https://data.example.org\u2100/scenes/a.tif",
        "file:///etc/passwd",
        "/etc/passwd",
        "/vsicurl/https://data.example.org/scenes/a.tif",
        "ftp://data.example.org/scenes/a.tif",
        "",
    ],
)
def test_no_other_address_is_read(href):
    with pytest.raises(RequestUnusable, match=r"href|address"):
        allowed_path(href, PLACES)


def test_what_follows_a_question_mark_is_told_to_nobody():
    path = allowed_path("http://127.0.0.1:9000/a.tif?X-Amz-Signature=secret", PLACES)
    assert address_of(path) == "http://127.0.0.1:9000/a.tif"
    assert address_of(Path("/vsis3/flights/2026/a.tif")) == "s3://flights/2026/a.tif"


@pytest.mark.parametrize(
    "place",
    ["https://data.example.org", "https://data.example.org/scenes", "data", "file:///x/", "https://me:pw@example.org/"],
)
def test_a_place_ends_with_a_slash_and_has_a_host(place):
    with pytest.raises(ValidationError, match="https://HOST/FOLDER/"):
        Settings(hrefs=place)


def test_places_are_given_with_commas_between():
    assert Settings(hrefs="https://a.org/x/, s3://bucket/").hrefs == ("https://a.org/x/", "s3://bucket/")
