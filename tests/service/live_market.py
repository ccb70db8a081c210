"""The command on the double of venues: a universe file, and the settings of a live service."""

from pathlib import Path

from compute.universe import Asset, Listing, Universe
from tests.service.commands import free_port
from tests.venues.alpaca import API_KEY_ID, API_SECRET_KEY
from tests.venues.double import VenuesDouble

KEY = {"alpaca_key_id": API_KEY_ID, "alpaca_secret_key": API_SECRET_KEY}


def universe_file(folder: Path, universe: Universe) -> str:
    """Write a universe as its operator would; return the path."""
    entries = "\n".join(map(_entry, universe.assets))
    path = folder / "universe.toml"
    path.write_text(f"[universe]\nrenamed_on = {universe.renamed_on}\n\n{entries}")
    return str(path)


def live_settings(folder: Path, universe: Universe, double: VenuesDouble) -> dict[str, str]:
    """Return the settings of a live service whose venues are those of the double."""
    return {
        "source": "live",
        "port": free_port(),
        "universe": universe_file(folder, universe),
        "live_api_base": double.base_url,
    }


def _entry(asset: Asset) -> str:
    names = ("ticker", "name", "asset_class", "session", "symbol", "venue", "perpetual")
    lines = [f'{name} = "{value}"' for name in names if (value := getattr(asset, name))]
    fallbacks = ", ".join(map(_table, asset.fallbacks))
    lines += [f"added_on = {asset.added_on}", f"fallbacks = [{fallbacks}]"]
    return "\n".join(["[[asset]]", *lines, ""])


def _table(listing: Listing) -> str:
    names = ("venue", "symbol", "perpetual")
    given = (f'{name} = "{value}"' for name in names if (value := getattr(listing, name)))
    return f"{{{', '.join(given)}}}"
