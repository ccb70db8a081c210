"""The one reader of the environment; every setting is a `SIGNALS_*` variable."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX: Final = "SIGNALS_"
CLIENTS_VARIABLE: Final = "SIGNALS_API_KEY"
SQLITE: Final = "sqlite:///"


class SettingsError(Exception):
    """A setting the operator must mend, told in one line."""


class Settings(BaseSettings):
    """What an operator can set; every field has a default that works on one machine."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port to listen on.")
    database_url: str = Field(
        default="sqlite:///signals.db",
        description="Where everything is kept: sqlite:///PATH, and PATH-access beside it.",
    )
    source: str = Field(
        default="simulated",
        description="Where bars come from: files:DIR, a folder of recorded bars, or simulated.",
    )
    universe: Path | None = Field(
        default=None, description="Another universe file (TOML); default is the built-in one."
    )
    base_url: str | None = Field(
        default=None,
        description="The public address, from which all absolute addresses are made; "
        "default is the host and port listened on.",
    )
    allowed_hosts: str = Field(
        default="",
        description="Comma-separated Host names served besides the local ones and BASE_URL's.",
    )
    allowed_origins: str = Field(
        default="",
        description="Comma-separated Origin hosts let in besides those of allowed Hosts.",
    )

    @field_validator("database_url")
    @classmethod
    def _is_sqlite(cls, value: str) -> str:
        if not value.startswith(SQLITE) or value == SQLITE:
            raise ValueError("expected sqlite:///PATH")
        return value

    @field_validator("source")
    @classmethod
    def _is_source(cls, value: str) -> str:
        if value != "simulated" and not (value.startswith("files:") and value != "files:"):
            raise ValueError("expected simulated or files:DIR")
        return value

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("expected an address such as https://signals.example.com")
        return None if value is None else value.rstrip("/")

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the environment; SettingsError names the first variable that is wrong."""
        given = os.environ if environment is None else environment
        known = {PREFIX + name.upper(): name for name in cls.model_fields}
        for variable in sorted(given):
            if variable.startswith(PREFIX) and variable not in {*known, CLIENTS_VARIABLE}:
                raise SettingsError(_unknown(variable, list(known)))
        values = {name: given[variable] for variable, name in known.items() if variable in given}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + str(first["loc"][0]).upper()
            reason = first["msg"].removeprefix("Value error, ")
            raise SettingsError(f"{name}={values[str(first['loc'][0])]!r}: {reason}") from None

    @classmethod
    def clients_api_key(cls) -> str:
        """Return the key that commands which call a service use, empty where none is set."""
        return os.environ.get(CLIENTS_VARIABLE, "")

    @property
    def market_path(self) -> Path:
        """The file of market data."""
        return Path(self.database_url.removeprefix(SQLITE))

    @property
    def access_path(self) -> Path:
        """The file of keys."""
        return self.market_path.with_name(self.market_path.name + "-access")

    @property
    def bars_folder(self) -> Path | None:
        """The folder of recorded bars, None for another source."""
        kind, _, folder = self.source.partition(":")
        return Path(folder) if kind == "files" else None

    @property
    def address(self) -> str:
        """The address that users reach the service at."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.base_url or f"http://{host}:{self.port}"


def comma_separated(text: str) -> tuple[str, ...]:
    """Split a setting that lists things."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _unknown(variable: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(variable, known, n=1, cutoff=0.0)
    return f"{variable} is no setting; did you mean {nearest[0]}? Known: {', '.join(known)}"
