"""What members do with keys: they make them without a second purchase, name and revoke them."""

from dataclasses import dataclass
from operator import itemgetter

from access.billing.provider import Provider
from access.claims import Claims
from access.keys import MAX_LABEL, hash_key, is_label, new_key
from schemas.clock import Clock
from schemas.errors import ApiError, invalid_parameter
from schemas.vocabulary import DAY_MS
from store.access_protocol import AccessStore
from store.access_rows import ClaimRow, HeldKey, HeldMembership, MostKeys

MOST_LIVE_KEYS = 3
# Of a membership in any 24 hours, as each key has a quota of its own.
MOST_NEW_KEYS = 10
# How many keys that are of no use any more are told of.
REVOKED_TOLD = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """A membership and its keys, oldest first; `is_live` where its keys work on this server."""

    membership: HeldMembership
    keys: list[HeldKey]
    is_live: bool

    @property
    def live_keys(self) -> list[HeldKey]:
        """The keys that have not been revoked."""
        return [held for held in self.keys if held.key.revoked_at is None]

    @property
    def revoked_keys(self) -> list[HeldKey]:
        """The few that were revoked last, newest first."""
        revoked = [(held.key.revoked_at, held) for held in self.keys if held.key.revoked_at]
        revoked.sort(key=itemgetter(0), reverse=True)
        return [held for _, held in revoked[:REVOKED_TOLD]]


class MemberKeys:
    """The members' hands on the keys of one access store; `clock` tells epoch ms."""

    def __init__(
        self, store: AccessStore, provider: Provider, claims: Claims, clock: Clock
    ) -> None:
        self._store = store
        self._provider = provider
        self._claims = claims
        self._clock = clock

    async def is_member(self, email: str) -> bool:
        """Tell whether a mailbox holds the plan on this server, now."""
        return any(self._is_live(held) for held in await self._memberships(email))

    async def plans(self, email: str) -> list[Plan]:
        """Return what a mailbox has bought here, oldest first, what has ended too."""
        day = self._clock() // DAY_MS
        return [
            Plan(held, await self._store.keys_of(held.id, day), self._is_live(held))
            for held in await self._memberships(email)
        ]

    async def create(self, email: str, membership_id: int, label: str) -> str:
        """Make a key of a membership and return it, the only time it is shown.

        ApiError 400 for a bad label, 404 for somebody else's membership, 409 where it has ended,
        has as many live keys as it may, or makes no more today.
        """
        held, named = await self._own(email, membership_id), checked_label(label)
        if not self._is_live(held):
            raise _conflict("This membership has ended, or is of another billing mode")
        api_key, now = new_key(), self._clock()
        most = MostKeys(MOST_LIVE_KEYS, MOST_NEW_KEYS, since=now - DAY_MS)
        if not await self._store.create_member_key(held.id, hash_key(api_key), named, now, most):
            raise _conflict(
                f"A membership has at most {MOST_LIVE_KEYS} live keys, and at most {MOST_NEW_KEYS} "
                "new ones in 24 hours. Revoke one that you no longer use, or come back tomorrow"
            )
        return api_key

    async def relabel(self, email: str, membership_id: int, key_id: int, label: str) -> None:
        """Name a live key anew; ApiError 400 for a bad label, 404 where there is no such key."""
        held, named = await self._own(email, membership_id), checked_label(label)
        if not await self._store.relabel_key(held.id, key_id, named):
            raise _unknown("key")

    async def revoke(self, email: str, membership_id: int, key_id: int) -> None:
        """Revoke a key for good; ApiError 404 where there is no such key."""
        held = await self._own(email, membership_id)
        if not await self._store.revoke_member_key(held.id, key_id, self._clock()):
            raise _unknown("key")

    async def live_key(self, email: str, membership_id: int, key_id: int) -> HeldKey:
        """Return a key that has not been revoked; ApiError 404 where there is no such key."""
        membership = await self._own(email, membership_id)
        for held in await self._store.keys_of(membership.id, self._clock() // DAY_MS):
            if held.key.id == key_id and held.key.revoked_at is None:
                return held
        raise _unknown("key")

    async def unclaimed(self, email: str) -> list[ClaimRow]:
        """Return what a mailbox paid for without a key of it, newest first.

        ApiError 503 where the processor cannot be asked.
        """
        return [claim for claim, _ in await self._claims.paid_by(email)]

    async def claim(self, email: str, claim_id: str) -> str:
        """Make the one key of a paid checkout and return it, the only time it is shown.

        ApiError 404 where there is none of this mailbox, 409 where its agent was faster, 503 where
        the processor cannot be asked.
        """
        for claim, paid in await self._claims.paid_by(email):
            if claim.id == claim_id:
                api_key = await self._claims.redeem(claim, paid)
                if api_key is None:
                    raise _conflict("The key of this payment was made just now, somewhere else")
                return api_key
        raise _unknown("payment without a key")

    async def _own(self, email: str, membership_id: int) -> HeldMembership:
        for held in await self._memberships(email):
            if held.id == membership_id:
                return held
        raise _unknown("membership")

    async def _memberships(self, email: str) -> list[HeldMembership]:
        held = await self._store.memberships_of(email)
        return [one for one in held if one.member.provider == self._provider.name]

    def _is_live(self, held: HeldMembership) -> bool:
        return held.ended_at is None and held.member.mode == self._provider.mode


def checked_label(label: str) -> str:
    """Return a label as it is kept; ApiError 400 where it is none."""
    label = label.strip()
    if not is_label(label):
        raise invalid_parameter(
            f"label: is empty, too long or has control characters; accepted: 1 to {MAX_LABEL} "
            "printable characters that tell you where the key is used."
        )
    return label


def _unknown(what: str) -> ApiError:
    return ApiError(
        "invalid_parameter", f"You have no such {what}: reload the page for those you have.", 404
    )


def _conflict(why: str) -> ApiError:
    return ApiError("invalid_parameter", f"No key was made. {why}.", 409)
