"""The rows of the access store: keys, counted calls, purchases and requests. Times are epoch ms."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from schemas.vocabulary import Billing, Mode

Verdict = Literal["counted", "unknown", "revoked", "wrong_mode", "spent"]
SandboxStatus = Literal["open", "paid", "cancelled"]

# How many groups of calls are counted at once.
MAX_CALL_GROUPS = 64


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One API key, without the key; `mode` and `membership_id` are None on the operator's own."""

    id: int
    label: str | None
    created_at: int
    revoked_at: int | None
    mode: Mode | None = None
    membership_id: int | None = None
    last_used_at: int | None = None


def normalize_email(address: str) -> str:
    """Return what counts as one mailbox: letters of ASCII are the same in either case, others not.

    Unicode would make one of letters that mail servers tell apart, such as K and the Kelvin sign.
    """
    return address.encode().lower().decode()


class CallGroup(NamedTuple):
    """Calls of one key on one UTC day (days since 1970) that ask to be counted together."""

    key_hash: bytes
    day: int
    calls: int
    last_at: int


# A key's hash, and a UTC day.
GroupKey = tuple[bytes, int]


def get_group_key(group: CallGroup) -> GroupKey:
    """Return the key and day that no other group of the same call to the store has."""
    return group.key_hash, group.day


class KeyLimits(NamedTuple):
    """How many keys a membership may have: `live` ones, and `made` ones since a time, epoch ms."""

    max_live: int
    max_created: int
    created_since: int


class CountedGroup(NamedTuple):
    """What became of a group: its first `counted` calls count, `verdict` is that of the rest.

    `used` is the key's count of the day, the counted ones included.
    """

    counted: int
    verdict: Verdict
    used: int = 0
    label: str | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One checkout and what its token may be redeemed for; `session` is the processor's id."""

    id: str
    token_hash: bytes
    provider: str
    mode: Mode
    session: str
    contact_email: str
    billing: Billing
    agent_name: str | None
    created_at: int
    expires_at: int
    redeemed_at: int | None = None


@dataclass(frozen=True, slots=True)
class MembershipRow:
    """One subscription whose keys live as long as it does; the ids are the processor's."""

    provider: str
    mode: Mode
    subscription: str
    customer: str
    contact_email: str
    billing: Billing
    created_at: int


@dataclass(frozen=True, slots=True)
class StoredMembership:
    """A membership as it is kept; `ended_why` is why its keys were revoked, None while it lasts."""

    id: int
    row: MembershipRow
    ended_at: int | None
    ended_reason: str | None


@dataclass(frozen=True, slots=True)
class MemberKey:
    """A key of a member's, and how many calls it has made on the UTC day that was asked about."""

    key: KeyRow
    used: int


@dataclass(frozen=True, slots=True)
class SignInRow:
    """What lets somebody in: a mailed link, or a session; its token is stored as SHA-256."""

    token_hash: bytes
    contact_email: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class SandboxSession:
    """One checkout in the sandbox processor's own books."""

    id: str
    claim_id: str
    contact_email: str
    billing: Billing
    amount_usd: int
    status: SandboxStatus
    expires_at: int


@dataclass(frozen=True, slots=True)
class AccessRequestRow:
    """Somebody who asks a human for terms of their own."""

    contact_email: str
    agent_name: str | None
    operator: str | None
    use_case: str | None
    expected_volume: str | None
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class Notice:
    """What a serving process saw that the operator should know."""

    name: str
    detail: str
    at: int


@dataclass(frozen=True, slots=True)
class RetentionCutoffs:
    """Before which times (epoch ms) rows of the access store are no longer needed."""

    usage: int
    unredeemed_claims: int
    events: int
    attempts: int
    sign_ins: int
