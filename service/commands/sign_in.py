"""`signals sign-in`: a link that signs the owner in to the pages."""

from access.sign_in import LINK_MINUTES, create_owner_link
from schemas.clock import Clock
from service.commands.access import open_access_store
from service.commands.console import echo
from service.config.settings import Settings
from service.config.stores import refuse_missing_store, refuse_older_schema


async def print_sign_in_link(settings: Settings, clock: Clock) -> int:
    """Print a sign-in link of the owner, with nothing else on standard output."""
    await refuse_missing_store(settings)
    await refuse_older_schema(settings)
    async with open_access_store(settings) as store:
        print(await create_owner_link(store, clock, settings.address))
    echo(
        f"Open the link in a browser within {LINK_MINUTES} minutes. It works once, and whoever "
        "opens it is signed in as owner."
    )
    return 0
