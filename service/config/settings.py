"""The one reader of the environment; every setting is a `SIGNALS_*` variable."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from access.throttle import DEFAULT_LIMIT
from schemas.operator_error import OperatorError
from schemas.vocabulary import DAILY_LIMIT
from service.config.setting_types import (
    SQLITE,
    Address,
    DatabaseUrl,
    EmptyAsNone,
    Mailbox,
    Proxies,
    Scheduler,
    SmtpUrl,
    Source,
    ThrottleLimit,
    WebhookSecret,
)
from store.addresses import is_loopback, redact_database_url

PREFIX: Final = "SIGNALS_"
API_KEY_VARIABLE: Final = "SIGNALS_API_KEY"
STRIPE_PREFIX: Final = "stripe_"
SECRET_PREFIXES: Final = (STRIPE_PREFIX, "alpaca_", "database_url", "smtp_url")


class SettingsError(OperatorError):
    """A setting the operator must mend, told in one line."""


class Settings(BaseModel):
    """What an operator can set; every field has a default that works on one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port to listen on.")
    metrics_host: str = Field(
        default="127.0.0.1", description="Address on which /metrics, /healthz and /readyz listen."
    )
    metrics_port: int = Field(
        default=9464,
        ge=0,
        le=65535,
        description="Port of /metrics, /healthz and /readyz for the operator; 0 turns it off.",
    )
    database_url: DatabaseUrl = Field(
        default=SecretStr("sqlite:///signals.db"),
        description="Where everything is kept: sqlite:///PATH, and PATH-access beside it, or "
        "postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
    )
    source: Source = Field(
        default="simulated",
        description="Where bars come from: live, files:DIR (a folder of recorded bars) or "
        "simulated.",
    )
    universe: Path | None = Field(
        default=None, description="Another universe file (TOML); default is the built-in one."
    )
    alpaca_key_id: EmptyAsNone[str] = Field(
        default=None, description="Key id of Alpaca's market data, for equities of the live source."
    )
    alpaca_secret_key: EmptyAsNone[SecretStr] = Field(
        default=None, description="The secret that goes with it."
    )
    live_api_base: Address | None = Field(
        default=None,
        description="Another server in place of all venues, their hosts in the path, for tests.",
    )
    dask_scheduler: EmptyAsNone[Scheduler] = Field(
        default=None,
        description="A Dask scheduler (tcp://HOST:PORT) whose workers rebuild and audit; without "
        "one the cores of this machine do.",
    )
    base_url: Address | None = Field(
        default=None,
        description="The public address, from which all absolute addresses are made; "
        "default is the host and port listened on.",
    )
    billing: Literal["sandbox", "stripe", "off"] = Field(
        default="sandbox",
        description="Who takes the money: sandbox (nobody; for one machine), stripe, or off.",
    )
    sandbox_public: bool = Field(
        default=False,
        description="1 lets sandbox billing give keys away on an address that others reach.",
    )
    stripe_api_key: EmptyAsNone[SecretStr] = Field(
        default=None, description="Stripe's secret or restricted key, of test or of live mode."
    )
    stripe_webhook_secret: EmptyAsNone[WebhookSecret] = Field(
        default=None, description="The signing secret of the endpoint BASE_URL/webhooks/stripe."
    )
    stripe_price_monthly: EmptyAsNone[str] = Field(
        default=None, description="Id of Stripe's price of the plan, USD 129 a month."
    )
    stripe_price_yearly: EmptyAsNone[str] = Field(
        default=None, description="Id of Stripe's price of the plan, USD 1199 a year."
    )
    stripe_api_base: EmptyAsNone[Address] = Field(
        default=None, description="Another address of Stripe's API, for tests."
    )
    smtp_url: EmptyAsNone[SmtpUrl] = Field(
        default=None,
        description="The server that mail is sent by: smtp[s]://[USER:PASSWORD@]HOST[:PORT]; "
        "default is none: mail is written to a folder beside the database.",
    )
    mail_from: EmptyAsNone[Mailbox] = Field(
        default=None, description="The address that mail is from; SIGNALS_SMTP_URL needs it."
    )
    daily_limit: int = Field(
        default=DAILY_LIMIT, ge=1, description="Calls that a key may make a UTC day."
    )
    checkout_limit: ThrottleLimit = Field(
        default=DEFAULT_LIMIT,
        description="Checkouts that one client address may try: ATTEMPTS/SECONDS.",
    )
    access_request_limit: ThrottleLimit = Field(
        default=DEFAULT_LIMIT,
        description="Access requests that one client address may send: ATTEMPTS/SECONDS.",
    )
    sign_in_limit: ThrottleLimit = Field(
        default=DEFAULT_LIMIT,
        description="Sign-in links that one client address may ask for: ATTEMPTS/SECONDS.",
    )
    trusted_proxies: Proxies = Field(
        default="",
        description="Comma-separated proxies (addresses or networks) whose X-Forwarded-For is "
        "believed.",
    )
    allowed_hosts: str = Field(
        default="",
        description="Comma-separated Host names served besides the local ones and BASE_URL's.",
    )
    allowed_origins: str = Field(
        default="",
        description="Comma-separated Origin hosts let in besides those of allowed Hosts.",
    )

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the environment; SettingsError names the first variable that is wrong."""
        variables = os.environ if environment is None else environment
        fields_by_variable = {PREFIX + name.upper(): name for name in cls.model_fields}
        for variable in sorted(variables):
            if variable.startswith(PREFIX) and variable not in {
                *fields_by_variable,
                API_KEY_VARIABLE,
            }:
                raise SettingsError(_format_unknown_variable(variable, list(fields_by_variable)))
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
        """Return the same settings for another database; SettingsError where it is none."""
        try:
            return type(self).model_validate({**self.model_dump(), "database_url": database_url})
        except ValidationError as error:
            raise SettingsError(_format_validation_error(error, {})) from None

    @classmethod
    def read_api_key(cls) -> str:
        """Return the key that commands which call a service use, empty where none is set."""
        api_key = os.environ.get(API_KEY_VARIABLE, "").strip()
        if not (api_key.isascii() and api_key.isprintable()):
            raise SettingsError(f"{API_KEY_VARIABLE} holds characters that no API key has")
        return api_key

    @property
    def is_sqlite(self) -> bool:
        """Whether everything is kept in files, else in a PostgreSQL database."""
        return self.database_url.get_secret_value().startswith(SQLITE)

    @property
    def store_name(self) -> str:
        """Where everything is kept, without user and password."""
        url = self.database_url.get_secret_value()
        return str(self.market_path) if self.is_sqlite else redact_database_url(url)

    @property
    def market_path(self) -> Path:
        """The file of market data, on SQLite."""
        return Path(self.database_url.get_secret_value().removeprefix(SQLITE))

    @property
    def access_path(self) -> Path:
        """The file of keys, on SQLite."""
        return self.market_path.with_name(self.market_path.name + "-access")

    @property
    def venues_folder(self) -> Path:
        """The folder of what venues list, which live runs keep over restarts.

        It is no more than a memory, a process's own where the store is no file.
        """
        if not self.is_sqlite:
            return Path("signals-venues")
        return self.market_path.with_name(self.market_path.name + "-venues")

    @property
    def outbox_folder(self) -> Path:
        """The folder that mail is written to where none is sent."""
        if not self.is_sqlite:
            return Path("signals-outbox")
        return self.market_path.with_name(self.market_path.name + "-outbox")

    @property
    def bars_folder(self) -> Path | None:
        """The folder of recorded bars, None for another source."""
        kind, _, folder = self.source.partition(":")
        return Path(folder) if kind == "files" else None

    @property
    def is_stripe_live(self) -> bool:
        """Whether the Stripe key takes real money."""
        key = "" if self.stripe_api_key is None else self.stripe_api_key.get_secret_value()
        return "_live_" in key

    @property
    def is_local(self) -> bool:
        """Whether nobody but this machine is meant to reach the service."""
        base_url_host = "" if self.base_url is None else urlsplit(self.base_url).hostname or ""
        return is_loopback(self.host) and (self.base_url is None or is_loopback(base_url_host))

    @property
    def address(self) -> str:
        """The address that users reach the service at."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.base_url or f"http://{host}:{self.port}"


def _format_validation_error(error: ValidationError, values: Mapping[str, str]) -> str:
    """Return one line on the first wrong value, which is not repeated where it may be a secret."""
    first = error.errors(include_input=False)[0]
    field, reason = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
    shown_value = "" if _may_be_secret(field, values) else f"={values[field]!r}"
    return f"{PREFIX}{field.upper()}{shown_value}: {reason}"


def _may_be_secret(field: str, values: Mapping[str, str]) -> bool:
    """Tell whether a value is one, or an address with a password in it."""
    return field.startswith(SECRET_PREFIXES) or "@" in values[field].partition("://")[2]


def _format_unknown_variable(variable: str, known_variables: list[str]) -> str:
    nearest = difflib.get_close_matches(variable, known_variables, n=1, cutoff=0.0)
    return (
        f"{variable} is no setting; did you mean {nearest[0]}? Known: {', '.join(known_variables)}"
    )
