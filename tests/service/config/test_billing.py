"""How the settings select billing, and which ones do not start."""

import pytest

from access.billing.provider import BillingSetupError, Provider
from access.billing.sandbox import NoBilling, SandboxBilling
from access.billing.stripe import StripeBilling
from service.commands.serve import serve
from service.config.billing import describe_billing, find_outage_reason, open_provider
from service.config.settings import PREFIX, Settings
from store.sqlite.access_store import open_sqlite_access
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.service.commands.test_cli import only_line, write_bars
from tests.support.running_service import ManualClock
from tests.support.signals_command import (
    build_environment,
    create_store,
    find_free_port,
    run_signals,
)

pytestmark = pytest.mark.clause("operation")

STRIPE = {
    "billing": "stripe",
    "stripe_api_key": "rk_test_hidden",
    "stripe_webhook_secret": "whsec_hidden",
    "stripe_price_monthly": "price_m",
    "stripe_price_yearly": "price_y",
    "stripe_api_base": "http://127.0.0.1:9",
}
PUBLIC = {"base_url": "https://signals.example"}


def read(**given: str) -> Settings:
    return Settings.read({PREFIX + name.upper(): value for name, value in given.items()})


def selling(stripe: StripeDouble, **changed: str) -> dict[str, str]:
    """Return the settings of a service that sells through a Stripe double."""
    usual = {
        "billing": "stripe",
        "stripe_api_key": stripe.api_key,
        "stripe_webhook_secret": stripe.webhook_secret,
        "stripe_price_monthly": stripe.prices["monthly"],
        "stripe_price_yearly": stripe.prices["yearly"],
        "stripe_api_base": stripe.base_url,
    }
    return usual | changed


@pytest.fixture
async def access(tmp_path):
    store = await open_sqlite_access(tmp_path / "access.db")
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("given", "kind", "mode", "note"),
    [
        ({}, SandboxBilling, "test", "Billing: sandbox, no real payments."),
        (
            PUBLIC,
            SandboxBilling,
            "test",
            "Warning: sandbox billing takes no money",
        ),
        (PUBLIC | {"billing": "off"}, NoBilling, None, "Billing: off. Create API keys"),
        (STRIPE, StripeBilling, "test", "Billing: stripe in test mode, no real payments."),
        (STRIPE | {"stripe_api_key": "rk_live_x"}, StripeBilling, "live", None),
    ],
)
async def test_the_settings_select_the_provider_and_the_start_message(
    access, given, kind, mode, note
):
    settings = read(**given)
    provider: Provider = open_provider(settings, access, ManualClock())
    try:
        assert (type(provider), provider.mode) == (kind, mode)
        said = describe_billing(provider, is_local=settings.is_local)
        assert said == note if note is None else str(said).startswith(note)
    finally:
        await provider.close()


@pytest.mark.parametrize("settings", [{}, PUBLIC])
def test_sandbox_billing_does_not_start_with_a_live_key(tmp_path, settings):
    key = "rk_live_hidden"
    done = run_signals(tmp_path, "serve", port=find_free_port(), stripe_api_key=key, **settings)
    assert done.returncode == 1
    assert "SIGNALS_STRIPE_API_KEY is a live key" in only_line(done.stderr)
    assert "hidden" not in done.stderr


def test_every_missing_stripe_setting_is_named_in_one_line(tmp_path):
    given = {"billing": "stripe", "stripe_api_key": "rk_test_x", "stripe_price_yearly": " "}
    done = run_signals(tmp_path, "serve", port=find_free_port(), **given)
    assert done.returncode == 1
    line = only_line(done.stderr)
    for name in ("WEBHOOK_SECRET", "PRICE_MONTHLY", "PRICE_YEARLY"):
        assert f"SIGNALS_STRIPE_{name}" in line
    assert "SIGNALS_STRIPE_API_KEY" not in line


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("stripe_api_key", "pk_test_hidden"), ("stripe_webhook_secret", "sk_live_hidden")],
)
def test_a_secret_of_another_kind_is_refused_and_not_printed(tmp_path, name, wrong):
    done = run_signals(tmp_path, "serve", port=find_free_port(), **STRIPE | {name: wrong})
    assert done.returncode == 1
    assert PREFIX + name.upper() in only_line(done.stderr)
    assert "hidden" not in done.stderr


@pytest.mark.parametrize("command", [["keys", "list"], ["access-requests"]])
def test_commands_without_billing_ignore_its_settings(tmp_path, command):
    create_store(tmp_path)
    done = run_signals(tmp_path, *command, billing="stripe", host="0.0.0.0")
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_service_does_not_start_with_wrong_prices(tmp_path):
    bars = write_bars(tmp_path / "bars")
    async with run_stripe_double(ManualClock()) as stripe:
        given = selling(stripe, stripe_price_monthly=stripe.prices["yearly"])
        env = build_environment(tmp_path, port=find_free_port(), source=f"files:{bars}", **given)
        settings = Settings.read({n: v for n, v in env.items() if n.startswith(PREFIX)})
        with pytest.raises(BillingSetupError, match="prices do not match the plan") as caught:
            await serve(settings, ManualClock())
    assert "\n" not in str(caught.value)
    assert stripe.api_key not in str(caught.value)


async def test_an_unreachable_processor_is_reported_and_not_an_error(access):
    async with run_stripe_double(ManualClock()) as stripe:
        provider = open_provider(read(**selling(stripe)), access, ManualClock())
        try:
            stripe.fail(503)
            assert "HTTP 503" in str(await find_outage_reason(provider))
            assert await find_outage_reason(provider) is None
        finally:
            await provider.close()
