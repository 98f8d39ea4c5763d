"""URLs of scenes: which may be read, and which path names them."""

import pytest
from pydantic import ValidationError

from hyperscene.errors import RequestUnusable
from hyperscene.service.mapping.remote import address_of, allowed_path, is_remote, remote_name
from hyperscene.service.settings import Settings

URL_PREFIXES = ("https://data.example.org/scenes/", "http://127.0.0.1:9000/", "s3://flights/2026/")


@pytest.mark.parametrize(
    ("href", "packed"),
    [
        ("https://data.example.org/scenes/a.tif", "https%3A%2F%2Fdata.example.org%2Fscenes%2Fa.tif"),
        ("HTTPS://DATA.example.org/scenes/a.tif", "HTTPS%3A%2F%2FDATA.example.org%2Fscenes%2Fa.tif"),
        ("http://127.0.0.1:9000/a%20b.tif?X-Sig=1", "http%3A%2F%2F127.0.0.1%3A9000%2Fa%2520b.tif%3FX-Sig%3D1"),
    ],
)
def test_an_allowed_http_url_becomes_a_path_that_names_it(href, packed):
    path = allowed_path(href, URL_PREFIXES)
    assert is_remote(path)
    assert str(path).endswith(f"&url={packed}")
    assert remote_name(path).href == href


def test_an_allowed_s3_url_becomes_a_path_that_names_it():
    path = allowed_path("s3://flights/2026/line 7.tif", URL_PREFIXES)
    assert remote_name(path).href == address_of(path) == "s3://flights/2026/line 7.tif"
    assert remote_name(allowed_path("S3://flights/2026/a.tif", URL_PREFIXES)).is_s3


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
def test_other_urls_are_refused(href):
    with pytest.raises(RequestUnusable, match="href"):
        allowed_path(href, URL_PREFIXES)


def test_the_query_of_a_url_is_never_shown():
    path = allowed_path("http://127.0.0.1:9000/a.tif?X-Amz-Signature=secret", URL_PREFIXES)
    assert address_of(path) == "http://127.0.0.1:9000/a.tif"
    assert address_of(allowed_path("s3://flights/2026/a.tif", URL_PREFIXES)) == "s3://flights/2026/a.tif"


@pytest.mark.parametrize(
    "prefix",
    ["https://data.example.org", "https://data.example.org/scenes", "data", "file:///x/", "https://me:pw@example.org/"],
)
def test_a_url_prefix_needs_a_host_and_a_slash_at_its_end(prefix):
    with pytest.raises(ValidationError, match="https://HOST/FOLDER/"):
        Settings(hrefs=prefix)


def test_url_prefixes_are_separated_by_commas():
    assert Settings(hrefs="https://a.org/x/, s3://bucket/").hrefs == ("https://a.org/x/", "s3://bucket/")
