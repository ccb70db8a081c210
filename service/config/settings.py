"""Reads the settings: `SIGNALS_*` environment variables, which no other module reads.

And the proxies of the environment, as other programs read them: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY.
Each client gets its proxy from here, so that all of them decide and fail alike.
"""

import difflib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from access.throttle import DEFAULT_LIMIT
from schemas.errors import OperatorError
from schemas.operator import Operator
from schemas.vocabulary import DAILY_LIMIT
from service.config.logs import LogFormat, LogLevel
from service.config.setting_types import (
    SQLITE,
    Address,
    Contact,
    DatabaseUrl,
    EmptyAsNone,
    Hosts,
    Mailbox,
    OperatorName,
    Origins,
    PageUrl,
    Proxies,
    Scheduler,
    SmtpUrl,
    Source,
    ThrottleLimit,
    WebhookSecret,
)
from store.addresses import is_loopback, is_wildcard, redact_database_url

PREFIX: Final = "SIGNALS_"
API_KEY_VARIABLE: Final = "SIGNALS_API_KEY"
WEBHOOK_SECRET_VARIABLE: Final = "SIGNALS_WEBHOOK_SECRET"
NOTIFY_VARIABLE: Final = "SIGNALS_NOTIFY_URL"
# Only commands that call a service read them; the last one, with the address of the service, is for
# hosts of agents.
CLIENT_VARIABLES: Final = frozenset(
    {API_KEY_VARIABLE, WEBHOOK_SECRET_VARIABLE, NOTIFY_VARIABLE, "SIGNALS_URL"}
)
STRIPE_PREFIX: Final = "stripe_"
SOCKS_SCHEMES: Final = frozenset({"socks5", "socks5h"})
SECRET_PREFIXES: Final = (STRIPE_PREFIX, "alpaca_", "database_url", "smtp_url")


class SettingsError(OperatorError):
    """A setting that the operator must fix, described in one line."""


LIVE_FILE: Final = "signals-live.db"
# Load balancers close idle connections after 60 seconds. If the service closed first, a request
# could arrive at a closed connection.
DEFAULT_IDLE_S = 75


