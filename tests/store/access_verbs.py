"""Every verb of an access store that a request waits for, or that writes."""

from collections.abc import Awaitable, Callable

from store.access_protocol import AccessStore
from store.access_rows import AccessRequestRow, Horizons, MostKeys, Notice, SignInRow
from tests.store.rows import DAY_MS, one_call
from tests.store.test_purchases import CLAIM, MEMBER, NOW, SESSION

HASH = bytes(range(32))
MEMBERS_HASH = bytes(range(2, 34))
LINK = SignInRow(bytes(range(3, 35)), "a@example.com", NOW + 1000)
Verb = Callable[[AccessStore], Awaitable[object]]

REQUEST = AccessRequestRow("a@example.com", "Agent", None, "use", None, NOW, NOW)
FOR_GOOD: dict[str, Verb] = {
    "create_key": lambda store: store.create_key(HASH, "agent", NOW),
    "revoke_key": lambda store: store.revoke_key(1, NOW),
    "create_claim": lambda store: store.create_claim(CLAIM),
    "redeem": lambda store: store.redeem(CLAIM, MEMBER, HASH, NOW),
    "end_membership": lambda store: store.end_membership(MEMBER, NOW, "deleted"),
    "create_member_key": lambda store: store.create_member_key(
        1, MEMBERS_HASH, "own", NOW, MostKeys(3, 9, NOW)
    ),
    "relabel_key": lambda store: store.relabel_key(1, 1, "other"),
    "revoke_member_key": lambda store: store.revoke_member_key(1, 1, NOW),
    "create_sign_in_link": lambda store: store.create_sign_in_link(LINK),
    "sign_in": lambda store: store.sign_in(LINK.token_hash, HASH, NOW, NOW + 1000),
    "end_sessions": lambda store: store.end_sessions(MEMBERS_HASH),
    "mark_handled": lambda store: store.mark_handled("evt_1", NOW),
    "create_sandbox_session": lambda store: store.create_sandbox_session(SESSION),
    "settle_sandbox_session": lambda store: store.settle_sandbox_session(SESSION.id, "paid"),
    "put_access_request": lambda store: store.put_access_request(REQUEST),
}
FOR_NOW: dict[str, Verb] = {
    "count": lambda store: store.count([one_call(HASH, NOW)], None, 10),
    "attempt": lambda store: store.attempt("checkout", "192.0.2.1", NOW, 20, 600),
    "notice": lambda store: store.notice(Notice("seen", "", NOW)),
    "prune": lambda store: store.prune(Horizons(NOW, NOW, NOW, NOW, NOW)),
}
WAITED_FOR: dict[str, Verb] = {
    **{name: verb for name, verb in (FOR_GOOD | FOR_NOW).items() if name != "prune"},
    "count, refused": lambda store: store.count(
        [one_call(bytes(32), NOW)._replace(calls=3)], "live", 10
    ),
    "attempt, refused": lambda store: store.attempt("checkout", "192.0.2.1", NOW, 1, 600),
    "find_claim": lambda store: store.find_claim(CLAIM.token_hash),
    "find_sandbox_session": lambda store: store.find_sandbox_session(SESSION.id),
    "is_handled": lambda store: store.is_handled("evt_1"),
    "find_session": lambda store: store.find_session(HASH, NOW),
    "memberships_of": lambda store: store.memberships_of("a@example.com"),
    "claims_of": lambda store: store.claims_of("a@example.com", "stripe", "live", 5),
    "keys_of": lambda store: store.keys_of(1, NOW // DAY_MS),
    "memberships of a customer": lambda store: store.memberships("stripe", "cus_1"),
}
