"""What members manage: the keys of their plans, the billing of these, and watchlists."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from access.billing.provider import BillingError, Provider, SubscriptionStatus
from access.keys_and_quota import MAX_LABEL_CHARS, generate_key, hash_key, is_valid_label
from access.purchases import Claims
from access.single_flight_cache import SingleFlightCache, call_provider
from schemas.errors import ApiError, invalid_parameter_error
from schemas.vocabulary import DAY_MS, HOUR_MS, Clock
from store.access_rows import (
    ClaimRow,
    DayUsage,
    KeyLimits,
    KeyRow,
    LoggedCall,
    MembershipRow,
    normalize_email,
)
from store.sql.access_store import AccessStore

MAX_LIVE_KEYS = 5
# Per membership in any 24 hours. Each key has its own quota, so creating and revoking keys freely
# would multiply the calls that the plan includes.
MAX_NEW_KEYS_PER_DAY = 10
# Rotating is never refused for the two limits above. Its own limit bounds the stored rows; it gives
# no further calls, because a successor continues the day's count of the key that it replaces.
MAX_ROTATIONS_PER_DAY = 10
EXPIRY_CHOICES_DAYS = (30, 90, 365)
OVERLAP_CHOICES_HOURS = (0, 1, 24, 72)
DEFAULT_OVERLAP_HOURS = 24
# A status is cached for this long, also if there was none. Each page view would otherwise
# send Stripe a dozen requests, and wait for its retries while it is down.
STATUS_TTL_MS = 10_000
# A page waits this long; the fetch continues, and the next page view shows its result.
TIMEOUT_S = 3.0
# The page lists only the latest of the keys that have ended.
MAX_ENDED_SHOWN = 5

ValueT = TypeVar("ValueT")

log = structlog.get_logger("billing")


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A membership and its keys at a time, oldest first; `is_live` if they work on this server."""

    membership: MembershipRow
    keys: list[KeyRow]
    is_live: bool
    at: int

    @property
    def working_keys(self) -> list[KeyRow]:
        """The keys that are neither revoked nor expired."""
        return [held for held in self.keys if held.works_at(self.at)]

    @property
    def live_keys(self) -> list[KeyRow]:
        """The working keys that count against MAX_LIVE_KEYS: those without a working successor."""
        working = {held.id for held in self.working_keys}
        return [held for held in self.working_keys if held.replaced_by not in working]

    @property
    def has_room(self) -> bool:
        """Whether neither limit on keys, MAX_LIVE_KEYS or that of a day, is reached."""
        rotated = {held.replaced_by for held in self.keys}
        new_keys = [
            held
            for held in self.keys
            if held.created_at > self.at - DAY_MS and held.id not in rotated
        ]
        return len(self.live_keys) < MAX_LIVE_KEYS and len(new_keys) < MAX_NEW_KEYS_PER_DAY

    @property
    def ended_keys(self) -> list[KeyRow]:
        """The last MAX_ENDED_SHOWN revoked and expired keys, newest first."""
        ended = [held for held in self.keys if not held.works_at(self.at)]
        ended.sort(key=lambda held: held.revoked_at or held.expires_at or 0, reverse=True)
        return ended[:MAX_ENDED_SHOWN]


