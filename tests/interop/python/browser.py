"""Shared code of the OAuth clients: hand an address to the browser and receive its answer."""

import asyncio
import sys
from urllib.parse import parse_qs, urlsplit

PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<h1>Connected</h1>"


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
