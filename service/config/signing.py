"""Builds the part that signs the log of the feed, as the settings say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from compute.signing.log_signer import LogSigner, OnCheckpoint
from service.config.settings import Settings

if TYPE_CHECKING:
    from store.sql.market_store import MarketStore


def build_log_signer(settings: Settings, market: "MarketStore") -> LogSigner:
    """Return the signer of a store's log, which asks no witness."""
    return LogSigner(market.feed_log, settings.log_key_path, settings.log_origin)


@asynccontextmanager
async def open_log_signer(
    settings: Settings, market: "MarketStore", on_checkpoint: OnCheckpoint
) -> AsyncIterator[LogSigner]:
    """Open the signer of a store's log with the witnesses of the settings.

    PolicyError if the policy file must be corrected.
    """
    feed_log, path, origin = market.feed_log, settings.log_key_path, settings.log_origin
    if settings.witness_policy is None:
        yield LogSigner(feed_log, path, origin, on_checkpoint)
        return
    # Imported here, because a process without witnesses needs no HTTP client.
    from compute.signing.witnesses import Witnesses, load_witnesses

    listed = load_witnesses(settings.witness_policy)
    witnesses = Witnesses(feed_log, listed, partial(on_checkpoint, "cosigned"))
    try:
        yield LogSigner(feed_log, path, origin, on_checkpoint, witnesses.submit)
        # The end of a recording; after an interruption, the next start asks again.
        await witnesses.settle()
    finally:
        await witnesses.close()
