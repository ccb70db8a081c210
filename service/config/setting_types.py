"""The types of settings. Each rejects a bad value with a message that says what it accepts."""

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from access.mail import SmtpServer
from access.throttle import Limit

SQLITE = "sqlite:///"
POSTGRES = "postgresql://"
POSTGRES_ALIAS = "postgres://"

MAX_NAME_CHARS = 120

ValueT = TypeVar("ValueT")


def split_commas(text: str) -> tuple[str, ...]:
    """Split a comma-separated setting, without blanks and empty parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _expect(is_accepted: Callable[[Any], object], expected: str) -> AfterValidator:
    """Return a validator whose message says what is expected."""

    def validate(value: ValueT) -> ValueT:
        if not is_accepted(value):
            raise ValueError(expected)
        return value

    return AfterValidator(validate)


def _parse_database_url(value: SecretStr) -> SecretStr:
    url = value.get_secret_value()
    if url.startswith(POSTGRES_ALIAS):
        url = POSTGRES + url.removeprefix(POSTGRES_ALIAS)
    if not ((url.startswith(SQLITE) and url != SQLITE) or _is_postgres(url)):
        raise ValueError(
            "expected sqlite:///PATH or postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE, "
            "with special characters in USER and PASSWORD percent-encoded, and a HOST that can be "
            "looked up"
        )
    return SecretStr(url)


def _is_postgres(url: str) -> bool:
    """Return whether the URL is a PostgreSQL one with a host and a database."""
    # An unescaped `@` or `/` in the password would make part of it pass for the host or database,
    # which are logged.
    try:
        parts = urlsplit(url)
        # The lookup encodes the name like this, and fails with a traceback if it cannot.
        unquote(parts.hostname or "").encode("idna")
        is_whole = bool(parts.hostname and parts.path.strip("/")) and parts.port != 0
    except ValueError:
        return False
    is_printable = unquote(parts.netloc.rpartition("@")[2] + parts.path).isprintable()
    is_plain = is_printable and not {"@", "/"} & set(parts.path[1:])
    return url.startswith(POSTGRES) and is_whole and is_plain


def _validate_proxies(value: str) -> str:
    from serving.forwarded_for import parse_proxies

    parse_proxies(split_commas(value))
    return value


def _validate_hosts(value: str) -> str:
    from serving.host_origin import parse_host

    for host in split_commas(value):
        if parse_host(host) is None or "*" in host:
            raise ValueError(
                f"{host!r} is not a Host name; expected names such as signals.example, without "
                "http://, path and wildcards, and IPv6 addresses in brackets"
            )
    return value


def _validate_origins(value: str) -> str:
    from serving.host_origin import parse_allowed_origins

    parse_allowed_origins(split_commas(value))
    return value


def _is_address(value: str) -> bool:
    """Return whether paths can be appended to the address, and it has no user or password."""
    try:
        parts = urlsplit(value)
        # A lookup encodes the name like this.
        has_host = bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False
    is_plain = value.startswith(("http://", "https://")) and not set(value) & set("@?#\\ ")
    return has_host and is_plain and value.isprintable()


def _validate_smtp_url(value: SecretStr) -> SecretStr:
    SmtpServer.parse(value.get_secret_value())
    return value


def _parse_mailbox(value: str) -> str:
    from access.contact import normalize_email

    return normalize_email(value, accepts_special_use=True)


def _parse_contact(value: str) -> str:
    if _is_page(value):
        return value
    try:
        return _parse_mailbox(value)
    except ValueError:
        raise ValueError(
            "expected an e-mail address such as support@signals.example, without mailto:, or the "
            "https:// address of a page, such as https://signals.example/support"
        ) from None


def _is_page(value: str) -> bool:
    """Return whether the value is an https URL that can stand in a page, a mail and JSON as is."""
    is_plain = re.fullmatch(
        r"https://[A-Za-z0-9.:\[\]-]+([/?#][!#$%&'()*+,./:;=?@\w~-]*)?", value, re.A
    )
    try:
        parts = urlsplit(value)
        return bool(is_plain and parts.hostname) and parts.port != 0
    except ValueError:
        return False


EmptyAsNone = Annotated[
    ValueT | None,
    BeforeValidator(lambda value: value.strip() or None if isinstance(value, str) else value),
]
Address = Annotated[
    str,
    _expect(
        _is_address,
        "expected an address such as https://signals.example.com, optionally with a path, but "
        "without user name, query or fragment",
    ),
    AfterValidator(lambda value: value.rstrip("/")),
]
Contact = Annotated[str, AfterValidator(_parse_contact)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_parse_database_url)]
Hosts = Annotated[str, AfterValidator(_validate_hosts)]
Mailbox = Annotated[str, AfterValidator(_parse_mailbox)]
# Shown in pages, mails and messages, where other characters could hide or reorder text.
OperatorName = Annotated[
    str,
    _expect(
        lambda value: len(value) <= MAX_NAME_CHARS and value.isprintable(),
        f"expected one line of at most {MAX_NAME_CHARS} printable characters, such as Example Ltd",
    ),
]
Origins = Annotated[str, AfterValidator(_validate_origins)]
PageUrl = Annotated[
    str,
    _expect(
        _is_page,
        "expected the https:// address of a page, such as https://signals.example/terms, without "
        "user name, and with other characters than ASCII percent-encoded",
    ),
]
Proxies = Annotated[str, AfterValidator(_validate_proxies)]
Scheduler = Annotated[
    str,
    _expect(
        re.compile(r"(tcp|tls)://[^\s/]+:\d+").fullmatch,
        "expected tcp://HOST:PORT or tls://HOST:PORT",
    ),
]
SmtpUrl = Annotated[SecretStr, AfterValidator(_validate_smtp_url)]
Source = Annotated[
    str,
    _expect(
        re.compile("simulated|live|files:.+", re.DOTALL).fullmatch,
        "expected simulated, live or files:DIR",
    ),
]
ThrottleLimit = Annotated[
    Limit, BeforeValidator(lambda value: Limit.parse(value) if isinstance(value, str) else value)
]
WebhookSecret = Annotated[
    SecretStr,
    _expect(
        lambda value: value.get_secret_value().startswith("whsec_"),
        "expected the endpoint's signing secret, which begins with whsec_",
    ),
]
