"""`signals log`: begins a new log of the feed."""

from datetime import UTC, datetime

from schemas.clock import Clock
from service.commands.console import echo
from service.config.settings import Settings
from service.config.signing import build_log_signer
from service.config.stores import open_market, refuse_missing_market


async def restart_log(settings: Settings, clock: Clock) -> int:
    """Begin a new log with another key; print the key. StoreError if a process computes."""
    await refuse_missing_market(settings)
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
