import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from access.throttle import DEFAULT_LIMIT, Limit
from service.commands.cli import _build_parser
from service.config.setting_types import split_commas
from service.config.settings import PREFIX, Settings, SettingsError

pytestmark = pytest.mark.clause("operation")

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_readme_lists_every_setting_with_its_default_and_meaning():
    rows = re.findall(r"^\| `(SIGNALS_\w+)` \| (?:`([^`]*)`)? *\| (.*) \|$", README, re.MULTILINE)
    expected = [
        (PREFIX + name.upper(), shown(field.default), field.description)
        for name, field in Settings.model_fields.items()
    ]
    assert rows == expected


def shown(default: object) -> str:
    """Return a default as one writes it into the environment."""
    if default is None:
        return ""
    if isinstance(default, SecretStr):
        return default.get_secret_value()
    return str(int(default)) if isinstance(default, bool) else str(default)


def test_the_readme_names_every_command():
    commands = next(a for a in _build_parser()._actions if a.choices)
    for name in commands.choices:
        assert f"`signals {name}" in README, name


def test_an_unknown_variable_refuses_to_start_and_names_the_nearest():
    with pytest.raises(
        SettingsError, match=r"SIGNALS_PROT is not a setting; did you mean SIGNALS_PO"
    ):
        Settings.read({"SIGNALS_PROT": "8000"})


def test_the_clients_variable_is_known_and_ignored():
    assert Settings.read({"SIGNALS_API_KEY": "ek_secret"}) == Settings.read({})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SIGNALS_PORT", "http"),
        ("SIGNALS_PORT", "70000"),
        ("SIGNALS_SOURCE", "files:"),
        ("SIGNALS_SOURCE", "moon"),
        ("SIGNALS_DASK_SCHEDULER", "127.0.0.1:8786"),
        ("SIGNALS_DASK_SCHEDULER", "tcp://127.0.0.1"),
        ("SIGNALS_BASE_URL", "example.com"),
        ("SIGNALS_BASE_URL", "http://[::1"),
        ("SIGNALS_BASE_URL", "https://"),
        ("SIGNALS_BASE_URL", "https:///below"),
        ("SIGNALS_BASE_URL", "https://example.com?a=1"),
        ("SIGNALS_BASE_URL", "https://example.com/#a"),
        ("SIGNALS_BASE_URL", "https://example.com/a b"),
        ("SIGNALS_BASE_URL", "https://example.com:99999"),
        ("SIGNALS_BILLING", "cash"),
        ("SIGNALS_MAIL_FROM", "nobody"),
        ("SIGNALS_MAIL_FROM", "me <me@example.com>"),
        ("SIGNALS_MAIL_FROM", "a@example.com\nBcc: b@example.com"),
        ("SIGNALS_SANDBOX_PUBLIC", "perhaps"),
        ("SIGNALS_DAILY_LIMIT", "0"),
        ("SIGNALS_CHECKOUT_LIMIT", "20"),
        ("SIGNALS_CHECKOUT_LIMIT", "0/600"),
        ("SIGNALS_ACCESS_REQUEST_LIMIT", "20/0"),
        ("SIGNALS_TRUSTED_PROXIES", "10.0.0.1, proxy.example"),
        ("SIGNALS_TRUSTED_PROXIES", "10.0.0.1/8"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_variable(variable, value):
    with pytest.raises(SettingsError) as caught:
        Settings.read({variable: value})
    assert str(caught.value).startswith(f"{variable}={value!r}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://me:hidden@example.com", "http://hidden@127.0.0.1"])
def test_an_address_that_holds_a_password_is_refused_and_not_repeated(address):
    with pytest.raises(SettingsError, match=r"^SIGNALS_BASE_URL: expected") as caught:
        Settings.read({"SIGNALS_BASE_URL": address})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:hidden@db/signals",
        "sqlite:///",
        "postgresql://me:hidden@db",
        "postgresql://me:hidden@/signals",
        "postgresql://me:hidden@db:port/signals",
        "postgresql://me:secret/hidden@db/signals",
        "postgresql://me:1/hidden@db/signals",
        "postgresql://me:1#hidden@db/signals",
        "postgresql://[::hidden/signals",
    ],
)
def test_another_address_of_a_database_is_refused_naming_both_forms_and_no_secret(url):
    with pytest.raises(SettingsError) as caught:
        Settings.read({"SIGNALS_DATABASE_URL": url})
    told = str(caught.value)
    assert told.startswith("SIGNALS_DATABASE_URL: expected sqlite:///PATH or postgresql://[USER")
    assert "hidden" not in told
    assert "\n" not in told