class MemberKeys:
    """Lets members manage the keys and the billing of their memberships; `clock` returns epoch ms.

    If the processor takes longer than `timeout_s`, it counts as unavailable.
    """

    def __init__(
        self,
        store: AccessStore,
        provider: Provider,
        claims: Claims,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._store = store
        self._provider = provider
        self._claims = claims
        self._clock = clock
        self._timeout_s = timeout_s
        self._statuses = SingleFlightCache[SubscriptionStatus | None](
            clock, lambda status: STATUS_TTL_MS
        )

    async def is_member(self, email: str) -> bool:
        """Return whether a mailbox has an active membership on this server."""
        return any(self._is_live(membership) for membership in await self._list_memberships(email))

    async def list_plans(self, email: str) -> list[MemberPlan]:
        """Return the memberships of a mailbox, active or ended, with their keys; oldest first."""
        now = self._clock()
        return [
            MemberPlan(
                membership,
                await self._store.list_member_keys(membership.id, now // DAY_MS),
                self._is_live(membership),
                now,
            )
            for membership in await self._list_memberships(email)
        ]

    async def create(
        self, email: str, membership_id: int, label: str, expiry_days: int | None = None
    ) -> str:
        """Create a key of a membership and return it; it cannot be shown again.

        `expiry_days` is one of EXPIRY_CHOICES_DAYS, or None for a key that does not expire. Raise
        ApiError 400 for a bad label, 404 if the mailbox has no such membership, and 409 if that has
        ended or reached a limit on keys.
        """
        membership = await self._get_membership(email, membership_id)
        clean_label = parse_label(label)
        self._require_live(membership)
        api_key, now = generate_key(), self._clock()
        expires_at = None if expiry_days is None else now + expiry_days * DAY_MS
        key = membership.id, hash_key(api_key), clean_label, now
        if not await self._store.create_member_key(*key, build_limits(now), expires_at):
            raise _conflict_error(
                f"A membership has at most {MAX_LIVE_KEYS} live keys, and at most "
                f"{MAX_NEW_KEYS_PER_DAY} new ones in 24 hours. "
                "Revoke a key that you no longer use, or try again tomorrow"
            )
        return api_key

    async def rotate(self, email: str, membership_id: int, key_id: int, overlap_hours: int) -> str:
        """Replace a live key, which works for another `overlap_hours`, and return the new one.

        Raise ApiError 404 if there is no such live key, 409 if it was rotated before, or if the
        membership has ended or was rotated too often, or if the key belongs to a connection.
        """
        held = await self.get_live_key(email, membership_id, key_id)
        self._require_live(await self._get_membership(email, membership_id))
        if held.client_id is not None:
            raise _conflict_error(
                "This key belongs to a connected program, which renews its own tokens. To end its "
                "access, revoke the key"
            )
        if held.replaced_by is not None:
            raise _conflict_error("This key was rotated before: rotate the key that replaced it")
        api_key, now = generate_key(), self._clock()
        key = key_id, hash_key(api_key), now, now + overlap_hours * HOUR_MS
        if await self._store.rotate_key(*key, build_limits(now)) is None:
            raise _conflict_error(
                f"The keys of a membership are rotated at most {MAX_ROTATIONS_PER_DAY} times in "
                "24 hours, and each key once. Revoke the key, or try again tomorrow"
            )
        return api_key

    async def list_calls(self, email: str, limit: int) -> list[tuple[KeyRow, LoggedCall]]:
        """Return the latest stored calls of a mailbox's keys, each with its key, newest first."""
        keys = [held for plan in await self.list_plans(email) for held in plan.keys]
        keys.sort(key=lambda key: key.last_used_at or key.created_at, reverse=True)
        calls = [
            (key, call)
            # Those that were used last, so that one page needs few statements.
            for key in keys[:20]
            for call in await self._store.list_calls(key.id, limit)
        ]
        calls.sort(key=lambda made: made[1].at, reverse=True)
        return calls[:limit]

    async def list_usage(self, plan: MemberPlan, days: int) -> list[DayUsage]:
        """Return the calls of a plan's keys by key, day and tool, for the last `days` UTC days."""
        since_day = plan.at // DAY_MS - days + 1
        return await self._store.list_tool_usage(plan.membership.id, since_day)

    async def relabel(self, email: str, membership_id: int, key_id: int, label: str) -> None:
        """Rename a live key; raise ApiError 400 for a bad label, 404 if there is no such key."""
        membership = await self._get_membership(email, membership_id)
        if not await self._store.relabel_key(membership.id, key_id, parse_label(label)):
            raise _not_found_error("key")

    async def revoke(self, email: str, membership_id: int, key_id: int) -> None:
        """Revoke a key for good; raise ApiError 404 if there is no such key."""
        membership = await self._get_membership(email, membership_id)
        if not await self._store.revoke_member_key(membership.id, key_id, self._clock()):
            raise _not_found_error("key")

    async def get_live_key(self, email: str, membership_id: int, key_id: int) -> KeyRow:
        """Return a live key; raise ApiError 404 if there is no such live key."""
        membership, now = await self._get_membership(email, membership_id), self._clock()
        for stored_key in await self._store.list_member_keys(membership.id, now // DAY_MS):
            if stored_key.id == key_id and stored_key.works_at(now):
                return stored_key
        raise _not_found_error("key")

    async def list_unclaimed(self, email: str) -> list[ClaimRow] | None:
        """Return the paid claims of a mailbox that have no key yet, newest first.

        None if the processor is unavailable.
        """
        try:
            found = await self._await_in_time(self._claims.list_unredeemed(email))
        except ApiError:
            return None
        return None if found is None else [claim for claim, _ in found]

    async def redeem(self, email: str, claim_id: str, api_key: str | None) -> None:
        """Create the membership of a paid checkout, with its one key, or for a connection without.

        Raise ApiError 404 if the mailbox has no such checkout, 409 if another client has just
        redeemed it or its payment was just reversed, 503 if the processor is unavailable.
        """
        # For buyers whose agent lost the claim token. Redeeming is the same statement as with the
        # token, so only the first of the two gets the key.
        for claim, payment in await self._claims.list_unredeemed(email):
            if claim.id == claim_id:
                if await call_provider(self._claims.redeem(claim, payment, api_key)):
                    return
                raise _conflict_error(
                    "Another client has just used this payment, or the payment was reversed. "
                    "Reload the page to see which"
                )
        raise _not_found_error("payment without a key")

    async def fetch_status(self, membership: MembershipRow) -> SubscriptionStatus | None:
        """Return the status of a membership.

        None if it has ended, if it is not this provider's, or if the processor is unavailable.
        """
        is_known = (membership.provider, membership.mode) == (
            self._provider.name,
            self._provider.mode,
        )
        if membership.ended_at is not None or not is_known:
            return None
        request = self._statuses.get(
            membership.subscription, lambda: self._query_provider(membership)
        )
        return await self._await_in_time(request)

    def is_manageable(self, membership: MembershipRow) -> bool:
        """Return whether the processor's portal can manage a membership."""
        return self._provider.has_portal and membership.mode == self._provider.mode

    async def create_portal_url(self, email: str, membership_id: int, return_url: str) -> str:
        """Return a portal URL for one visit to manage a plan.

        Raise ApiError 404 if the plan is not the member's or has no portal, 503 if the processor is
        unavailable.
        """
        for plan in await self.list_plans(email):
            membership = plan.membership
            if membership.id == membership_id and self.is_manageable(membership):
                return await call_provider(self._provider.create_portal_url(membership, return_url))
        raise ApiError(
            "invalid_parameter", "You have no such plan to manage. Reload the page.", 404
        )

    async def _query_provider(self, member: MembershipRow) -> SubscriptionStatus | None:
        try:
            return await self._provider.fetch_status(member)
        except BillingError as error:
            log.warning("billing_unavailable", why=str(error))
            return None

    async def _await_in_time(self, request: Awaitable[ValueT]) -> ValueT | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await request
        except TimeoutError:
            return None

    async def _get_membership(self, email: str, membership_id: int) -> MembershipRow:
        for membership in await self._list_memberships(email):
            if membership.id == membership_id:
                return membership
        raise _not_found_error("membership")

    async def _list_memberships(self, email: str) -> list[MembershipRow]:
        return [
            membership
            for membership in await self._store.list_memberships_by_email(email)
            if membership.provider == self._provider.name
        ]

    def _require_live(self, membership: MembershipRow) -> None:
        if not self._is_live(membership):
            raise _conflict_error(
                "This membership has ended or is not paid, or belongs to another billing mode"
            )

    def _is_live(self, membership: MembershipRow) -> bool:
        return membership.ended_at is None and membership.mode == self._provider.mode


def build_limits(now: int) -> KeyLimits:
    """Return the bounds on a membership's keys at a time (epoch ms)."""
    return KeyLimits(
        MAX_LIVE_KEYS,
        MAX_NEW_KEYS_PER_DAY,
        created_since=now - DAY_MS,
        max_rotated=MAX_ROTATIONS_PER_DAY,
    )


def parse_label(label: str) -> str:
    """Return a label without surrounding spaces; raise ApiError 400 if it is not valid."""
    label = label.strip()
    if not is_valid_label(label):
        raise invalid_parameter_error(
            f"label: is empty, too long or has control characters; accepted: 1 to "
            f"{MAX_LABEL_CHARS} printable characters, such as the name of the program that uses it."
        )
    return label


def _not_found_error(name: str) -> ApiError:
    return ApiError(
        "invalid_parameter",
        f"You have no such {name}. Reload the page to see the current list.",
        404,
    )


def _conflict_error(reason: str) -> ApiError:
    return ApiError("invalid_parameter", f"No key was created. {reason}.", 409)


MAX_WATCHED = 100


async def watch(store: AccessStore, email: str, ticker: str, now: int) -> None:
    """Add an asset to a member's watchlist; ApiError 409 if the list is full. Idempotent."""
    if not await store.watch(normalize_email(email), ticker, now, MAX_WATCHED):
        raise ApiError(
            "invalid_parameter",
            f"Your watchlist is full: it holds {MAX_WATCHED} assets. Remove one first.",
            409,
        )
