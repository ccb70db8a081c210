"""What an access store must do, verb by verb. Times are epoch ms, days UTC.

Every verb raises StoreError where the store fails. Keys, claims and memberships are on the disk
when their verb returns; counts and attempts survive a crash of the process.
"""

from collections.abc import Sequence
from typing import Protocol

from schemas.vocabulary import Mode
from store.access_rows import (
    AccessRequestRow,
    CallGroup,
    ClaimRow,
    CountedGroup,
    KeyLimits,
    KeyRow,
    MemberKey,
    MembershipRow,
    Notice,
    RetentionCutoffs,
    SandboxSession,
    SandboxStatus,
    SignInRow,
    StoredMembership,
)

MAX_CALL_GROUPS = 64


class AccessStore(Protocol):
    """Keys and claim tokens as SHA-256 alone, counts, purchases, throttles and requests."""

    async def close(self) -> None:
        """Close every connection; idempotent."""

    async def create_key(self, key_hash: bytes, label: str, created_at: int) -> int:
        """Store a key of the operator's own and return its id."""

    async def list_keys(self) -> list[KeyRow]:
        """Return every key, oldest first."""

    async def revoke_key(self, key_id: int, revoked_at: int) -> bool:
        """Revoke a key for good; False where no such key exists."""

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Decide and count groups of calls, each of another key or day; at most MOST_GROUPS.

        A call counts where its key lives, was not bought in another than the server's `mode`, and
        has fewer than `limit` calls on the day of arrival.
        """

    async def create_claim(self, claim: ClaimRow) -> None:
        """Store a checkout."""

    async def find_claim(self, token_hash: bytes) -> ClaimRow | None:
        """Return the checkout of a token."""

    async def redeem_claim(
        self, claim: ClaimRow, membership: MembershipRow, key_hash: bytes, redeemed_at: int
    ) -> bool:
        """Make the one key of a claim, and its membership.

        False where it was redeemed before, or its subscription has a membership already: the claim
        then counts as redeemed.
        """

    async def list_unredeemed_claims(
        self, email: str, provider: str, mode: Mode, limit: int
    ) -> list[ClaimRow]:
        """Return the newest checkouts of a mailbox with a provider that were not redeemed."""

    async def list_active_memberships(
        self, provider: str, customer: str | None = None
    ) -> list[MembershipRow]:
        """Return a provider's memberships that have not ended, of one customer where one is given.

        Oldest first.
        """

    async def end_membership(self, membership: MembershipRow, ended_at: int, reason: str) -> int:
        """Revoke every live key of a membership for good; return how many."""

    async def list_memberships_by_email(self, email: str) -> list[StoredMembership]:
        """Return every membership of a mailbox, in whatever case its address is; oldest first."""

    async def list_member_keys(self, membership_id: int, day: int) -> list[MemberKey]:
        """Return the keys of a membership, oldest first."""

    async def create_member_key(
        self, membership_id: int, key_hash: bytes, label: str, created_at: int, limits: KeyLimits
    ) -> bool:
        """Store a key of a membership; False where that has ended, or has as many as it may."""

    async def relabel_key(self, membership_id: int, key_id: int, label: str) -> bool:
        """Give a key of a membership another label; False where there is no such live key."""

    async def revoke_member_key(self, membership_id: int, key_id: int, revoked_at: int) -> bool:
        """Revoke a key of a membership for good; False where there is no such key."""

    async def create_sign_in_link(self, link: SignInRow) -> None:
        """Store a link that was mailed."""

    async def sign_in(
        self, link_hash: bytes, session_hash: bytes, at: int, expires_at: int
    ) -> str | None:
        """Use a link up for a session; return whose, None where it was used, is late or unknown."""

    async def find_session(self, token_hash: bytes, at: int) -> SignInRow | None:
        """Return a session that lasts."""

    async def end_sessions(self, token_hash: bytes) -> None:
        """End every session of the mailbox that a session is of; idempotent."""

    async def is_event_handled(self, event_id: str) -> bool:
        """Tell whether an event of the processor was handled before."""

    async def mark_event_handled(self, event_id: str, handled_at: int) -> None:
        """Remember that an event was handled; idempotent."""

    async def create_sandbox_session(self, session: SandboxSession) -> None:
        """Open a checkout in the sandbox's books."""

    async def find_sandbox_session(self, session_id: str) -> SandboxSession | None:
        """Return a checkout of the sandbox's books."""

    async def settle_sandbox_session(self, session_id: str, status: SandboxStatus) -> None:
        """Pay or cancel a checkout that is open; one that is settled stays as it is."""

    async def record_attempt(
        self, kind: str, address: str, at: int, limit: int, window_ms: int
    ) -> int | None:
        """Take one of an address's attempts; the time when one is free again if none is left."""

    async def put_access_request(self, request: AccessRequestRow) -> bool:
        """Store a request, or update the one of this address; True where it is new."""

    async def list_access_requests(self) -> list[AccessRequestRow]:
        """Return every request, oldest first."""

    async def put_notice(self, notice: Notice) -> None:
        """Keep what a serving process saw, in place of the last of this name."""

    async def list_notices(self) -> list[Notice]:
        """Return what serving processes saw, by name."""

    async def prune(self, cutoffs: RetentionCutoffs) -> int:
        """Delete what is no longer needed; return how many rows. Each key keeps its last day."""
