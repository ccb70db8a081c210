"""Builds the part that signs the log of the feed, as the settings say."""

from typing import TYPE_CHECKING

from compute.signing.log_signer import LogSigner, OnCheckpoint
from service.config.settings import Settings

if TYPE_CHECKING:
    from store.sql.market_store import MarketStore


def build_log_signer(
    settings: Settings,
    market: "MarketStore",
    on_checkpoint: OnCheckpoint = lambda outcome: None,
) -> LogSigner:
    """Return the signer of a store's log."""
    return LogSigner(market.feed_log, settings.log_key_path, settings.log_origin, on_checkpoint)
