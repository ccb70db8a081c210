"""Opens the billing provider and the mailer that the settings select, and checks the prices."""

from pathlib import Path

from access.billing.provider import (
    PRICES_USD,
    BillingError,
    BillingSetupError,
    NoBilling,
    Provider,
    SandboxBilling,
)
from access.mail import Mailer, Outbox, SmtpMailer, SmtpServer
from schemas.vocabulary import Billing, Clock
from service.config.settings import PREFIX, STRIPE_PREFIX, Settings, SettingsError, find_proxy
from store.sql.access_store import AccessStore

DEFAULT_SENDER = "signals@localhost"


def open_provider(settings: Settings, store: AccessStore, clock: Clock) -> Provider:
    """Return the billing provider, not yet checked against its processor.

    BillingSetupError if the settings contradict each other.
    """
    if settings.billing == "off":
        return NoBilling()
    if settings.billing == "sandbox":
        if settings.is_stripe_live:
            raise BillingSetupError(
                "SIGNALS_STRIPE_API_KEY is a live key, but SIGNALS_BILLING=sandbox gives keys away "
                "for free: set SIGNALS_BILLING=stripe, or unset SIGNALS_STRIPE_API_KEY"
            )
        return SandboxBilling(store, clock, settings.address)
    api_key, webhook_secret = settings.stripe_api_key, settings.stripe_webhook_secret
    monthly, yearly = settings.stripe_price_monthly, settings.stripe_price_yearly
    if api_key is None or webhook_secret is None or monthly is None or yearly is None:
        needed = ["api_key", "webhook_secret", *(f"price_{period}" for period in PRICES_USD)]
        fields = [STRIPE_PREFIX + name for name in needed]
        missing = [PREFIX + one.upper() for one in fields if getattr(settings, one) is None]
        raise BillingSetupError(
            f"SIGNALS_BILLING=stripe needs {', '.join(missing)} too; see docs/selling.md"
        )
    # Imported here because Stripe's library is slow to load.
    import stripe

    from access.billing.stripe import StripeBilling

    prices: dict[Billing, str] = {"monthly": monthly, "yearly": yearly}
    return StripeBilling(
        api_key=api_key.get_secret_value(),
        webhook_secret=webhook_secret.get_secret_value(),
        prices=prices,
        clock=clock,
        base_url=settings.address,
        api_base=settings.stripe_api_base,
        dunning_days=settings.dunning_days,
        proxy=find_proxy(settings.stripe_api_base or stripe.DEFAULT_API_BASE),
    )


async def find_outage_reason(provider: Provider) -> str | None:
    """Check the provider's prices with its processor; return why the check failed, else None.

    BillingSetupError if the prices or keys are wrong.
    """
    # An outage only keeps new checkouts closed, so the service starts and serves reads.
    try:
        await provider.check_prices()
    except BillingError as error:
        return str(error)
    return None


def describe_billing(provider: Provider, *, is_local: bool) -> str | None:
    """Return a line for the start message if billing takes no real money."""
    if provider.mode == "live":
        return None
    if provider.mode is None:
        return "Billing: off. Create API keys with `signals keys create`."
    if provider.name == "sandbox" and not is_local:
        return (
            "Warning: sandbox billing takes no money, so anyone who reaches this service gets a "
            "key; set SIGNALS_BILLING=stripe or off."
        )
    if provider.name == "sandbox":
        return "Billing: sandbox, no real payments."
    return f"Billing: {provider.name} in test mode, no real payments."


def open_mailer(settings: Settings) -> Mailer:
    """Return the mailer, without connecting; SettingsError if the sender is missing."""
    if settings.smtp_url is None:
        return Outbox(settings.outbox_folder, settings.mail_from or DEFAULT_SENDER)
    if settings.mail_from is None:
        raise SettingsError(
            "SIGNALS_SMTP_URL needs SIGNALS_MAIL_FROM too: set it to a sender address that the "
            "server accepts"
        )
    return SmtpMailer(
        SmtpServer.parse(settings.smtp_url.get_secret_value()),
        settings.mail_from,
        allows_plain=settings.smtp_unencrypted,
    )


def choose_visible_outbox(settings: Settings) -> Path | None:
    """Return the outbox folder if pages may name it: only on a service for this machine."""
    is_visible = settings.smtp_url is None and settings.is_local
    return settings.outbox_folder.resolve() if is_visible else None
