"""The errors of a verification, and how texts that others wrote are quoted in messages.

Besides this package, the commands of `service` use it.
"""

import json

MAX_SHOWN_CHARACTERS = 500


class VerifyError(Exception):
    """The reason why something could not be verified, in one line."""


class MissingError(VerifyError):
    """The service answered with 404: it does not have this."""


class LogUnavailableError(VerifyError):
    """The service has no checkpoint at the moment, and says why."""


def escape_unprintable(text: str) -> str:
    """Return text with the escapes of JSON for what could steer a terminal or is not Unicode."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def format_one_line(text: str, secret: str = "") -> str:
    """Return text that quotes a service as one printable line, with a secret replaced."""
    hidden = text.replace(secret, "(the key)") if secret else text
    line = escape_unprintable(" ".join(hidden.split()))
    return line if len(line) <= MAX_SHOWN_CHARACTERS else line[:MAX_SHOWN_CHARACTERS] + "..."
