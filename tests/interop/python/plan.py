"""Shared code of the clients: read the plan, run each session, sign in, write the report."""

import asyncio
import json
import sys
from importlib.metadata import version
from urllib.parse import parse_qs, urlsplit

PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<h1>Connected</h1>"


def report(package, session, client=None):
    """Run the plan; `session` takes URL, headers and calls, and returns tools and results."""
    sessions = asyncio.run(followed(json.load(sys.stdin), session))
    said = {"client": client or package, "version": version(package), "sessions": sessions}
    print(json.dumps(said))


async def followed(plan, session):
    sessions = []
    for one in plan["sessions"]:
        headers = {"Authorization": f"Bearer {one['api_key']}"} if one["api_key"] else {}
        tools, results = await session(plan["url"], headers, one["calls"])
        sessions.append({"tools": tools, "results": results})
    return sessions


def build_entry(is_error, text, structured=None):
    return {"is_error": is_error, "text": text, "structured": structured}


class Browser:
    """The person's browser, which the test drives, and a server that it returns to."""

    async def listen(self):
        self.answers = asyncio.Queue()
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/callback"

    async def serve(self, reader, writer):
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        if target.startswith("/callback"):
            self.answers.put_nowait(target)
        writer.write(PAGE)
        await writer.drain()
        writer.close()

    async def open(self, url):
        print(url, file=sys.stderr, flush=True)

    async def wait_for_query(self):
        return urlsplit(await self.answers.get()).query

    async def wait_for_answer(self):
        return {name: values[0] for name, values in parse_qs(await self.wait_for_query()).items()}


class MemoryStorage:
    """Keeps the tokens and the registration of one process."""

    tokens = client_info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client_info

    async def set_client_info(self, client_info):
        self.client_info = client_info
