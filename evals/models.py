"""Sends requests to a model: over HTTP, or to a local command."""

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable, Mapping

import httpx

from evals.chats import Send
from evals.session import JsonObject

MAX_ATTEMPTS = 5
TIMEOUT_S = 300

Sleep = Callable[[float], Awaitable[None]]


class ModelError(Exception):
    """A model that cannot be used; the text says what to correct."""


def build_http_send(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str], sleep: Sleep = asyncio.sleep
) -> Send:
    """Return a function that posts to a URL, again if the endpoint is busy or fails."""

    async def send(body: JsonObject) -> JsonObject:
        for attempt in range(MAX_ATTEMPTS):
            response = await _post(client, url, headers, body)
            if not _is_temporary(response):
                break
            await sleep(float(response.headers.get("retry-after", 2**attempt)))
        if response.is_error:
            raise ModelError(f"{url} answered {response.status_code}: {response.text[:300]}")
        answer: JsonObject = response.json()
        return answer

    return send


async def _post(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str], body: JsonObject
) -> httpx.Response:
    try:
        return await client.post(url, json=body, headers=dict(headers), timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise ModelError(f"{url} cannot be reached: {error!r}; check the address") from None


def _is_temporary(response: httpx.Response) -> bool:
    return response.status_code == 429 or response.status_code >= 500


def build_command_send(command: str) -> Send:
    """Return a function that runs a command with the request on its standard input.

    The command prints the response. Both are JSON in the format of OpenAI's chat completions.
    """
    words = shlex.split(command)

    async def send(body: JsonObject) -> JsonObject:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
        except OSError as error:
            raise ModelError(f"cannot run {command!r}: {error.strerror}") from None
        output, _ = await process.communicate(json.dumps(body).encode())
        if process.returncode:
            raise ModelError(f"{command!r} exited with status {process.returncode}")
        try:
            answer: JsonObject = json.loads(output)
        except ValueError:
            raise ModelError(
                f"{command!r} printed {output[:100]!r}; it must print a JSON response"
            ) from None
        return answer

    return send
