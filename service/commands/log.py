"""`signals log`: begins a new log of the feed."""

from datetime import UTC, datetime

from schemas.vocabulary import Clock
from service.commands.console import echo
from service.config.settings import Settings
from service.config.signing import build_log_signer
from service.config.stores import (
    adopt_access,
    find_market_trace,
    has_store,
    open_market,
    refuse_missing_market,
)


async def restart_log(settings: Settings, clock: Clock) -> int:
    """Begin a new log with another key; print the key. StoreError if a process computes.

    If the market data were lost, begin a new history too.
    """
    if not (find_market_trace(settings) or await has_store(settings, "access")):
        await refuse_missing_market(settings)
    if not await has_store(settings, "market"):
        await adopt_access(settings)
        echo("A new history begins: the market data were lost.")
    market = await open_market(settings)
    try:
        await market.lock()
        signer = build_log_signer(settings, market)
        vkey, archive = await signer.restart(datetime.fromtimestamp(clock() / 1000, UTC))
    finally:
        await market.close()
    if archive is not None:
        echo(f"The former key is in {archive}.")
    echo(
        f"A new log begins as {vkey.name}, with another key. Customers who verified the former "
        "log have to accept the new key:"
    )
    print(vkey.format())
    return 0
