"""An OAuth client written by hand from the RFCs, and members who approve its requests."""

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx

from access.billing.provider import SandboxBilling
from access.members import MemberKeys, MemberPlan
from access.oauth.authorizations import Authorizations
from access.purchases import Claims
from access.throttle import DEFAULT_LIMIT, Throttle
from schemas.vocabulary import Clock
from store.access_rows import PendingAuthorization
from store.sql.access_store import AccessStore
from tests.support.row_builders import store_membership
from tests.support.running_service import RunningService

CALLBACK = "http://127.0.0.1/callback"
# A host listens on any port of its own.
REDIRECT_URI = "http://127.0.0.1:33418/callback"
MEMBER = "member@example.com"
# Appendix B of RFC 7636.
VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
CHALLENGE = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def make_challenge(verifier: str) -> str:
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


async def buy_plan(access: AccessStore, clock: Clock, email: str = MEMBER) -> MemberPlan:
    """Store a membership without a live key, and return it."""
    await store_membership(access, email, clock())
    await access.revoke_key((await find_plan(access, clock, email)).keys[0].id, clock())
    return await find_plan(access, clock, email)


async def find_plan(access: AccessStore, clock: Clock, email: str = MEMBER) -> MemberPlan:
    provider = SandboxBilling(access, clock, "http://127.0.0.1")
    keys = MemberKeys(access, provider, Claims(access, provider, clock), clock)
    return (await keys.list_plans(email))[-1]


class NoClients:
    """Finds no client; consent needs none."""

    async def find(self, client_id: str) -> None:
        return None


@dataclass
class HandClient:
    """A registered client of a running service, with one verifier for all its requests."""

    served: RunningService
    client_id: str
    verifier: str = VERIFIER

    @property
    def authorizations(self) -> Authorizations:
        access, clock = self.served.access, self.served.clock
        throttle = Throttle(access, clock, "authorization", DEFAULT_LIMIT)
        return Authorizations(access, NoClients(), throttle, clock, issuer=self.served.base_url)

    async def find_plan(self) -> MemberPlan:
        return await find_plan(self.served.access, self.served.clock)

    @property
    def resource(self) -> str:
        return f"{self.served.base_url}/mcp"

    def build_request(self, **changed: str | None) -> dict[str, str]:
        """Return the parameters of an authorization request; None leaves one out."""
        parameters = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": REDIRECT_URI,
            "state": "a state",
            "code_challenge": make_challenge(self.verifier),
            "code_challenge_method": "S256",
            "resource": self.resource,
        }
        merged = {**parameters, **changed}
        return {name: value for name, value in merged.items() if value is not None}

    async def authorize(self, **changed: str | None) -> httpx.Response:
        return await self.served.client.get(
            "/oauth/authorize", params=self.build_request(**changed)
        )

    async def begin(self, **changed: str | None) -> PendingAuthorization:
        """Send an authorization request; return the one that the consent page finds."""
        response = await self.authorize(**changed)
        assert response.status_code == 303, response.text
        target = urlsplit(response.headers["location"])
        assert target.path == "/oauth/consent"
        (request_id,) = parse_qs(target.query)["request"]
        return await self.authorizations.find_pending(request_id)

    async def get_code(self, plan: MemberPlan | None = None, **changed: str | None) -> str:
        """Let a member approve a request, or the owner without a plan; return the code."""
        target = await self.authorizations.approve(await self.begin(**changed), plan)
        return read_answer(target)["code"]

    async def exchange(self, code: str, **changed: str | None) -> httpx.Response:
        return await self.post(
            "/oauth/token",
            {
                "grant_type": "authorization_code",
                "code": code,
                "client_id": self.client_id,
                "redirect_uri": REDIRECT_URI,
                "code_verifier": self.verifier,
                "resource": self.resource,
                **changed,
            },
        )

    async def refresh(self, refresh_token: str, **changed: str | None) -> httpx.Response:
        return await self.post(
            "/oauth/token",
            {
                "grant_type": "refresh_token",
                "refresh_token": refresh_token,
                "client_id": self.client_id,
                "resource": self.resource,
                **changed,
            },
        )

    async def post(self, path: str, form: dict[str, str | None]) -> httpx.Response:
        """Send a form; None leaves a field out."""
        fields = {name: value for name, value in form.items() if value is not None}
        return await self.served.client.post(path, data=fields)

    async def connect(self, plan: MemberPlan | None = None) -> Any:
        response = await self.exchange(await self.get_code(plan))
        assert response.status_code == 200, response.text
        return response.json()

    async def call(
        self, token: str, name: str = "signals_get_usage", path: str = "/mcp"
    ) -> httpx.Response:
        return await self.send(token, "tools/call", {"name": name, "arguments": {}}, path)

    async def send(
        self, token: str, method: str, params: dict[str, Any] | None = None, path: str = "/mcp"
    ) -> httpx.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        return await self.served.client.post(path, json=message, headers=headers)


async def register(served: RunningService, *redirect_uris: str, name: str = "Hand") -> HandClient:
    metadata = {"client_name": name, "redirect_uris": redirect_uris or [CALLBACK]}
    response = await served.client.post("/oauth/register", json=metadata)
    assert response.status_code == 201, response.text
    return HandClient(served, response.json()["client_id"])


def read_answer(target: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(target).query))
