"""`signals keys` and `signals access-requests`."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from access.call_log import CALLS_KEPT_PER_KEY
from access.keys_and_quota import create_operator_key, generate_key, hash_key
from access.mail import find_mails
from access.sign_in import LINK_MINUTES, create_owner_link
from schemas.errors import ArgumentsError
from schemas.vocabulary import Clock, format_instant
from service.commands.console import echo
from service.config.settings import Settings
from service.config.stores import (
    adopt_access,
    get_location,
    open_access,
    refuse_missing_keys,
    refuse_missing_market,
    refuse_older_schema,
)
from store.sql.access_store import AccessStore
from store.store_errors import StoreError
from verifier.report import escape_unprintable


@asynccontextmanager
async def open_access_store(settings: Settings) -> AsyncIterator[AccessStore]:
    """Open the access store for the block; StoreError if there is no complete store."""
    await refuse_missing_keys(settings)
    async with open_access(settings) as store:
        yield store


async def create_key(
    settings: Settings, clock: Clock, label: str, expires_at: int | None = None
) -> int:
    """Create a key and print it, with nothing else on standard output."""
    async with open_access_store(settings) as store:
        try:
            print(await create_operator_key(store, clock(), label, expires_at))
        except ValueError as error:
            raise ArgumentsError(str(error)) from None
    return 0


async def list_keys(settings: Settings, clock: Clock, as_json: bool) -> int:
    """Print the keys, oldest first."""
    async with open_access_store(settings) as store:
        keys = await store.list_keys()
    rows = []
    for key in keys:
        status = "active"
        if key.revoked_at is not None:
            status = f"revoked {format_instant(key.revoked_at)}"
        elif key.expires_at is not None:
            verb = "expires" if key.works_at(clock()) else "expired"
            status = f"{verb} {format_instant(key.expires_at)}"
        owner = "operator" if key.membership_id is None else f"member {key.membership_id}"
        used_at = None if key.last_used_at is None else format_instant(key.last_used_at)
        rows.append(
            {
                **{"id": key.id, "label": key.label, "status": status, "owner": owner},
                **{"mode": key.mode, "last_used_at": used_at},
                "created_at": format_instant(key.created_at),
            }
        )
    _print_rows(rows, as_json)
    return 0


def _print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows of the same members as a table for people, or one JSON object per line."""
    if as_json:
        for row in rows:
            # Buyers choose labels, and strangers texts, which could steer the operator's terminal.
            # json.dumps escapes all control characters except DEL.
            print(json.dumps(row).replace("\x7f", "\\u007f"))
    elif rows:
        # The library takes 0.1 s to load.
        from service.terminal.views import Table, make_cell, print_table

        columns = [name.replace("_at", " (UTC)").replace("_", " ").upper() for name in rows[0]]
        print_table(Table(columns, [[*map(make_cell, row.values())] for row in rows]), {})


async def rotate_key(settings: Settings, clock: Clock, key_id: int, overlap_ms: int) -> int:
    """Replace a key and print its successor; StoreError if the key cannot be rotated."""
    async with open_access_store(settings) as store:
        api_key, now = generate_key(), clock()
        successor = await store.rotate_key(key_id, hash_key(api_key), now, now + overlap_ms)
    if successor is None:
        raise StoreError(
            f"there is no key {key_id} that works and has not been rotated: see `signals keys list`"
        )
    print(api_key)
    return 0


async def list_requests(settings: Settings, key_id: int, as_json: bool) -> int:
    """Print the stored calls of a key, newest first."""
    async with open_access_store(settings) as store:
        if key_id not in {key.id for key in await store.list_keys()}:
            raise StoreError(f"there is no key {key_id}: see `signals keys list` for the ids")
        calls = await store.list_calls(key_id, CALLS_KEPT_PER_KEY)
    _print_rows([call._asdict() | {"at": format_instant(call.at)} for call in calls], as_json)
    return 0


async def revoke_key(settings: Settings, clock: Clock, key_id: int) -> int:
    """Revoke a key; StoreError if there is no key with this id."""
    async with open_access_store(settings) as store:
        found = {key.id: key for key in await store.list_keys()}
        if not await store.revoke_key(key_id, clock()):
            raise StoreError(f"there is no key {key_id}: see `signals keys list` for the ids")
    key, label = found[key_id], escape_unprintable(found[key_id].label or "")
    if key.revoked_at is not None:
        echo(f"Key {key_id} ({label}) was revoked at {format_instant(key.revoked_at)} already.")
        return 0
    used = "never used" if key.last_used_at is None else f"used {format_instant(key.last_used_at)}"
    created = format_instant(key.created_at)
    echo(f"Revoked key {key_id} ({label}), created {created}, {used}: calls with it get 403.")
    return 0


async def adopt_keys(settings: Settings) -> int:
    """Accept the present store of keys, or a new empty one, in place of a lost one."""
    await refuse_missing_market(settings)
    await adopt_access(settings)
    echo(f"{get_location(settings, 'access')} now belongs to the market data.")
    return 0


async def list_access_requests(settings: Settings) -> int:
    """Print one JSON object per line, oldest request first."""
    async with open_access_store(settings) as store:
        requests = await store.list_access_requests()
    _print_rows([_format_times(asdict(one)) for one in requests], as_json=True)
    return 0


async def handle_person(
    settings: Settings, clock: Clock, email: str, export: bool, erase: bool
) -> int:
    """Print the data of an e-mail address as JSON, or erase them."""
    # Their library takes 0.1 s to load, and keys need none.
    from access.contact import normalize_email

    if not (export or erase):
        raise ArgumentsError("add --export to print the data of a person, or --erase to erase them")
    try:
        email = normalize_email(email, accepts_special_use=True)
    except ValueError as error:
        raise ArgumentsError(f"the address {error}") from None
    async with open_access_store(settings) as store:
        found = await store.people.export(email)
        mails = find_mails(settings.outbox_folder, email)
        if not mails and not any(found.values()):
            raise StoreError("nothing is stored about this address")
        if export:
            times = {kind: [_format_times(row) for row in rows] for kind, rows in found.items()}
            print(json.dumps({**times, "mails": [str(path) for path in mails]}, indent=2))
            return 0
        count = await store.people.erase(email, clock())
    for path in mails:
        path.unlink()
    echo(f"Erased: {count} rows and {len(mails)} mails. Older backups still have them.")
    for plan in found["plans"]:
        if plan["ended_at"] is None:
            echo(
                f"Cancel the subscription {plan['subscription']} at {plan['provider']}: it goes on."
            )
    for checkout in found["checkouts"]:
        if checkout["redeemed_at"] is None:
            echo(
                f"Look up the checkout {checkout['session']} at {checkout['provider']}: if it was "
                "paid, its subscription goes on."
            )
    return 0


def _format_times(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: format_instant(value) if name.endswith("at") and value is not None else value
        for name, value in row.items()
    }


async def print_sign_in_link(settings: Settings, clock: Clock) -> int:
    """Print a sign-in link of the owner, with nothing else on standard output."""
    await refuse_missing_keys(settings)
    await refuse_older_schema(settings)
    async with open_access_store(settings) as store:
        print(await create_owner_link(store, clock, settings.address))
    echo(
        f"Open the link in a browser within {LINK_MINUTES} minutes. It works once. The "
        "person who opens it is signed in as owner."
    )
    return 0
