"""A universe file and settings for running the command on the venue double."""

from pathlib import Path

from compute.universe import Asset, Listing, Universe
from tests.doubles.venues.alpaca import API_KEY_ID, API_SECRET_KEY
from tests.doubles.venues.server import VenuesDouble
from tests.support.signals_command import find_free_port

KEY = {"alpaca_key_id": API_KEY_ID, "alpaca_secret_key": API_SECRET_KEY}


def write_universe_file(folder: Path, universe: Universe) -> str:
    """Write a universe file; return its path."""
    entries = "\n".join(map(_format_asset, universe.assets))
    path = folder / "universe.toml"
    path.write_text(f"[universe]\nrenamed_on = {universe.renamed_on}\n\n{entries}")
    return str(path)


def build_live_settings(folder: Path, universe: Universe, double: VenuesDouble) -> dict[str, str]:
    """Return the settings of a live service on the venue double."""
    return {
        "source": "live",
        "port": find_free_port(),
        "universe": write_universe_file(folder, universe),
        "live_api_base": double.base_url,
    }


def _format_asset(asset: Asset) -> str:
    names = ("ticker", "name", "asset_class", "session", "symbol", "venue", "perpetual")
    lines = [f'{name} = "{value}"' for name in names if (value := getattr(asset, name))]
    fallbacks = ", ".join(map(_format_listing, asset.fallbacks))
    lines += [f"{name} = {day}" for name in ("since", "until") if (day := getattr(asset, name))]
    lines += [f"added_on = {asset.added_on}", f"fallbacks = [{fallbacks}]"]
    return "\n".join(["[[asset]]", *lines, ""])


def _format_listing(listing: Listing) -> str:
    names = ("venue", "symbol", "perpetual")
    given = [f'{name} = "{value}"' for name in names if (value := getattr(listing, name))]
    given += [f"{name} = {day}" for name in ("since", "until") if (day := getattr(listing, name))]
    return f"{{{', '.join(given)}}}"
