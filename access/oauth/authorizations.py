"""Authorization requests: from a client's request to the code that it receives after consent."""

from access.member_keys import MemberPlan
from schemas.clock import Clock
from store.oauth_rows import PendingAuthorization
from store.sql.access_store import AccessStore


class Authorizations:
    """Holds authorization requests until a person approves or denies them; `clock` returns epoch ms.

    `issuer` is the base URL. Requests live for an hour, so that a sign-in and a purchase fit in.
    """

    def __init__(self, store: AccessStore, clock: Clock, *, issuer: str) -> None:
        self._store = store
        self._clock = clock
        self._issuer = issuer

    async def find_pending(self, request_id: str) -> PendingAuthorization | None:
        """Return a request; None if it is unknown, has expired, or was approved or denied."""
        raise NotImplementedError

    async def approve(self, request_id: str, plan: MemberPlan) -> str:
        """Approve a request for a member's plan; return the address to redirect the browser to.

        The key is created when the client exchanges the code. Raise ApiError 404 if the request is
        not pending, 409 if the plan is not live or has reached a limit on keys (the request then
        stays pending).
        """
        raise NotImplementedError

    async def approve_as_owner(self, request_id: str) -> str:
        """Approve a request for the owner of a loopback service; return the redirect address.

        The caller has checked that the request comes from the owner's machine. The connection is a
        key of the operator, without a plan. Raise ApiError 404 if the request is not pending.
        """
        raise NotImplementedError

    async def deny(self, request_id: str) -> str:
        """Deny a request; return the address to redirect to. Raise ApiError 404 if not pending."""
        raise NotImplementedError
