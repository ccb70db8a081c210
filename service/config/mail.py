"""Which way mail leaves, by the settings, and what the doctor says of it."""

from collections.abc import AsyncIterator
from pathlib import Path

from access.mail.mailer import Mailer, MailError
from access.mail.outbox import Outbox
from access.mail.smtp_server import SmtpServer
from service.commands.console import Finding
from service.config.settings import Settings, SettingsError

DEFAULT_SENDER = "signals@localhost"


def open_mailer(settings: Settings) -> Mailer:
    """Return what sends mail; nothing is sent yet. SettingsError where it would be from nobody."""
    if settings.smtp_url is None:
        return Outbox(settings.outbox_folder, settings.mail_from or DEFAULT_SENDER)
    if settings.mail_from is None:
        raise SettingsError(
            "SIGNALS_SMTP_URL needs SIGNALS_MAIL_FROM too: the address that mail is from, one that "
            "the server lets its user send from"
        )
    # Imported here, so that nobody else waits for the library.
    from access.mail.smtp import SmtpMailer

    return SmtpMailer(SmtpServer.parse(settings.smtp_url.get_secret_value()), settings.mail_from)


def describe_mail(settings: Settings) -> str | None:
    """Return where whoever signs in finds the link, where it is not sent."""
    if settings.smtp_url is not None or settings.billing == "off":
        return None
    return f"Mail: written to {settings.outbox_folder}."


def choose_visible_outbox(settings: Settings) -> Path | None:
    """Return the folder that pages may name, for it concerns whoever sits at this machine alone."""
    is_visible = settings.smtp_url is None and settings.is_local
    return settings.outbox_folder.resolve() if is_visible else None


async def check_mail(settings: Settings) -> AsyncIterator[Finding]:
    """Reach where mail goes, and send none."""
    try:
        yield Finding("ok", "mail", await open_mailer(settings).check())
    except (SettingsError, MailError) as error:
        yield Finding("fix", "mail", str(error))
    if settings.smtp_url is None and settings.billing != "off" and not settings.is_local:
        text = (
            "it reaches nobody, so members cannot sign in for their keys: set SIGNALS_SMTP_URL and "
            "SIGNALS_MAIL_FROM"
        )
        yield Finding("warn", "mail", text)
