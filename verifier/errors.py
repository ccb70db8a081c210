"""The errors of a verification, and how texts of a service are quoted in messages."""

MAX_SHOWN_CHARACTERS = 500


class VerifyError(Exception):
    """The reason why something could not be verified, in one line."""


class MissingError(VerifyError):
    """The service answered with 404: it does not have this."""


class LogUnavailableError(VerifyError):
    """The service has no checkpoint at the moment, and says why."""


def format_one_line(text: str, secret: str = "") -> str:
    """Return text that quotes a service as one printable line, with a secret replaced."""
    hidden = text.replace(secret, "(the key)") if secret else text
    line = "".join(c if c.isprintable() else "?" for c in " ".join(hidden.split()))
    return line if len(line) <= MAX_SHOWN_CHARACTERS else line[:MAX_SHOWN_CHARACTERS] + "..."
