"""Settings: options, environment variables and help."""

import re

import pytest

from hyperscene.errors import WrongUsage
from hyperscene.service.commands.serve import read_settings
from hyperscene.service.settings import Settings
from tests.command_line import run


def test_every_setting_has_a_flag_a_variable_and_its_unit_in_the_help():
    text = " ".join(run("serve", "--help").stdout.split())
    for name, setting in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in text
        assert setting.description.split(",")[0] in text
        for suffix, unit in (("_s", "second"), ("_bytes", "bytes"), ("_px", "pixels")):
            if name.endswith(suffix):
                assert unit in setting.description, name
    assert "HYPERSCENE_KEEP_RESULTS_S" in text


def test_a_variable_applies_unless_a_flag_is_given(monkeypatch):
    monkeypatch.setenv("HYPERSCENE_MAX_PIXELS", "12")
    monkeypatch.setenv("HYPERSCENE_MAX_UPLOAD_BYTES", "3MB")
    assert read_settings({}).max_pixels == 12
    assert read_settings({}).max_upload_bytes == 3_000_000
    assert read_settings({"max_pixels": "13"}).max_pixels == 13


def test_lists_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("HYPERSCENE_API_KEYS", "one, two,")
    settings = read_settings({"cors_origins": "https://a.example,https://b.example"})
    assert [key.get_secret_value() for key in settings.api_keys] == ["one", "two"]
    assert settings.cors_origins == ("https://a.example", "https://b.example")


def test_printed_settings_hide_the_keys():
    assert "hush" not in repr(read_settings({"api_keys": "hush"}))


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"port": "70000"}, "--port"),
        ({"device": "cpu:1"}, "--device"),
        ({"device": "cuda:x"}, "--device"),
        ({"max_upload_bytes": "many"}, "--max-upload-bytes"),
        ({"keep_results_s": "-1"}, "--keep-results-s"),
        ({"log_level": "loud"}, "--log-level"),
        ({"api_keys": " , "}, "--api-keys"),
        ({"keep_results_s": "1e12"}, "--keep-results-s"),
        ({"lease_s": "inf"}, "--lease-s"),
    ],
)
def test_a_wrong_value_is_refused_by_its_flag(given, flag):
    with pytest.raises(WrongUsage, match=f"^{re.escape(flag)}: "):
        read_settings(given)


def test_several_gpus_are_several_devices():
    assert read_settings({"device": "cuda:0, cuda:1,cpu"}).devices == ("cuda:0", "cuda:1", "cpu")


@pytest.mark.parametrize(
    ("keys", "places", "chosen", "expected"),
    [
        ("", 100, 0, 100),
        ("one", 100, 0, 100),
        ("one", 100, 30, 30),
        ("one,two", 100, 0, 50),
        ("one,two", 100, 30, 30),
        ("one,two", 100, 100, 99),
        ("one,two", 1, 0, 1),
    ],
)
def test_one_of_several_keys_never_gets_all_places(keys, places, chosen, expected):
    settings = Settings(api_keys=keys, max_waiting=places, max_waiting_per_key=chosen)
    assert settings.waiting_per_key == expected


@pytest.mark.parametrize(
    "template",
    [
        "tiles.example.org/{z}/{x}/{y}.png", "https://tiles.example.org/{z}/{x}.png", "javascript:alert(1)/{z}/{x}/{y}",
        "https://{s}.example.org/{z}/{x}/{y}.png", "https://a.example;script-src */{z}/{x}/{y}",
        "https://a.example/{z}/{x}/{y}/{z}",
    ],
)  # fmt: skip
def test_a_basemap_that_is_no_template_is_refused(template):
    with pytest.raises(WrongUsage, match="basemap"):
        read_settings({"basemap": template})


def test_a_basemap_has_an_origin():
    settings = read_settings({"basemap": "https://a.example:8443/{z}/{y}/{x}.jpg?key=1"})
    assert settings.basemap_origin == "https://a.example:8443"
    assert read_settings({}).basemap_origin == ""