class Settings(BaseModel):
    """The settings of a service; the defaults work on a single machine."""

    # A plain model, not pydantic-settings: `read` below does all that it would, and importing it
    # cost every command 0.07 s and 9 MB.

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address that the service listens on.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port that the service listens on.")
    metrics_host: str = Field(default="127.0.0.1", description="Address of the operations port.")
    metrics_port: int = Field(
        default=9464,
        ge=0,
        le=65535,
        description="Operations port, with /metrics, /healthz and /readyz; 0 disables it.",
    )
    idle_timeout_s: int = Field(
        default=DEFAULT_IDLE_S,
        ge=1,
        le=3600,
        description="Seconds after which a connection is closed that waits for a request, for the "
        "rest of one, or for its client to read. Set it higher than that of a load balancer.",
    )
    log_level: LogLevel = Field(
        default="info", description="Least level of the log: debug, info, warning or error."
    )
    log_format: LogFormat = Field(
        default="auto",
        description="Format of the log: json, text, or auto, which is text on a terminal and JSON "
        "lines elsewhere.",
    )
    database_url: DatabaseUrl = Field(
        default=SecretStr("sqlite:///signals.db"),
        description="The database: sqlite:///PATH (API keys are in PATH-access) or "
        "postgresql://USER:PASSWORD@HOST:PORT/DATABASE. The default of the live source is "
        "sqlite:///signals-live.db, with the keys of signals.db.",
    )
    log_key_file: Path | None = Field(
        default=None,
        description="File with the key that signs the log of the feed, created at the first start; "
        "the default is PATH-log-key.json next to the database, or signals-log-key.json in the "
        "working directory with PostgreSQL. Keep it out of backups of the database.",
    )
    witness_policy: Path | None = Field(
        default=None,
        description="Policy file (c2sp.org/tlog-policy) whose witnesses, those with an address, "
        "are asked to cosign each checkpoint of the log.",
    )
    source: Source = Field(
        default="simulated",
        description="Source of the bars: simulated, live, or files:DIR for a folder of recorded "
        "bars.",
    )
    universe: Path | None = Field(
        default=None, description="Universe file (TOML) to use instead of the built-in one."
    )
    show_prices: EmptyAsNone[bool] = Field(
        default=None,
        description="1 shows prices and charts on pages, 0 hides them; by default those of the "
        "live source are hidden if others can reach the service: venues may not allow it.",
    )
    alpaca_key_id: EmptyAsNone[str] = Field(
        default=None,
        description="Key id for Alpaca's market data of equities (free plan: 15 minutes later).",
    )
    alpaca_secret_key: EmptyAsNone[SecretStr] = Field(
        default=None, description="Secret key that belongs to SIGNALS_ALPACA_KEY_ID."
    )
    live_api_base: Address | None = Field(
        default=None,
        description="For tests: a server that replaces all venues; paths begin with their host.",
    )
    believe_clock: bool = Field(
        default=False,
        description="1 computes and prunes although the clock is more than 180 days after the last "
        "run; `--believe-clock` sets it for one start.",
    )
    dask_scheduler: EmptyAsNone[Scheduler] = Field(
        default=None,
        description="Dask scheduler (tcp://HOST:PORT) whose workers run rebuilds and audits; "
        "without one, they run on this machine's cores.",
    )
    base_url: Address | None = Field(
        default=None,
        description="Public address of the service, used in all absolute links; the default is "
        "http://HOST:PORT, with a loopback address if HOST stands for all addresses (0.0.0.0, ::).",
    )
    operator_name: EmptyAsNone[OperatorName] = Field(
        default=None,
        description="Name of the person or company that runs the service, shown to its users.",
    )
    operator_contact: EmptyAsNone[Contact] = Field(
        default=None,
        description="Where users reach the operator: an e-mail address or the https:// address of "
        "a page.",
    )
    terms_url: EmptyAsNone[PageUrl] = Field(
        default=None,
        description="Page with the operator's own terms (https://), besides those of /legal.",
    )
    privacy_url: EmptyAsNone[PageUrl] = Field(
        default=None,
        description="Page with the operator's own privacy policy (https://), besides /legal.",
    )
    billing: Literal["sandbox", "stripe", "off"] = Field(
        default="sandbox",
        description="Payment processor: sandbox (no real payments), stripe, or off.",
    )
    stripe_api_key: EmptyAsNone[SecretStr] = Field(
        default=None, description="Stripe's secret or restricted key, for test or live mode."
    )
    stripe_webhook_secret: EmptyAsNone[WebhookSecret] = Field(
        default=None, description="Signing secret of the webhook endpoint BASE_URL/webhooks/stripe."
    )
    stripe_price_monthly: EmptyAsNone[str] = Field(
        default=None, description="Id of the Stripe price for the monthly plan, USD 129."
    )
    stripe_price_yearly: EmptyAsNone[str] = Field(
        default=None, description="Id of the Stripe price for the yearly plan, USD 1199."
    )
    dunning_days: int = Field(
        default=30,
        ge=0,
        le=365,
        description="Days after the last paid period at which access ends if no payment follows.",
    )
    stripe_api_base: EmptyAsNone[Address] = Field(
        default=None, description="For tests: another address for Stripe's API."
    )
    smtp_url: EmptyAsNone[SmtpUrl] = Field(
        default=None,
        description="Mail server: smtp[s]://[USER:PASSWORD@]HOST[:PORT]; without one, mail is "
        "written to a folder next to the database.",
    )
    smtp_unencrypted: bool = Field(
        default=False,
        description="1 sends mail, with its sign-in links, to a server on another machine that "
        "offers no TLS; a password is sent only over TLS.",
    )
    mail_from: EmptyAsNone[Mailbox] = Field(
        default=None, description="Sender address of mail; required with SIGNALS_SMTP_URL."
    )
    daily_limit: int = Field(
        default=DAILY_LIMIT, ge=1, description="Calls that a key can make per UTC day."
    )
    checkout_limit: ThrottleLimit = Field(
        default=DEFAULT_LIMIT,
        description="Limit of checkouts per client address: ATTEMPTS/SECONDS.",
    )
    access_request_limit: ThrottleLimit = Field(
        default=DEFAULT_LIMIT,
        description="Limit of access requests per client address: ATTEMPTS/SECONDS.",
    )
    sign_in_limit: ThrottleLimit = Field(
        default=DEFAULT_LIMIT,
        description="Limit of sign-in links per client address: ATTEMPTS/SECONDS.",
    )
    oauth_limit: ThrottleLimit = Field(
        default=DEFAULT_LIMIT,
        description="Limit of requests for access (OAuth), and of refused requests for tokens, per "
        "client address: ATTEMPTS/SECONDS.",
    )
    oauth_client_documents: Literal["on", "off"] = Field(
        default="on",
        description="off stops offering metadata documents as ids of OAuth clients, so that hosts "
        "register instead, for a service that cannot fetch documents.",
    )
    trusted_proxies: Proxies = Field(
        default="",
        description="Comma-separated proxies whose X-Forwarded-For is trusted: addresses, or "
        "networks of private addresses only. Name a proxy with a public address by that address.",
    )
    allowed_hosts: Hosts = Field(
        default="",
        description="Comma-separated Host names (signals.example) to accept besides local ones and "
        "BASE_URL's. Without any, a HOST that other machines reach accepts every name.",
    )
    allowed_origins: Origins = Field(
        default="",
        description="Comma-separated origins of web pages that may call the API in a browser "
        "(CORS): https://app.example.com, http://localhost:5173.",
    )

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the environment; SettingsError names the first unknown or invalid variable."""
        variables = os.environ if environment is None else environment
        fields_by_variable = {PREFIX + name.upper(): name for name in cls.model_fields}
        # A misspelled variable would otherwise leave its setting at the default without notice.
        for variable in sorted(variables):
            if variable.startswith(PREFIX) and variable not in {
                *fields_by_variable,
                *CLIENT_VARIABLES,
            }:
                known_variables = [*fields_by_variable, *sorted(CLIENT_VARIABLES)]
                nearest = difflib.get_close_matches(variable, known_variables, n=1, cutoff=0.0)
                raise SettingsError(
                    f"{variable} is not a setting; did you mean {nearest[0]}? "
                    f"Settings: {', '.join(known_variables)}"
                )
        values = {
            name: variables[variable]
            for variable, name in fields_by_variable.items()
            if variable in variables
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_format_validation_error(error, values)) from None

    def with_database(self, database_url: str) -> Self:
        """Return the same settings with another database; SettingsError if the URL is invalid."""
        try:
            return type(self).model_validate({**self.model_dump(), "database_url": database_url})
        except ValidationError as error:
            raise SettingsError(_format_validation_error(error, {})) from None

    @classmethod
    def read_api_key(cls) -> str:
        """Return the API key for commands that call a service, empty if none is set."""
        api_key = cls.read_client_variable(API_KEY_VARIABLE)
        if not (api_key.isascii() and api_key.isprintable()):
            raise SettingsError(
                f"{API_KEY_VARIABLE} contains invalid characters: set it to the key as it was shown"
            )
        return api_key

    @classmethod
    def read_client_variable(cls, variable: str) -> str:
        """Return a variable for commands that call a service, empty if it is not set."""
        return os.environ.get(variable, "").strip()

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is SQLite, else it is PostgreSQL."""
        return self.database_url.get_secret_value().startswith(SQLITE)

    @property
    def store_name(self) -> str:
        """The name of the database for messages, without user and password."""
        return (
            str(self.market_path)
            if self.is_sqlite
            else redact_database_url(self.database_url.get_secret_value())
        )

    @property
    def market_path(self) -> Path:
        """The SQLite file of market data."""
        is_beside = self.has_default_database and self.source == "live"
        return self._simulated_path.with_name(LIVE_FILE) if is_beside else self._simulated_path

    @property
    def access_path(self) -> Path:
        """The SQLite file of API keys."""
        return self._simulated_path.with_name(self._simulated_path.name + "-access")

    @property
    def other_market_path(self) -> Path | None:
        """The file of live data if this one has simulated data, or the reverse; None if none."""
        paths = {self._simulated_path, self._simulated_path.with_name(LIVE_FILE)}
        return (paths - {self.market_path}).pop() if self.has_default_database else None

    @property
    def has_default_database(self) -> bool:
        """Whether the operator named no database."""
        return "database_url" not in self.model_fields_set

    @property
    def _simulated_path(self) -> Path:
        return Path(self.database_url.get_secret_value().removeprefix(SQLITE))

    @property
    def log_key_path(self) -> Path:
        """The file with the key that signs the log of the feed."""
        return self.log_key_file or self._place(self.market_path, "-log-key.json")

    @property
    def log_origin(self) -> str:
        """The origin of a new log: the address of its files without a scheme."""
        return f"{self.address.partition('://')[2]}/api/v1/log"

    @property
    def venues_folder(self) -> Path:
        """The folder where the live source caches the venues' listings between restarts."""
        return self._place(self.market_path, "-venues")

    @property
    def outbox_folder(self) -> Path:
        """The folder where mail is written if no SMTP server is set."""
        return self._place(self._simulated_path, "-outbox")

    def _place(self, database: Path, suffix: str) -> Path:
        """Return the path beside a SQLite file; with PostgreSQL it is in the working directory."""
        return (
            database.with_name(database.name + suffix)
            if self.is_sqlite
            else Path(f"signals{suffix}")
        )

    @property
    def bars_folder(self) -> Path | None:
        """The folder of recorded bars, None if the source is another one."""
        kind, _, folder = self.source.partition(":")
        return Path(folder) if kind == "files" else None

    @property
    def operator(self) -> Operator:
        """The operator as the service names it to its users."""
        return Operator(self.operator_name, self.operator_contact, self.terms_url, self.privacy_url)

    @property
    def is_stripe_live(self) -> bool:
        """Whether the Stripe key is for live mode, with real payments."""
        key = "" if self.stripe_api_key is None else self.stripe_api_key.get_secret_value()
        return "_live_" in key

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        base_url_host = "" if self.base_url is None else urlsplit(self.base_url).hostname or ""
        return is_loopback(self.host) and (self.base_url is None or is_loopback(base_url_host))

    @property
    def checks_host(self) -> bool:
        """Whether a request's Host must be a known one: on loopback, or if names are given."""
        return is_loopback(self.host) or self.allowed_hosts != ""

    @property
    def address(self) -> str:
        """The address where users reach the service, this machine's own if it is not known."""
        host = self.host
        if is_wildcard(host):
            host = "::1" if ":" in host else "127.0.0.1"
        return self.base_url or f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def address_hint(self) -> str | None:
        """What to set so that other machines can use the service; None if nothing is missing."""
        if self.base_url is not None or not is_wildcard(self.host):
            return None
        return (
            "set SIGNALS_BASE_URL to the address that other machines use, for example "
            f"SIGNALS_BASE_URL=http://signals.example:{self.port}; until then links lead to this "
            "machine"
        )


