"""Calls of every AccessStore method that a request awaits or that writes."""

from collections.abc import Awaitable, Callable

from store.access_rows import (
    AccessRequestRow,
    ApprovedAuthorization,
    AttemptLimit,
    KeyLimits,
    LoggedCall,
    NewTokens,
    Notice,
    OAuthClient,
    PendingAuthorization,
    RetentionCutoffs,
    SignInRow,
    ToolUsage,
)
from store.sql.access_store import AccessStore
from tests.store.sql.test_purchase_store import CLAIM, MEMBER, NOW, SESSION
from tests.support.row_builders import DAY_MS, make_call_group

HASH = bytes(range(32))
MEMBERS_HASH = bytes(range(2, 34))
LINK = SignInRow(bytes(range(3, 35)), "a@example.com", NOW + 1000)
CALL = LoggedCall(NOW, "id-1", "signals_get_state", "mcp", "ok", 200)
TOOL_USAGE = ToolUsage(1, NOW // DAY_MS, CALL.tool, 1)
StoreCall = Callable[[AccessStore], Awaitable[object]]

REQUEST = AccessRequestRow("a@example.com", "Agent", None, "use", None, NOW, NOW)
CODE_HASH, FAMILY_HASH, TOKEN_HASH = (bytes(range(n, n + 32)) for n in (5, 6, 7))
CLIENT = OAuthClient("oc_1", "Host", ("https://host.example/callback",), NOW)
PENDING = PendingAuthorization(
    "id", "oc_1", "Host", CLIENT.redirect_uris[0], None, "https://s.example/mcp", "challenge", NOW
)
APPROVED = ApprovedAuthorization(
    *(PENDING.client_id, PENDING.client_name, PENDING.redirect_uri, PENDING.resource),
    *(PENDING.code_challenge, NOW, 1),
)
TOKENS = NewTokens(HASH, NOW + 9000, TOKEN_HASH, NOW + 1000)
NEW_TOKENS = TOKENS._replace(refresh_hash=MEMBERS_HASH, access_hash=MEMBERS_HASH)
DURABLE_CALLS: dict[str, StoreCall] = {
    "create_key": lambda store: store.create_key(HASH, "agent", NOW),
    "revoke_key": lambda store: store.revoke_key(1, NOW),
    "create_claim": lambda store: store.create_claim(CLAIM),
    "redeem": lambda store: store.redeem_claim(CLAIM, MEMBER, HASH, NOW),
    "resume_membership": lambda store: store.resume_membership(MEMBER),
    "end_membership": lambda store: store.end_membership(MEMBER, NOW, "deleted"),
    "create_member_key": lambda store: store.create_member_key(
        1, MEMBERS_HASH, "own", NOW, KeyLimits(3, 9, NOW)
    ),
    "rotate_key": lambda store: store.rotate_key(
        1, bytes(range(4, 36)), NOW, NOW + 5, KeyLimits(3, 9, NOW, 9)
    ),
    "relabel_key": lambda store: store.relabel_key(1, 1, "other"),
    "revoke_member_key": lambda store: store.revoke_member_key(1, 1, NOW),
    "create_sign_in_link": lambda store: store.create_sign_in_link(LINK),
    "sign_in": lambda store: store.sign_in(LINK.token_hash, HASH, NOW, NOW + 1000),
    "end_sessions": lambda store: store.end_sessions(MEMBERS_HASH),
    "mark_handled": lambda store: store.mark_event_handled("evt_1", NOW),
    "create_sandbox_session": lambda store: store.create_sandbox_session(SESSION),
    "settle_sandbox_session": lambda store: store.settle_sandbox_session(SESSION.id, "paid"),
    "put_access_request": lambda store: store.put_access_request(REQUEST, 9),
    "add_client": lambda store: store.oauth.add_client(CLIENT, 9, NOW),
    "approve_request": lambda store: store.oauth.approve_request(HASH, CODE_HASH, NOW, 1, 0),
    "deny_request": lambda store: store.oauth.deny_request(HASH, 0),
    "redeem_code": lambda store: store.oauth.redeem_code(
        *(CODE_HASH, APPROVED, bytes(range(8, 40)), FAMILY_HASH, (CODE_HASH, NOW), TOKENS, NOW),
        KeyLimits(9, 9, NOW),
    ),
    "renew_tokens": lambda store: store.oauth.renew_tokens(4, HASH, NEW_TOKENS, NOW, NOW + 1, 9),
    "watch": lambda store: store.watch("a@example.com", "BTC", NOW, 9),
    "unwatch": lambda store: store.unwatch("a@example.com", "BTC"),
}
FAST_CALLS: dict[str, StoreCall] = {
    "count": lambda store: store.count_calls([make_call_group(HASH, NOW)], None, 10),
    "attempt": lambda store: store.record_attempt(
        "checkout", [AttemptLimit("192.0.2.1", 20), AttemptLimit("*", 99)], NOW, 600
    ),
    "notice": lambda store: store.put_notice(Notice("seen", "", NOW)),
    "add_request": lambda store: store.oauth.add_request(PENDING, HASH, NOW - 9),
    "prune": lambda store: store.prune(RetentionCutoffs(*[NOW] * 8)),
}
REQUEST_CALLS: dict[str, StoreCall] = {
    **{name: verb for name, verb in (DURABLE_CALLS | FAST_CALLS).items() if name != "prune"},
    "count, refused": lambda store: store.count_calls(
        [make_call_group(bytes(32), NOW)._replace(calls=3)], "live", 10
    ),
    "attempt, refused": lambda store: store.record_attempt(
        "checkout", [AttemptLimit("192.0.2.1", 1)], NOW, 600
    ),
    "find_claim": lambda store: store.find_claim(CLAIM.token_hash),
    "find_redemption": lambda store: store.find_redemption(CLAIM.id),
    "find_sandbox_session": lambda store: store.find_sandbox_session(SESSION.id),
    "is_handled": lambda store: store.is_event_handled("evt_1"),
    "find_session": lambda store: store.find_session(HASH, NOW),
    "memberships_of": lambda store: store.list_memberships_by_email("a@example.com"),
    "claims_of": lambda store: store.list_unredeemed_claims("a@example.com", "stripe", "live", 5),
    "keys_of": lambda store: store.list_member_keys(1, NOW // DAY_MS),
    "add_calls": lambda store: store.add_calls({1: [CALL]}, 100),
    "add_tool_usage": lambda store: store.add_tool_usage([TOOL_USAGE]),
    "tool usage of a plan": lambda store: store.list_tool_usage(1, 0),
    "find_key_id": lambda store: store.find_key_id(HASH),
    "calls of a key": lambda store: store.list_calls(1, 100),
    "find_client": lambda store: store.oauth.find_client("oc_1"),
    "find_request": lambda store: store.oauth.find_request("id", HASH, 0),
    "find_code": lambda store: store.oauth.find_code(CODE_HASH),
    "find_connection": lambda store: store.oauth.find_connection(FAMILY_HASH),
    "find_access_token": lambda store: store.oauth.find_access_token(TOKEN_HASH),
    "watchlist": lambda store: store.list_watched("a@example.com"),
    "is_key_live": lambda store: store.oauth.is_key_live(HASH, NOW),
    "memberships of a customer": lambda store: store.list_open_memberships("stripe", "cus_1"),
}
