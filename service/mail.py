"""Which way mail leaves, by the settings."""

from access.mail.mailer import Mailer
from access.mail.outbox import Outbox
from service.settings import Settings

SENDER = "signals@localhost"


def open_mailer(settings: Settings) -> Mailer:
    """Return what sends mail; nothing is sent yet."""
    return Outbox(settings.outbox_folder, SENDER)
