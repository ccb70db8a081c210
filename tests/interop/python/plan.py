"""Shared code of the clients: read the plan, run each session, write the report."""

import asyncio
import json
import sys
from importlib.metadata import version


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
