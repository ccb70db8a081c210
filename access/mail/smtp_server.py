"""Parses SIGNALS_SMTP_URL; loads no SMTP library, as settings are read by every command."""

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

from store.addresses import is_loopback

DEFAULT_PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """Address and login of an SMTP server; `has_tls` if TLS starts with the connection."""

    host: str
    port: int
    has_tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse smtp:// or smtps://[USER:PASSWORD@]HOST[:PORT]; no error quotes the URL."""
        try:
            parts = urlsplit(url)
            port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
            return cls(_parse_host(parts), port, parts.scheme == "smtps", *_parse_login(parts))
        except (ValueError, KeyError):
            raise ValueError(
                "expected smtp://[USER:PASSWORD@]HOST[:PORT] (STARTTLS) or smtps://... (TLS from "
                "the start); percent-encode special characters in USER and PASSWORD"
            ) from None

    @property
    def name(self) -> str:
        """HOST:PORT, for messages and logs."""
        return f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        return is_loopback(self.host)

    @property
    def needs_starttls(self) -> bool:
        """Whether a password would cross the network unencrypted without STARTTLS."""
        return bool(self.user) and not self.has_tls and not self.is_local


def _parse_host(parts: SplitResult) -> str:
    if not parts.hostname or parts.port == 0 or parts.path.strip("/") or "@" in parts.path:
        raise ValueError
    if parts.query or parts.fragment:
        raise ValueError
    return parts.hostname


def _parse_login(parts: SplitResult) -> tuple[str, str]:
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) != bool(password):
        raise ValueError
    return user, password
