"""The assets that the service covers, read from one TOML file; docs/sources.md has its fields."""

import reprlib
import tomllib
from collections.abc import Container, Mapping
from datetime import date
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from schemas.errors import OperatorError
from schemas.vocabulary import AssetClass, compute_midnight_s

Session = Literal["24x7", "24x5", "XNYS", "XNAS"]
Ticker = Annotated[str, Field(pattern=r"^[A-Z0-9]{1,12}$")]
Text = Annotated[str, Field(min_length=1)]
Derivative = Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]


class UniverseError(OperatorError, ValueError):
    """A mistake in a universe file, described in one line for the operator."""


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Listing(_FrozenModel):
    """One place to fetch an asset from: a venue and its source symbol.

    `perpetual` is the symbol of the perpetual whose funding rates belong to the asset. The listing
    is open from the midnight (UTC) of `since` to that of `until`.
    """

    venue: Text
    symbol: Text
    perpetual: Derivative | None = None
    since: date | None = None
    until: date | None = None

    def is_open(self, at: int) -> bool:
        """Return whether an instant (epoch seconds) lies between `since` and `until`."""
        if self.since is not None and at < compute_midnight_s(self.since):
            return False
        return self.until is None or at < compute_midnight_s(self.until)

    @property
    def is_proxy(self) -> bool:
        """Whether its bars are those of a proxy instrument, a derivative of the asset."""
        # ccxt's symbols name a derivative's settlement currency after a colon: BTC/USDT:USDT.
        return ":" in self.symbol

    def __str__(self) -> str:
        return f"{self.venue} {self.symbol}"


class Asset(_FrozenModel):
    """One covered asset; the fields from `symbol` to `until` are its preferred listing.

    If `alerts` is set, the alert engines follow it. `sample_price` is what it costs in a simulated
    market when that is first started.
    """

    ticker: Ticker
    name: Text
    asset_class: AssetClass
    session: Session
    symbol: Text
    venue: Text
    perpetual: Derivative | None = None
    since: date | None = None
    until: date | None = None
    fallbacks: Annotated[tuple[Listing, ...], Field(strict=False)] = ()
    added_on: date
    removed_on: date | None = None
    continues_as: str | None = None
    alerts: bool = False
    sample_price: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @property
    def listings(self) -> tuple[Listing, ...]:
        """The preferred listing, then the fallbacks in their order, ended ones included."""
        first = Listing(
            venue=self.venue,
            symbol=self.symbol,
            perpetual=self.perpetual,
            since=self.since,
            until=self.until,
        )
        return (first, *self.fallbacks)


class VenueOptions(_FrozenModel):
    """What ccxt does not know of a venue.

    `client` is merged into its description of the venue. The numbers are the most rows per request;
    `settlement_bounds` names the parameters with the time (ms) before the first wanted settlement,
    and that after the last one.
    """

    client: dict[str, Any] = {}
    bars: PositiveInt | None = None
    settlements: PositiveInt = 100
    settlement_bounds: Annotated[tuple[str, str], Field(strict=False)] | None = None


class Universe(_FrozenModel):
    """All covered assets in file order, removed ones included."""

    assets: tuple[Asset, ...]
    renamed_on: date
    venues: dict[str, VenueOptions] = {}

    @cached_property
    def tracked_assets(self) -> tuple[Asset, ...]:
        """The assets without `removed_on`; only these are counted."""
        return tuple(asset for asset in self.assets if asset.removed_on is None)

    @cached_property
    def by_ticker(self) -> Mapping[str, Asset]:
        """Every asset by its ticker, removed ones included."""
        return MappingProxyType({asset.ticker: asset for asset in self.assets})

    @cached_property
    def end_time_by_ticker(self) -> Mapping[str, int]:
        """The time (epoch seconds) from which each removed asset no longer steps."""
        ends = {asset.ticker: asset.removed_on for asset in self.assets}
        return MappingProxyType({t: compute_midnight_s(day) for t, day in ends.items() if day})

    @cached_property
    def sunday_joining_tickers(self) -> frozenset[str]:
        """The assets that open on Sunday evening; those hours belong to Monday's daily bar."""
        return frozenset(asset.ticker for asset in self.assets if asset.session == "24x5")


