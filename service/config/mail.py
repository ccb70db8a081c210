"""Opens the mailer that the settings select."""

from pathlib import Path

from access.mail import Mailer, Outbox, SmtpMailer, SmtpServer
from service.config.settings import Settings, SettingsError

DEFAULT_SENDER = "signals@localhost"


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


def describe_mail(settings: Settings) -> str | None:
    """Return a line for the start message if mail is written to a folder instead of sent."""
    if settings.smtp_url is not None or settings.billing == "off":
        return None
    return f"Mail: written to {settings.outbox_folder}."


def choose_visible_outbox(settings: Settings) -> Path | None:
    """Return the outbox folder if pages may name it: only on a service for this machine."""
    is_visible = settings.smtp_url is None and settings.is_local
    return settings.outbox_folder.resolve() if is_visible else None
