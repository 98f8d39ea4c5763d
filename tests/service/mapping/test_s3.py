"""Signed requests to S3, and where their host, region and key come from."""

from datetime import UTC, datetime

import pytest

from hyperscene.errors import SourceUnreachable
from hyperscene.service.mapping import s3

NOW = datetime(2013, 5, 24, tzinfo=UTC)
# The keys and the signature of the example in AWS's documentation of Signature Version 4 (GET Object).
KEY = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
NAMES = "host;range;x-amz-content-sha256;x-amz-date"
SIGNATURE = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


@pytest.fixture(autouse=True)
def variables(monkeypatch, tmp_path):
    """Only the variables that a test sets; no credentials of this machine."""
    monkeypatch.setattr(s3, "_botocore_credentials", lambda: None)
    monkeypatch.setattr(s3.os, "environ", {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")})
    return s3.os.environ


def test_a_request_is_signed_as_in_the_documentation(variables):
    variables |= KEY | {"AWS_S3_ENDPOINT": "s3.amazonaws.com"}
    headers = dict(s3.sign("s3://examplebucket/test.txt", "bytes=0-9", NOW).headers)
    assert headers["host"] == "examplebucket.s3.amazonaws.com"
    assert headers["authorization"].endswith(
        f"/us-east-1/s3/aws4_request, SignedHeaders={NAMES}, Signature={SIGNATURE}"
    )


@pytest.mark.parametrize(
    ("set_", "url", "target"),
    [
        ({}, "https://flights.s3.us-east-1.amazonaws.com", "/a/line%207.tif"),
        ({"AWS_REGION": "eu-west-1"}, "https://flights.s3.eu-west-1.amazonaws.com", "/a/line%207.tif"),
        ({"AWS_S3_ENDPOINT": "minio:9000", "AWS_HTTPS": "NO"}, "http://flights.minio:9000", "/a/line%207.tif"),
        (
            {"AWS_S3_ENDPOINT": "http://minio:9000", "AWS_VIRTUAL_HOSTING": "FALSE"},
            "http://minio:9000",
            "/flights/a/line%207.tif",
        ),
    ],
)
def test_the_host_follows_from_the_variables(variables, set_, url, target):
    variables |= KEY | set_
    request = s3.sign("s3://flights/a/line 7.tif", "bytes=0-9", NOW)
    assert (request.url, request.target) == (url, target)
    assert request.is_trusted == ("AWS_S3_ENDPOINT" in set_)


def test_a_bucket_with_dots_is_part_of_the_path(variables):
    variables |= KEY
    request = s3.sign("s3://flights.2026/a.tif", "bytes=0-9", NOW)
    assert (request.url, request.target) == ("https://s3.us-east-1.amazonaws.com", "/flights.2026/a.tif")


def test_a_session_token_is_sent_and_signed(variables):
    variables |= KEY | {"AWS_SESSION_TOKEN": "a-token"}
    headers = s3.sign("s3://flights/a.tif", "bytes=0-9", NOW).headers
    assert headers["x-amz-security-token"] == "a-token"
    assert "x-amz-date;x-amz-security-token" in headers["authorization"]


def test_the_key_comes_from_the_profile_of_a_file(variables, tmp_path):
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = FROMFILE\naws_secret_access_key = s%cret\n")
    variables["AWS_PROFILE"] = "work"
    assert "Credential=FROMFILE/" in s3.sign("s3://flights/a.tif", "bytes=0-9", NOW).headers["authorization"]


def test_public_buckets_need_no_key(variables):
    variables["AWS_NO_SIGN_REQUEST"] = "YES"
    assert set(s3.sign("s3://flights/a.tif", "bytes=0-9", NOW).headers) == {"host", "range"}


def test_without_a_key_the_refusal_names_the_variables():
    with pytest.raises(SourceUnreachable, match="AWS_ACCESS_KEY_ID"):
        s3.sign("s3://flights/a.tif", "bytes=0-9", NOW)
