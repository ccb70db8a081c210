import re
from pathlib import Path

import pytest

from access.throttle import DEFAULT_LIMIT, Limit
from schemas.errors import OperatorError
from service.config.setting_types import split_commas
from service.config.settings import PREFIX, Settings, SettingsError, find_proxy
from serving.prices import decide_prices

pytestmark = pytest.mark.clause("operation")


def test_an_unknown_variable_is_refused_with_the_nearest_name():
    with pytest.raises(
        SettingsError, match=r"SIGNALS_PROT is not a setting; did you mean SIGNALS_PO"
    ):
        Settings.read({"SIGNALS_PROT": "8000"})


@pytest.mark.parametrize("variable", ["SIGNALS_API_KEY", "SIGNALS_WEBHOOK_SECRET", "SIGNALS_URL"])
def test_a_variable_that_clients_read_is_accepted(variable):
    assert Settings.read({variable: "secret"}) == Settings.read({})


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
        ("SIGNALS_BASE_URL", "https://a..b"),
        ("SIGNALS_BASE_URL", "https://"),
        ("SIGNALS_BASE_URL", "https:///below"),
        ("SIGNALS_BASE_URL", "https://example.com?a=1"),
        ("SIGNALS_BASE_URL", "https://example.com/#a"),
        ("SIGNALS_BASE_URL", "https://example.com/a b"),
        ("SIGNALS_BASE_URL", "https://example.com:99999"),
        ("SIGNALS_BILLING", "cash"),
        ("SIGNALS_OPERATOR_NAME", "Example\nLtd"),
        ("SIGNALS_OPERATOR_NAME", "Example \u202edtL"),
        ("SIGNALS_OPERATOR_NAME", "x" * 121),
        ("SIGNALS_OPERATOR_CONTACT", "support"),
        ("SIGNALS_OPERATOR_CONTACT", "mailto:support@signals.example"),
        ("SIGNALS_OPERATOR_CONTACT", "http://signals.example/support"),
        ("SIGNALS_OPERATOR_CONTACT", "a@example.com, b@example.com"),
        ("SIGNALS_TERMS_URL", "terms.html"),
        ("SIGNALS_TERMS_URL", "http://signals.example/terms"),
        ("SIGNALS_TERMS_URL", "javascript:alert(1)"),
        ("SIGNALS_TERMS_URL", "https://"),
        ("SIGNALS_TERMS_URL", "https://signals.example:99999/terms"),
        ("SIGNALS_PRIVACY_URL", "https://signals.example/a b"),
        ("SIGNALS_PRIVACY_URL", "https://signals.example/<b>"),
        ("SIGNALS_PRIVACY_URL", "support@signals.example"),
        ("SIGNALS_MAIL_FROM", "nobody"),
        ("SIGNALS_MAIL_FROM", "me <me@example.com>"),
        ("SIGNALS_MAIL_FROM", "a@example.com\nBcc: b@example.com"),
        ("SIGNALS_DAILY_LIMIT", "0"),
        ("SIGNALS_CHECKOUT_LIMIT", "20"),
        ("SIGNALS_CHECKOUT_LIMIT", "0/600"),
        ("SIGNALS_ACCESS_REQUEST_LIMIT", "20/0"),
        ("SIGNALS_TRUSTED_PROXIES", "10.0.0.1, proxy.example"),
        ("SIGNALS_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("SIGNALS_TRUSTED_PROXIES", "0.0.0.0/0"),
    ],
)
def test_a_wrong_value_fails_in_one_line_that_names_the_variable(variable, value):
    with pytest.raises(SettingsError) as caught:
        Settings.read({variable: value})
    assert re.fullmatch(re.escape(f"{variable}={value!r}: ") + "[^\n]*", str(caught.value))


@pytest.mark.parametrize(
    ("contact", "email", "link"),
    [
        ("support@EXAMPLE.com", "support@example.com", "mailto:support@example.com"),
        ("a&b?c@example.com", "a&b?c@example.com", "mailto:a%26b%3Fc@example.com"),
        (
            "https://signals.example/support?lang=en#top",
            None,
            "https://signals.example/support?lang=en#top",
        ),
    ],
)
def test_the_operator_is_read_from_the_settings(contact, email, link):
    operator = Settings.read(
        {
            "SIGNALS_OPERATOR_NAME": "  Müller & Söhne ",
            "SIGNALS_OPERATOR_CONTACT": contact,
            "SIGNALS_TERMS_URL": "https://signals.example/terms",
            "SIGNALS_PRIVACY_URL": "",
        }
    ).operator
    assert (operator.name, operator.terms_url, operator.privacy_url) == (
        "Müller & Söhne",
        "https://signals.example/terms",
        None,
    )
    assert (operator.contact_email, operator.contact_url) == (email, link)


