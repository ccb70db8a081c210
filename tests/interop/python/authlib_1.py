"""Authlib's OAuth client, which knows nothing of MCP: discovers, registers, refreshes, revokes."""

import httpx
from authlib.common.security import generate_token
from authlib.integrations.httpx_client import AsyncOAuth2Client
from plan import Browser, build_entry, report

HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}


async def session(url, headers, calls):
    async with httpx.AsyncClient() as http:
        challenge = (await http.post(url, json={})).headers["www-authenticate"]
        resource_address = challenge.partition('resource_metadata="')[2].partition('"')[0]
        resource = (await http.get(resource_address)).json()
        issuer = resource["authorization_servers"][0]
        server = (await http.get(f"{issuer}/.well-known/oauth-authorization-server")).json()
        assert server["issuer"] == issuer
        browser = Browser()
        redirect_uri = await browser.listen()
        metadata = {"client_name": "Authlib", "redirect_uris": [redirect_uri]}
        client_info = (await http.post(server["registration_endpoint"], json=metadata)).json()
    async with AsyncOAuth2Client(
        client_info["client_id"],
        redirect_uri=redirect_uri,
        token_endpoint_auth_method=client_info["token_endpoint_auth_method"],
        code_challenge_method="S256",
        token_endpoint=server["token_endpoint"],
        revocation_endpoint_auth_method="none",
    ) as client:
        verifier, target = generate_token(64), {"resource": resource["resource"]}
        opened, state = client.create_authorization_url(
            server["authorization_endpoint"], code_verifier=verifier, **target
        )
        await browser.open(opened)
        answer = f"{redirect_uri}?{await browser.wait_for_query()}"
        await client.fetch_token(
            authorization_response=answer, state=state, code_verifier=verifier, **target
        )
        await client.refresh_token(**target)
        tools = (await send(client, url, "tools/list", {}))["tools"]
        results = [
            await send(client, url, "tools/call", {"name": call["tool"], **arguments(call)})
            for call in calls
        ]
        revoked = await client.revoke_token(
            server["revocation_endpoint"], client.token["refresh_token"]
        )
        assert revoked.status_code == 200, revoked.text
        refused = await client.post(url, json={}, headers=HEADERS)
        assert refused.status_code == 401, refused.text
    return [tool["name"] for tool in tools], [
        build_entry(result["isError"], result["content"][0]["text"], result["structuredContent"])
        for result in results
    ]


def arguments(call):
    return {"arguments": call["arguments"]}


async def send(client, url, method, params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return (await client.post(url, json=body, headers=HEADERS)).json()["result"]


report("authlib", session)