def _format_validation_error(error: ValidationError, values: Mapping[str, str]) -> str:
    """Describe the first invalid setting in one line, without the value if it may be secret."""
    first = error.errors(include_input=False)[0]
    field, reason = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
    # An address may contain a password.
    may_be_secret = field.startswith(SECRET_PREFIXES) or "@" in values[field].partition("://")[2]
    shown_value = "" if may_be_secret else f"={values[field]!r}"
    return f"{PREFIX}{field.upper()}{shown_value}: {reason}"


def find_proxy(address: str, *, allows_socks: bool = True) -> tuple[str, str] | None:
    """Return the variable that names the proxy to an address, and the proxy's own address.

    Return None if there is none, as for hosts in NO_PROXY and for this machine, which no proxy
    reaches. SettingsError for a proxy that cannot be used; the message quotes no password.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    names = (f"{parts.scheme}_proxy", "all_proxy")
    variables = [each for name in names for each in (name, name.upper()) if os.environ.get(each)]
    if not variables:
        return None
    variable, proxy = variables[0], os.environ[variables[0]]
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    kind = proxy.partition("://")[0].lower()
    remedy = f"set {parts.scheme.upper()}_PROXY to an http:// proxy, or unset {variable}"
    if kind in SOCKS_SCHEMES and not allows_socks:
        raise SettingsError(
            f"{variable} names a SOCKS proxy, which venues do not support: {remedy}"
        )
    if kind in SOCKS_SCHEMES and find_spec("socksio") is None:
        raise SettingsError(
            f"{variable} names a SOCKS proxy, which needs the package socksio: install it "
            f"(pip install socksio), {remedy}"
        )
    try:
        is_usable = bool(urlsplit(proxy).hostname) and urlsplit(proxy).port != 0
    except ValueError:
        is_usable = False
    if not is_usable or kind not in {"http", "https", *SOCKS_SCHEMES}:
        raise SettingsError(
            f"{variable} is not the address of a proxy, such as http://HOST:PORT or "
            f"socks5://HOST:PORT: correct it, {remedy}"
        )
    return variable, proxy