WRONG_DATABASES = [
    "mysql://me:hidden@db/signals",
    "sqlite:///",
    "postgresql://me:hidden@db",
    "postgresql://me:hidden@/signals",
    "postgresql://me:hidden@db:port/signals",
    "postgresql://me:secret/hidden@db/signals",
    "postgresql://me:1/hidden@db/signals",
    "postgresql://me:1#hidden@db/signals",
    "postgresql://[::hidden/signals",
    "postgresql://me:hidden@db..example/signals",
    "postgresql://me:hidden@.../signals",
    f"postgresql://me:hidden@{'a' * 64}.example/signals",
    f"postgresql://me:hidden@{'ö' * 64}.example/signals",
    "postgresql://me:hidden@%00/signals",
    "postgresql://me:hidden@db%0A/signals",
    "postgresql://me:hidden@db/sig%00nals",
    "postgresql://me:hidden@db:0/signals",
    "postgresql://me:hidden@db:65536/signals",
    "postgresql://me:hidden@db:-1/signals",
]


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        *(
            ("SIGNALS_DATABASE_URL", url, "expected sqlite:///PATH or postgresql://[USER")
            for url in WRONG_DATABASES
        ),
        ("SIGNALS_BASE_URL", "http://me:hidden@example.com", "expected an address"),
        ("SIGNALS_BASE_URL", "http://hidden@127.0.0.1", "expected an address"),
        ("SIGNALS_SMTP_URL", "imap://me:hidden@mail.example", "expected smtp://[USER:PASSWORD@]"),
        ("SIGNALS_STRIPE_API_BASE", "sk_live_hidden", "expected an address"),
    ],
)
def test_a_wrong_value_that_may_be_secret_is_refused_without_printing_it(variable, value, reason):
    with pytest.raises(SettingsError) as caught:
        Settings.read({variable: value})
    message = str(caught.value)
    assert re.fullmatch(re.escape(f"{variable}: {reason}") + "[^\n]*", message)
    assert "hidden" not in message


OPTIONS = "://me:hidden@db.example:5433/signals?sslmode=require"


@pytest.mark.clause("postgres")
@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("database_url", f"postgresql{OPTIONS}", f"postgresql{OPTIONS}"),
        ("database_url", f"postgres{OPTIONS}", f"postgresql{OPTIONS}"),
        ("smtp_url", "smtp://me:hidden@mail.example", "smtp://me:hidden@mail.example"),
        ("stripe_api_key", " sk_live_hidden\n", "sk_live_hidden"),
        ("stripe_webhook_secret", "whsec_hidden", "whsec_hidden"),
    ],
)
def test_a_secret_is_read_and_never_printed(name, value, read):
    settings = Settings.read({PREFIX + name.upper(): value})
    assert getattr(settings, name).get_secret_value() == read
    assert settings.is_stripe_live is (read == "sk_live_hidden")
    assert "hidden" not in f"{settings!r} {settings} {settings.model_dump_json()}"
    if name == "database_url":
        assert settings.store_name == "postgresql://db.example:5433/signals"


@pytest.mark.clause("8.50")
def test_limits_and_proxies_are_parsed():
    settings = Settings.read(
        {
            "SIGNALS_CHECKOUT_LIMIT": "3/60",
            "SIGNALS_TRUSTED_PROXIES": "10.0.0.7, fd00::/8",
        }
    )
    assert (settings.checkout_limit, settings.access_request_limit) == (Limit(3, 60), DEFAULT_LIMIT)
    assert split_commas(settings.trusted_proxies) == ("10.0.0.7", "fd00::/8")


@pytest.mark.parametrize(
    ("variables", "market", "access"),
    [
        ({}, "signals.db", "signals.db-access"),
        ({"SIGNALS_DATABASE_URL": "sqlite:////s/own.db"}, "/s/own.db", "/s/own.db-access"),
        ({"SIGNALS_SOURCE": "live"}, "signals-live.db", "signals.db-access"),
        (
            {"SIGNALS_SOURCE": "live", "SIGNALS_DATABASE_URL": "sqlite:////data/own.db"},
            "/data/own.db",
            "/data/own.db-access",
        ),
    ],
)
def test_live_data_have_a_file_of_their_own_beside_the_same_keys(
    variables: dict[str, str], market: str, access: str
):
    settings = Settings.read(variables)
    assert (settings.market_path, settings.access_path) == (Path(market), Path(access))


