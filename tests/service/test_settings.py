import re
from pathlib import Path

import pytest

from service.cli import _parser
from service.settings import PREFIX, Settings, SettingsError

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_readme_lists_every_setting_with_its_default_and_meaning():
    rows = re.findall(r"^\| `(SIGNALS_\w+)` \| (?:`([^`]*)`)? *\| (.*) \|$", README, re.MULTILINE)
    expected = [
        (
            PREFIX + name.upper(),
            "" if field.default is None else str(field.default),
            field.description,
        )
        for name, field in Settings.model_fields.items()
    ]
    assert rows == expected


def test_the_readme_names_every_command():
    commands = next(a for a in _parser()._actions if a.choices)
    for name in commands.choices:
        assert f"`signals {name}" in README, name


def test_an_unknown_variable_refuses_to_start_and_names_the_nearest():
    with pytest.raises(SettingsError, match=r"SIGNALS_PROT is no setting; did you mean SIGNALS_PO"):
        Settings.read({"SIGNALS_PROT": "8000"})


def test_the_clients_variable_is_known_and_ignored():
    assert Settings.read({"SIGNALS_API_KEY": "ek_secret"}) == Settings.read({})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SIGNALS_PORT", "http"),
        ("SIGNALS_PORT", "70000"),
        ("SIGNALS_DATABASE_URL", "mysql://x"),
        ("SIGNALS_DATABASE_URL", "sqlite:///"),
        ("SIGNALS_SOURCE", "files:"),
        ("SIGNALS_SOURCE", "moon"),
        ("SIGNALS_BASE_URL", "example.com"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_variable(variable, value):
    with pytest.raises(SettingsError) as caught:
        Settings.read({variable: value})
    assert str(caught.value).startswith(f"{variable}={value!r}: ")
    assert "\n" not in str(caught.value)


def test_keys_lie_beside_the_market_file():
    settings = Settings.read({"SIGNALS_DATABASE_URL": "sqlite:////var/lib/signals.db"})
    assert settings.market_path == Path("/var/lib/signals.db")
    assert settings.access_path == Path("/var/lib/signals.db-access")