def test_a_mail_servers_password_shows_in_no_text_of_the_settings_nor_in_a_refusal():
    given = {"SIGNALS_SMTP_URL": "smtp://me:hidden@mail.example"}
    settings = Settings.read(given)
    assert settings.smtp_url is not None
    assert settings.smtp_url.get_secret_value() == given["SIGNALS_SMTP_URL"]
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "hidden" not in text
    with pytest.raises(SettingsError) as told:
        Settings.read({"SIGNALS_SMTP_URL": "imap://me:hidden@mail.example"})
    assert str(told.value).startswith("SIGNALS_SMTP_URL: expected smtp://[USER:PASSWORD@]HOST")
    assert "hidden" not in str(told.value)


@pytest.mark.clause("postgres")
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_databases_name_has_neither_user_nor_password_nor_options(scheme):
    given = f"{scheme}://me:hidden@db.example:5433/signals?sslmode=require"
    settings = Settings.read({"SIGNALS_DATABASE_URL": given})
    assert settings.database_url.get_secret_value() == given.replace(scheme, "postgresql", 1)
    assert settings.store_name == "postgresql://db.example:5433/signals"
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "hidden" not in text


def test_keys_lie_beside_the_market_file():
    settings = Settings.read({"SIGNALS_DATABASE_URL": "sqlite:////var/lib/signals.db"})
    assert settings.market_path == Path("/var/lib/signals.db")
    assert settings.access_path == Path("/var/lib/signals.db-access")


def test_limits_and_proxies_are_read_as_they_are_written():
    settings = Settings.read(
        {
            "SIGNALS_CHECKOUT_LIMIT": "3/60",
            "SIGNALS_TRUSTED_PROXIES": "10.0.0.7, 2001:db8::/32",
            "SIGNALS_SANDBOX_PUBLIC": "1",
        }
    )
    assert (settings.checkout_limit, settings.access_request_limit) == (Limit(3, 60), DEFAULT_LIMIT)
    assert split_commas(settings.trusted_proxies) == ("10.0.0.7", "2001:db8::/32")
    assert settings.sandbox_public is True


def test_the_environment_is_read_once_and_only_where_none_is_handed_in(monkeypatch):
    monkeypatch.setenv("SIGNALS_CHECKOUT_LIMIT", "3/60")
    assert Settings.read().checkout_limit == Limit(3, 60)
    assert Settings.read({}).checkout_limit == DEFAULT_LIMIT


OPTIONAL = [
    *(name for name in Settings.model_fields if name.startswith(("stripe_", "alpaca_"))),
    *("smtp_url", "mail_from", "dask_scheduler"),
]


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_empty_optional_setting_counts_as_unset(name):
    for value in ("", "  "):
        assert Settings.read({PREFIX + name.upper(): value}) == Settings.read({})


def test_stripes_secrets_show_in_no_text_of_the_settings():
    secrets = {
        "SIGNALS_STRIPE_API_KEY": " sk_live_hidden\n",
        "SIGNALS_STRIPE_WEBHOOK_SECRET": "whsec_hidden",
    }
    settings = Settings.read(secrets)
    assert settings.stripe_api_key is not None
    assert settings.stripe_api_key.get_secret_value() == "sk_live_hidden"
    assert settings.is_stripe_live
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "hidden" not in text


def test_a_secret_that_was_given_to_another_of_stripes_settings_is_not_repeated():
    with pytest.raises(SettingsError) as told:
        Settings.read({"SIGNALS_STRIPE_API_BASE": "sk_live_hidden"})
    assert str(told.value).startswith("SIGNALS_STRIPE_API_BASE: expected an address")
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "is_local"),
    [
        ({}, True),
        ({"HOST": "::1", "BASE_URL": "http://localhost:8000"}, True),
        ({"BASE_URL": "http://[::1]:8000"}, True),
        ({"HOST": "0.0.0.0"}, False),
        ({"HOST": "::"}, False),
        ({"HOST": "192.0.2.1", "BASE_URL": "http://localhost"}, False),
        ({"BASE_URL": "https://signals.example"}, False),
        ({"BASE_URL": "http://localhost.example"}, False),
    ],
)
def test_a_service_is_local_where_neither_host_nor_address_leads_elsewhere(given, is_local):
    given = {PREFIX + name: value for name, value in given.items()}
    assert Settings.read(given).is_local is is_local