class _UniverseTable(_FrozenModel):
    renamed_on: date
    # For readers of the file.
    sample_prices_on: date | None = None
    renamed: dict[Literal["dexter"], Literal["enzo"]] = {}


class _UniverseFile(_FrozenModel):
    universe: _UniverseTable
    venue: dict[str, VenueOptions] = {}
    asset: list[Asset] = []


def load_universe(path: Path | None = None) -> Universe:
    """Read a universe file, by default the packaged one; raise UniverseError if it is invalid."""
    source = files("compute").joinpath("universe.toml") if path is None else path
    try:
        content = tomllib.loads(source.read_bytes().decode("utf-8-sig"))
        parsed = _UniverseFile.model_validate(content)
        _check_assets(parsed.asset)
    except OSError as error:
        raise _build_error(source, f"cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise _build_error(source, _describe_first_fault(error, content)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _build_error(source, f"not TOML: {error}") from error
    except ValueError as error:
        raise _build_error(source, str(error)) from error
    # A file of an operator names only the venues of which it says something else.
    packaged = {} if path is None else load_universe().venues
    return Universe(
        assets=tuple(parsed.asset),
        renamed_on=parsed.universe.renamed_on,
        venues=packaged | parsed.venue,
    )


def _check_assets(assets: list[Asset]) -> None:
    tracked = {asset.ticker for asset in assets if asset.removed_on is None}
    if not tracked:
        raise ValueError("no tracked asset: at least one [[asset]] without removed_on is needed")
    seen: set[str] = set()
    for number, asset in enumerate(assets, start=1):
        fault = _find_fault(asset, seen, tracked)
        if fault:
            raise ValueError(f"asset {number} ({asset.ticker}): {fault}")
        seen.add(asset.ticker)


def _find_fault(asset: Asset, seen: Container[str], tracked: Container[str]) -> str | None:
    if asset.ticker in seen:
        return "ticker: is already taken by an earlier entry"
    for number, listing in enumerate(asset.listings):
        if listing.since and listing.until and listing.until <= listing.since:
            return f"{f'fallbacks.{number}.' if number else ''}until: is not after since"
    if asset.removed_on is None:
        return "continues_as: needs removed_on" if asset.continues_as else None
    if asset.removed_on < asset.added_on:
        return "removed_on: is before added_on"
    if asset.continues_as is not None and asset.continues_as not in tracked:
        return f"continues_as: {asset.continues_as} is not a tracked ticker of this file"
    return None


def _describe_first_fault(error: ValidationError, content: dict[str, Any]) -> str:
    # One line to the operator: only the first of pydantic's faults, without its links.
    first = error.errors(include_url=False)[0]
    location = first["loc"]
    fault = f"{first['msg']}, not {reprlib.repr(first['input'])}"
    if first["type"] in ("missing", "extra_forbidden"):
        fault = {"missing": "is missing", "extra_forbidden": "is not a known field"}[first["type"]]
    if location[0] == "asset" and len(location) > 1 and isinstance(location[1], int):
        entry = content["asset"][location[1]]
        ticker = entry.get("ticker") if isinstance(entry, dict) else None
        name = f"asset {location[1] + 1}" + (f" ({ticker})" if isinstance(ticker, str) else "")
        return f"{name}: {_format_location(location[2:])}{fault}"
    return f"{_format_location(location)}{fault}"


def _format_location(location: tuple[int | str, ...]) -> str:
    """Return a location in the file as a dotted path; entries count from 1."""
    parts = [str(part + 1 if isinstance(part, int) else part) for part in location]
    return ".".join(parts) + ": " if location else ""


def _build_error(source: object, fault: str) -> UniverseError:
    return UniverseError(f"{source}: {' '.join(fault.split())}")