PUBLIC = {"SIGNALS_BASE_URL": "https://signals.example"}


@pytest.mark.clause("14.4")
@pytest.mark.parametrize(
    ("variables", "stored_source", "is_shown"),
    [
        ({}, None, True),
        ({}, "simulated:1764547200:1795392000", True),
        ({"SIGNALS_SOURCE": "files:/data/bars"}, "files:/data/bars", True),
        ({"SIGNALS_SOURCE": "live"}, None, True),
        ({"SIGNALS_SOURCE": "live"} | PUBLIC, None, False),
        ({"SIGNALS_SOURCE": "live"} | PUBLIC, "live", False),
        # A process that only serves what another one computes.
        ({"SIGNALS_HOST": "0.0.0.0"}, "live", False),
        ({"SIGNALS_SHOW_PRICES": ""} | PUBLIC, "live", False),
        ({"SIGNALS_SHOW_PRICES": "1"} | PUBLIC, "live", True),
        ({"SIGNALS_SHOW_PRICES": "0"}, "live", False),
        ({"SIGNALS_SHOW_PRICES": "0"}, "simulated:1764547200", False),
    ],
)
def test_live_prices_are_shown_to_the_owner_alone_unless_the_operator_decides(
    variables: dict[str, str], stored_source: str | None, is_shown: bool
):
    settings = Settings.read(variables)
    decided, why = decide_prices(
        settings.show_prices, stored_source, settings.source, is_local=settings.is_local
    )
    assert (decided, why.split()[0]) == (is_shown, "shown," if is_shown else "hidden,")
    assert ("SIGNALS_SHOW_PRICES" in why) == (
        "SIGNALS_SHOW_PRICES" in str(variables) or not decided
    )


def test_the_environment_is_read_only_if_none_is_passed(monkeypatch):
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
def test_a_service_is_local_if_host_and_base_url_are_loopback(given, is_local):
    given = {PREFIX + name: value for name, value in given.items()}
    assert Settings.read(given).is_local is is_local


@pytest.mark.parametrize(
    ("given", "address", "is_hinted"),
    [
        ({}, "http://127.0.0.1:8000", False),
        ({"HOST": "0.0.0.0", "PORT": "8001"}, "http://127.0.0.1:8001", True),
        ({"HOST": "0"}, "http://127.0.0.1:8000", True),
        ({"HOST": "::"}, "http://[::1]:8000", True),
        ({"HOST": "0:0:0:0:0:0:0:0"}, "http://[::1]:8000", True),
        ({"HOST": "0.0.0.0", "BASE_URL": "https://us.example/"}, "https://us.example", False),
        ({"HOST": "192.0.2.1"}, "http://192.0.2.1:8000", False),
        ({"HOST": "2001:db8::1"}, "http://[2001:db8::1]:8000", False),
        ({"HOST": "box.example"}, "http://box.example:8000", False),
    ],
)
def test_a_host_that_stands_for_all_addresses_is_never_advertised(given, address, is_hinted):
    settings = Settings.read({PREFIX + name: value for name, value in given.items()})
    assert (settings.address, settings.address_hint is not None) == (address, is_hinted)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALLOWED_HOSTS", "http://signals.example"),
        ("ALLOWED_HOSTS", "signals.example/path"),
        ("ALLOWED_HOSTS", "inner.example, *"),
        ("ALLOWED_HOSTS", "*.example"),
        ("ALLOWED_HOSTS", "2001:db8::1"),
        ("ALLOWED_ORIGINS", "app.example"),
        ("ALLOWED_ORIGINS", "localhost:3000"),
        ("ALLOWED_ORIGINS", "https://app.example/path"),
        ("ALLOWED_ORIGINS", "https://app.example, https://app.example?query"),
        ("ALLOWED_ORIGINS", "https://app.example:0"),
        ("ALLOWED_ORIGINS", "https://app.example:99999"),
        ("ALLOWED_ORIGINS", "https://app.example https://other.example"),
        ("ALLOWED_ORIGINS", "https://*.example"),
        ("ALLOWED_ORIGINS", "*"),
        ("ALLOWED_ORIGINS", "null"),
        ("ALLOWED_ORIGINS", "https://app.example, null"),
        ("ALLOWED_ORIGINS", "file:///home/app"),
        ("ALLOWED_ORIGINS", "https://user@app.example"),
        ("ALLOWED_ORIGINS", "https://b\xfccher.example"),
    ],
)
def test_a_name_that_no_request_can_have_is_refused(name, value):
    with pytest.raises(SettingsError, match=f"^{PREFIX}{name}") as caught:
        Settings.read({PREFIX + name: value})
    assert "such as" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("app.example.com", "https://app.example.com"),
        ("App.Example.com/path", "https://app.example.com"),
        ("localhost:3000", "http://localhost:3000"),
        ("127.0.0.1:3000/", "http://127.0.0.1:3000"),
        ("https://app.example.com/path?query", "https://app.example.com"),
        ("http://app.example.com:80/path", "http://app.example.com"),
        ("https://user:secret@app.example.com:8443/", "https://app.example.com:8443"),
        ("*", None),
        ("null", None),
        ("app", None),
        ("https://*.example.com", None),
    ],
)
def test_the_right_form_of_an_origin_is_suggested(value: str, meant: str | None):
    with pytest.raises(SettingsError) as caught:
        Settings.read({PREFIX + "ALLOWED_ORIGINS": value})
    assert ("" if meant is None else f"did you mean {meant}?") in str(caught.value)
    assert ("did you mean" in str(caught.value)) is (meant is not None)
    assert "secret" not in str(caught.value)


