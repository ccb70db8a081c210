"""Rows of the access store: keys, usage, purchases, sign-ins and requests. Times are epoch ms."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

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
    called itself. `used` counts its calls of the requested UTC day.
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
    used: int = 0

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
    """Calls of a key with one tool on a UTC day (days since 1970)."""

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

    @property
    def key(self) -> "GroupKey":
        """The key hash and UTC day; unique within one call of `count_calls`."""
        return self.key_hash, self.day


GroupKey = tuple[bytes, int]


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


@dataclass(frozen=True, slots=True)
class MembershipRow:
    """One subscription, which keeps its keys live until it ends; its names are the processor's.

    `ended_at` and `ended_reason` are None while it is active, `closed_at` while its subscription
    can be paid again. `id` is that of the store, once it is stored.
    """

    provider: str
    mode: Mode
    subscription: str
    customer: str
    contact_email: str
    billing: Billing
    created_at: int
    ended_at: int | None = None
    ended_reason: str | None = None
    closed_at: int | None = None
    id: int = field(default=0, compare=False)


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


RedeemOutcome = Literal["connected", "spent", "full"]
RenewOutcome = Literal["renewed", "replayed", "busy", "ended"]


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client and what it says of itself: `name` is cleaned, but unverified text.

    `created_at` (epoch ms) is when it registered or its document was last seen to change; None for
    a document that ships with the service.
    """

    client_id: str
    name: str
    redirect_uris: tuple[str, ...]
    created_at: int | None = None


@dataclass(frozen=True, slots=True)
class PendingAuthorization:
    """A valid request of a client for access, which waits for a person's consent.

    `id` cannot be guessed; only its SHA-256 is stored. `client_name` is unverified text.
    `redirect_uri` is one that the client may use. `state` is the client's own value, which it gets
    back unchanged.
    """

    id: str
    client_id: str
    client_name: str
    redirect_uri: str
    state: str | None
    resource: str
    code_challenge: str
    created_at: int

    @property
    def redirect_host(self) -> str:
        """The host that the browser is sent to, or the private scheme with a colon, `cursor:`."""
        parts = urlsplit(self.redirect_uri)
        return (parts.hostname or "") if parts.scheme in {"http", "https"} else f"{parts.scheme}:"


class ApprovedAuthorization(NamedTuple):
    """An approved request whose code has not been exchanged.

    `membership_id` is None if the owner of the service approved it.
    """

    client_id: str
    client_name: str
    redirect_uri: str
    resource: str
    code_challenge: str
    approved_at: int
    membership_id: int | None


class NewTokens(NamedTuple):
    """The tokens that an exchange returns, as hashes, and when they expire (epoch ms)."""

    refresh_hash: bytes
    refresh_expires_at: int
    access_hash: bytes
    access_expires_at: int


class ConnectionRow(NamedTuple):
    """A connection of a client, whose key says whether it is live."""

    key_id: int
    client_id: str
    resource: str


class AccessTokenRow(NamedTuple):
    """An access token: the key that counts its calls, and the client that holds it."""

    key_id: int
    key_hash: bytes
    client_id: str
    resource: str
    expires_at: int
