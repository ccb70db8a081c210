"""Authorization requests: from a client's request to the code that it receives after consent."""

import re
import secrets
from collections.abc import Sequence
from urllib.parse import urlencode

from access.keys_and_quota import hash_key
from access.members import MAX_LIVE_KEYS, MAX_NEW_KEYS_PER_DAY, MemberPlan
from access.oauth.clients import ClientRegistry
from access.oauth.parameters import (
    RESOURCE_PATH,
    OAuthClientError,
    OAuthError,
    UnreachableDocumentError,
    check_resource,
    check_state,
    find_repeated,
    matches_redirect_uri,
)
from access.throttle import Throttle
from schemas.errors import ApiError
from schemas.vocabulary import HOUR_MS, Clock
from store.access_rows import OAuthClient, PendingAuthorization
from store.sql.access_store import AccessStore

CONSENT_PATH = "/oauth/consent"
START_AGAIN_HINT = "Start again in the program that sent you here."


class Authorizations:
    """Holds authorization requests until a person decides; `clock` returns epoch ms.

    `issuer` is the base URL. Requests live for an hour, so that a sign-in and a purchase fit in.
    """

    def __init__(
        self,
        store: AccessStore,
        clients: ClientRegistry,
        throttle: Throttle,
        clock: Clock,
        *,
        issuer: str,
    ) -> None:
        self._store = store
        self._clients = clients
        self._throttle = throttle
        self._clock = clock
        self._issuer = issuer

    async def begin(self, parameters: Sequence[tuple[str, str]], address: str) -> str:
        """Store a valid request; return the address to redirect the browser to.

        That is the consent page, or the client's redirect URI with an error. Raise ApiError 400 if
        the client or its redirect URI is bad, so that no browser is sent to an unknown place, and
        429 if the client address made too many requests.
        """
        await self._throttle.take_attempt(address)
        values, repeated = dict(parameters), find_repeated(parameters)
        client = await self._find_client(values, repeated)
        redirect_uri = values["redirect_uri"]
        state = None
        try:
            if repeated:
                raise OAuthError("invalid_request", "a parameter is repeated: send each one once")
            state = check_state(values.get("state"))
            if values.get("response_type") != "code":
                raise OAuthError("unsupported_response_type", "response_type: must be code")
            if values.get("code_challenge_method") != "S256":
                raise OAuthError("invalid_request", "code_challenge_method: must be S256 (PKCE)")
            challenge = values.get("code_challenge", "")
            if not re.fullmatch(r"[A-Za-z0-9_-]{43}", challenge):
                raise OAuthError(
                    "invalid_request",
                    "code_challenge: must be the SHA-256 of the verifier in base64url, 43 "
                    "characters",
                )
            resource = f"{self._issuer}{RESOURCE_PATH}"
            check_resource(values.get("resource"), resource)
        except OAuthError as error:
            failure = {"error": error.error, "error_description": error.message}
            return self._build_redirect(redirect_uri, state, failure)
        request = PendingAuthorization(
            secrets.token_urlsafe(32),
            client.client_id,
            client.name,
            redirect_uri,
            state,
            resource,
            challenge,
            self._clock(),
        )
        await self._store.oauth.add_request(request, hash_key(request.id), self._oldest())
        return f"{self._issuer}{CONSENT_PATH}?{urlencode({'request': request.id})}"

    async def find_pending(self, request_id: str) -> PendingAuthorization | None:
        """Return a request; None if it is unknown, has expired, or was approved or denied."""
        id_hash = hash_key(request_id)
        return await self._store.oauth.find_request(request_id, id_hash, self._oldest())

    async def approve(self, request: PendingAuthorization, plan: MemberPlan | None) -> str:
        """Approve a request for a member's plan; return the address to redirect the browser to.

        None is for the owner of a loopback service: the caller has checked that the request comes
        from the owner's machine, and the connection is a key of the operator, without a plan.

        The key is created when the client exchanges the code. Raise ApiError 404 if the request was
        answered or has expired, 409 if the plan is not live or has reached a limit on keys (the
        request then stays pending).
        """
        if plan is not None and not plan.is_live:
            raise _conflict_error("This membership has ended or belongs to another billing mode.")
        if plan is not None and not plan.has_room:
            raise _conflict_error(
                f"A membership has at most {MAX_LIVE_KEYS} live keys, and at most "
                f"{MAX_NEW_KEYS_PER_DAY} new ones in 24 hours. A connection is a key: revoke one "
                "that you no longer use under Settings, API access, or try again tomorrow."
            )
        code = f"ac_{secrets.token_urlsafe(32)}"
        membership_id = None if plan is None else plan.membership.id
        approval = hash_key(request.id), hash_key(code), self._clock(), membership_id
        if not await self._store.oauth.approve_request(*approval, self._oldest()):
            raise _not_pending_error()
        return self._build_redirect(request.redirect_uri, request.state, {"code": code})

    async def deny(self, request: PendingAuthorization) -> str:
        """Deny a request; return the address to redirect to. ApiError 404 if it was answered.

        A request that has expired counts as answered.
        """
        if not await self._store.oauth.deny_request(hash_key(request.id), self._oldest()):
            raise _not_pending_error()
        failure = {"error": "access_denied", "error_description": "The user denied access."}
        return self._build_redirect(request.redirect_uri, request.state, failure)

    async def _find_client(self, values: dict[str, str], repeated: set[str]) -> OAuthClient:
        """Return the client of a request, which may use the request's redirect URI."""
        if repeated & {"client_id", "redirect_uri"}:
            raise _bad_request_error("The request repeats client_id or redirect_uri.")
        try:
            client = await self._clients.find(values.get("client_id", ""))
        except OAuthClientError as error:
            names_operator = isinstance(error, UnreachableDocumentError)
            raise _bad_request_error(error.message, names_operator) from None
        if client is None:
            raise _bad_request_error(
                "This server does not know the program that sent you here: client_id is missing, "
                "or the program's registration has expired. Remove the connection in the program "
                "and add it again."
            )
        requested = values.get("redirect_uri", "")
        if not any(matches_redirect_uri(uri, requested) for uri in client.redirect_uris):
            raise _bad_request_error(
                "The program that sent you here did not register the address that it wants the "
                "answer at (redirect_uri)."
            )
        return client

    def _oldest(self) -> int:
        """Return the time (epoch ms) after which a pending request must have been created."""
        return self._clock() - HOUR_MS

    def _build_redirect(self, uri: str, state: str | None, answer: dict[str, str]) -> str:
        # `iss` lets a client that uses several servers tell their answers apart (RFC 9207).
        states = {} if state is None else {"state": state}
        separator = "&" if "?" in uri else "?"
        return f"{uri}{separator}{urlencode(answer | states | {'iss': self._issuer})}"


def _not_pending_error() -> ApiError:
    return ApiError(
        "invalid_parameter",
        f"This request for access has expired or was answered before. {START_AGAIN_HINT}",
        404,
    )


def _bad_request_error(reason: str, names_operator: bool = False) -> ApiError:
    message = f"{reason.rstrip('.')}. {START_AGAIN_HINT}"
    return ApiError("invalid_parameter", message, 400, names_operator=names_operator)


def _conflict_error(reason: str) -> ApiError:
    return ApiError("invalid_parameter", f"Access was not granted. {reason}", 409)