def test_host_names_addresses_ports_and_origins_are_accepted():
    hosts = "signals.example, inner.example:9000, 192.0.2.1, [2001:db8::1]:8000"
    origins = "https://app.example, http://localhost:3000/, chrome-extension://abcdef"
    read = Settings.read({PREFIX + "ALLOWED_HOSTS": hosts, PREFIX + "ALLOWED_ORIGINS": origins})
    assert (read.allowed_hosts, read.allowed_origins) == (hosts, origins)


@pytest.mark.parametrize(
    ("given", "is_checked"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "allowed_hosts": "signals.example"}, True),
        ({"base_url": "https://signals.example"}, True),
    ],
)
def test_a_host_is_checked_on_loopback_or_if_names_are_given(given, is_checked):
    assert Settings(**given).checks_host is is_checked


PROXY = "http://user:secret@proxy.example:3128"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("environment", "address", "expected"),
    [
        ({}, "https://signals.example", None),
        ({"HTTPS_PROXY": PROXY}, "https://signals.example", ("HTTPS_PROXY", PROXY)),
        ({"https_proxy": PROXY}, "https://signals.example", ("https_proxy", PROXY)),
        ({"HTTPS_PROXY": PROXY}, "http://signals.example", None),
        ({"ALL_PROXY": PROXY}, "http://signals.example", ("ALL_PROXY", PROXY)),
        (
            {"ALL_PROXY": "socks5://x:1", "HTTP_PROXY": "p:1"},
            "http://a.b",
            ("HTTP_PROXY", "http://p:1"),
        ),
        ({"HTTP_PROXY": ""}, "http://signals.example", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "signals.example"}, "https://signals.example", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": ".example"}, "https://signals.example", None),
        ({"ALL_PROXY": PROXY, "NO_PROXY": "*"}, "https://signals.example", None),
        *(
            ({"ALL_PROXY": "socks5://x:1", "HTTP_PROXY": PROXY}, f"http://{host}:8000", None)
            for host in ("localhost", "127.0.0.1", "127.1.2.3", "[::1]")
        ),
    ],
)
def test_the_proxy_is_the_one_that_other_programs_use(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    address: str,
    expected: tuple[str, str] | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(address) == expected


@pytest.mark.parametrize(
    ("proxy", "problem"),
    [
        ("socks5://user:secret@x:1", "venues do not support: set HTTPS_PROXY to an http:// proxy"),
        ("socks4://user:secret@x:1", "is not the address of a proxy"),
        ("http://user:secret@:1", "is not the address of a proxy"),
        ("http://user:secret@x:0", "is not the address of a proxy"),
        ("http://user:secret@x:port", "is not the address of a proxy"),
    ],
)
def test_a_bad_proxy_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str, problem: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(OperatorError) as refused:
        find_proxy("https://signals.example", allows_socks=False)
    assert str(refused.value).startswith("ALL_PROXY ")
    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


def test_socks_without_its_package_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setattr("service.config.settings.find_spec", lambda name: None)
    with pytest.raises(OperatorError, match="pip install socksio"):
        find_proxy("http://signals.example")
    monkeypatch.setattr("service.config.settings.find_spec", lambda name: name)
    assert find_proxy("http://signals.example") == ("ALL_PROXY", "socks5://127.0.0.1:1")
