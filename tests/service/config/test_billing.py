"""How the settings select billing, and which ones do not start."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from tlog_scales.signing import Vkey
from tlog_scales.tlog import Checkpoint

from access.billing.provider import BillingSetupError, NoBilling, Provider, SandboxBilling
from access.billing.stripe import StripeBilling
from access.mail import Outbox, SmtpMailer
from compute.signing.log_signer import load_key
from compute.signing.witnesses import PolicyError
from service.commands.serve import serve
from service.config.providers import (
    choose_visible_outbox,
    describe_billing,
    find_outage_reason,
    open_mailer,
    open_provider,
)
from service.config.settings import PREFIX, Settings, SettingsError
from service.config.sources import build_log_signer, open_log_signer
from store.opening import open_sqlite_access, open_sqlite_market
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.doubles.witness import open_witness
from tests.service.commands.test_cli import refused, write_bars
from tests.store.sql.test_transparency_log import commit_rows
from tests.support.running_service import ManualClock
from tests.support.signals_command import (
    build_environment,
    create_store,
    find_free_port,
    run_signals,
    start_signals,
)
from tests.support.store_homes import open_and_close

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


@pytest.mark.clause("operation")
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


@pytest.mark.clause("operation", "dashboard")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"stripe_api_key": "rk_live_hidden"}, "STRIPE_API_KEY is a live key"),
        (PUBLIC | {"stripe_api_key": "rk_live_hidden"}, "STRIPE_API_KEY is a live key"),
        (
            {"billing": "stripe", "stripe_api_key": "rk_test_x", "stripe_price_yearly": " "},
            "BILLING=stripe needs SIGNALS_STRIPE_WEBHOOK_SECRET, SIGNALS_STRIPE_PRICE_MONTHLY, "
            "SIGNALS_STRIPE_PRICE_YEARLY too",
        ),
        (STRIPE | {"stripe_api_key": "pk_test_hidden"}, "STRIPE_API_KEY"),
        (STRIPE | {"stripe_webhook_secret": "sk_live_hidden"}, "STRIPE_WEBHOOK_SECRET"),
        ({"smtp_url": "smtp://127.0.0.1:9"}, "MAIL_FROM"),
    ],
)
def test_a_wrong_setting_of_sales_or_mail_is_named_in_one_line(tmp_path, settings, named):
    source = f"files:{write_bars(tmp_path / 'bars')}"
    line = refused(tmp_path, "serve", port=find_free_port(), source=source, **settings)
    assert (PREFIX + named in line, "hidden" in line) == (True, False)


@pytest.mark.clause("operation")
@pytest.mark.parametrize("command", [["keys", "list"], ["access-requests"]])
def test_commands_without_billing_ignore_its_settings(tmp_path, command):
    create_store(tmp_path)
    done = run_signals(tmp_path, *command, billing="stripe", host="0.0.0.0")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.clause("operation")
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


@pytest.mark.clause("operation")
async def test_an_unreachable_processor_is_reported_and_not_an_error(access):
    async with run_stripe_double(ManualClock()) as stripe:
        provider = open_provider(read(**selling(stripe)), access, ManualClock())
        try:
            stripe.fail(503)
            assert "HTTP 503" in str(await find_outage_reason(provider))
            assert await find_outage_reason(provider) is None
        finally:
            await provider.close()


SMTP = {"smtp_url": "smtp://127.0.0.1:9", "mail_from": "keys@mail.example"}


@pytest.mark.clause("dashboard")
@pytest.mark.parametrize(
    ("given", "kind"), [({}, Outbox), ({"mail_from": "me@example.com"}, Outbox), (SMTP, SmtpMailer)]
)
def test_the_settings_select_the_mailer(given: dict[str, str], kind: type) -> None:
    assert type(open_mailer(read(**given))) is kind


@pytest.mark.clause("dashboard")
def test_pages_name_the_outbox_only_on_a_local_service() -> None:
    outbox = choose_visible_outbox(read(database_url="sqlite:////data/signals.db"))
    assert str(outbox) == "/data/signals.db-outbox"
    for others in (SMTP, {"host": "0.0.0.0"}, {"base_url": "https://signals.example"}):
        assert choose_visible_outbox(read(**others)) is None


@pytest.mark.clause("dashboard")
def test_a_mail_server_without_a_sender_is_refused() -> None:
    with pytest.raises(SettingsError, match="SIGNALS_SMTP_URL needs SIGNALS_MAIL_FROM too"):
        open_mailer(read(smtp_url=SMTP["smtp_url"]))


@pytest.mark.clause("dashboard")
@pytest.mark.prove
def test_the_start_message_names_the_outbox(tmp_path) -> None:
    with start_signals(
        tmp_path, "serve", port=find_free_port(), source=f"files:{write_bars(tmp_path / 'bars')}"
    ) as process:
        assert (
            process.wait_for_line("Mail: ") == f"Mail: written to {tmp_path}/signals.db-outbox.\n"
        )
        process.wait_for_line("--header")
        assert process.stop() == 0


def make_settings(folder: Path, **settings: object) -> Settings:
    url = SecretStr(f"sqlite:///{folder / 'signals.db'}")
    return Settings.model_validate({"database_url": url, **settings})


@pytest.mark.clause("proof")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "/data/signals.db-log-key.json"),
        ({"database_url": "postgresql://u:p@db/s"}, "signals-log-key.json"),
        ({"log_key_file": "/keys/log.json"}, "/keys/log.json"),
    ],
)
def test_the_key_file_lies_beside_the_store_unless_it_is_named(
    settings: dict[str, str], path: str
) -> None:
    assert make_settings(Path("/data"), **settings).log_key_path == Path(path)


@pytest.mark.clause("proof")
@pytest.mark.usefixtures("use_single_ca")
@pytest.mark.parametrize(
    ("settings", "origin"),
    [
        ({}, "127.0.0.1:8000/api/v1/log"),
        ({"base_url": "https://signals.example/below/"}, "signals.example/below/api/v1/log"),
        ({"host": "::1", "port": 9}, "[::1]:9/api/v1/log"),
    ],
)
def test_the_origin_is_the_address_of_the_log_without_a_scheme(
    settings: dict[str, object], origin: str
) -> None:
    assert make_settings(Path("/data"), **settings).log_origin == origin


@pytest.mark.clause("proof")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_new_key_keeps_the_origin_of_its_first_start(tmp_path: Path) -> None:
    async with open_and_close(open_sqlite_market(tmp_path / "signals.db")) as market:
        for base_url in ("https://one.example", "https://two.example"):
            settings = make_settings(tmp_path, base_url=base_url)
            await build_log_signer(settings, market, lambda: 0).sign()
            key = load_key(settings.log_key_path)
            assert key is not None
            assert key.origin == "one.example/api/v1/log"


@pytest.mark.clause("proof")
@pytest.mark.usefixtures("use_single_ca")
async def test_the_witnesses_of_the_policy_are_asked(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, witness_policy=tmp_path / "policy")
    outcomes: list[str] = []
    async with open_and_close(open_sqlite_market(tmp_path / "signals.db")) as market:
        await build_log_signer(settings, market, lambda: 0).sign()
        vkey = (await market.feed_log.checkpoint()).vkey
        assert vkey is not None
        async with open_witness(vkey) as witness:
            line = f"witness W {witness.vkey.serialize()} {witness.url}\nquorum W\n"
            (tmp_path / "policy").write_text(line)
            async with open_log_signer(settings, market, lambda: 0, outcomes.append) as signer:
                await commit_rows(market, 5)
                await signer.sign()
        checkpoint = await market.feed_log.checkpoint()
    assert checkpoint.note is not None
    signed = Checkpoint.from_text(checkpoint.note)
    signed.verify(Vkey.from_string(vkey))
    signed.verify(witness.vkey)
    assert outcomes == ["signed", "cosigned"]


@pytest.mark.clause("proof")
@pytest.mark.usefixtures("use_single_ca")
async def test_a_policy_with_a_mistake_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("witness W\n")
    settings = make_settings(tmp_path, witness_policy=tmp_path / "policy")
    async with open_and_close(open_sqlite_market(tmp_path / "signals.db")) as market:
        with pytest.raises(PolicyError, match="line 1: a witness line does not have 1 items"):
            async with open_log_signer(settings, market, lambda: 0, lambda outcome: None):
                pass
