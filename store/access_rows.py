"""Rows of the access store: keys, usage, purchases, sign-ins and requests. Times are epoch ms."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from schemas.vocabulary import Billing, Mode

Verdict = Literal["counted", "unknown", "revoked", "expired", "wrong_mode", "exhausted"]
Transport = Literal["mcp", "rest"]
SandboxStatus = Literal["open", "paid", "cancelled"]

# Bounds the VALUES list of one counting statement: its parameters and its prepared variants.
MAX_CALL_GROUPS = 64


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One API key without its secret; operator keys have neither `mode` nor `membership_id`.

    `replaced_by` is the id of the key that a rotation created in its place. `client_id` is that of
    the OAuth client if the key is a connection: then it has tokens, and `label` is what the client
    called itself.
    """

    id: int
    label: str | None
    created_at: int
    revoked_at: int | None
    mode: Mode | None = None
    membership_id: int | None = None
    last_used_at: int | None = None
    expires_at: int | None = None
    replaced_by: int | None = None
    client_id: str | None = None

    def works_at(self, at: int) -> bool:
        """Return whether the key is neither revoked nor expired at a time (epoch ms)."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)


class LoggedCall(NamedTuple):
    """One call as its member sees it later; `outcome` is `ok` or an error code."""

    at: int
    request_id: str
    tool: str
    transport: Transport
    outcome: str
    status: int


class ToolUsage(NamedTuple):
    """Calls of a key with one tool on a UTC day (days since 1970).

    `tool` is empty for calls from before tools were counted.
    """

    key_id: int
    day: int
    tool: str
    used: int


class DayUsage(NamedTuple):
    """Calls of one key of a membership with one tool on a UTC day; see ToolUsage."""

    day: int
    tool: str
    used: int


def normalize_email(address: str) -> str:
    """Return the form of an address by which mailboxes are compared: ASCII letters in lower case.

    Other letters stay as they are.
    """
    # str.lower would also turn the Kelvin sign into "k". Mail servers treat the two as different
    # mailboxes, so the owner of one could sign in as the owner of the other. SQLite's lower() and
    # PostgreSQL's with COLLATE "C" fold the same letters as bytes.lower does.
    return address.encode().lower().decode()


class CallGroup(NamedTuple):
    """Calls of one key on one UTC day (days since 1970) that are counted by one statement.

    `last_at` is when the last of them arrived, at which the key must not have expired.
    """

    key_hash: bytes
    day: int
    calls: int
    last_at: int


# Key hash and UTC day; unique within one call of `count_calls`.
GroupKey = tuple[bytes, int]


def get_group_key(group: CallGroup) -> GroupKey:
    """Return the key hash and day that identify a group."""
    return group.key_hash, group.day


class KeyLimits(NamedTuple):
    """Bounds on a membership's keys: live at once, and created since `created_since` (epoch ms).

    A key that works until its successor has taken over is not live. Keys that a rotation created
    are bounded by a number of their own, `max_rotated`.
    """

    max_live: int
    max_created: int
    created_since: int
    max_rotated: int = 0


class CountedGroup(NamedTuple):
    """The result for a group: the first `counted` calls are counted, `verdict` applies to the rest.

    `used` is the key's count for the day, including these calls. `mode` and `expires_at` are
    those of the key, and set only if a call is refused.
    """

    counted: int
    verdict: Verdict
    used: int = 0
    label: str | None = None
    mode: Mode | None = None
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One checkout whose claim token can be redeemed for a key; `session` is the processor's id."""

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
    checkout_url: str | None = None
    redeemed_at: int | None = None


class Redemption(NamedTuple):
    """What became of the membership of a redeemed claim; see StoredMembership."""

    ended_reason: str | None
    closed_at: int | None


@dataclass(frozen=True, slots=True)
class MembershipRow:
    """One subscription, which keeps its keys live until it ends; the ids are the processor's."""

    provider: str
    mode: Mode
    subscription: str
    customer: str
    contact_email: str
    billing: Billing
    created_at: int


@dataclass(frozen=True, slots=True)
class StoredMembership:
    """A stored membership; `ended_at` and `ended_reason` are None while it is active.

    `closed_at` is None while its subscription can be paid again.
    """

    id: int
    row: MembershipRow
    ended_at: int | None
    ended_reason: str | None
    closed_at: int | None = None


@dataclass(frozen=True, slots=True)
class MemberKey:
    """A key of a membership and the number of calls it has used on the requested UTC day."""

    key: KeyRow
    used: int


@dataclass(frozen=True, slots=True)
class SignInRow:
    """A sign-in link or a session; only the SHA-256 of its token is stored.

    `is_owner` if it is the service's owner's, who has no e-mail address.
    """

    token_hash: bytes
    contact_email: str
    expires_at: int
    is_owner: bool = False


@dataclass(frozen=True, slots=True)
class SandboxSession:
    """One checkout of the sandbox payment processor."""

    id: str
    claim_id: str
    contact_email: str
    billing: Billing
    amount_usd: int
    status: SandboxStatus
    expires_at: int


@dataclass(frozen=True, slots=True)
class AccessRequestRow:
    """A request for custom terms, which the operator answers by e-mail."""

    contact_email: str
    agent_name: str | None
    operator: str | None
    use_case: str | None
    expected_volume: str | None
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class Notice:
    """An event in a serving process that `signals doctor` reports to the operator."""

    name: str
    detail: str
    at: int


class AttemptLimit(NamedTuple):
    """At most `attempts` counted attempts of the clients that `address` names."""

    address: str
    attempts: int


class RefusedAttempt(NamedTuple):
    """The exhausted limit that delays an attempt longest, and when it is free (epoch ms)."""

    limit: AttemptLimit
    free_at: int


@dataclass(frozen=True, slots=True)
class RetentionCutoffs:
    """Times (epoch ms) before which rows of the access store are deleted, by kind of row."""

    usage: int
    unredeemed_claims: int
    events: int
    attempts: int
    sign_ins: int
    access_requests: int
    calls: int
    oauth_clients: int
