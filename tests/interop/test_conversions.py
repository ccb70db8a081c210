"""Frameworks rewrite tool schemas for model providers without losing constraints.

A constraint survives if its keyword is still in the schema, or if the description states it.
"""

from typing import Any

import pytest

from tests.interop.test_clients import Client, reported

pytestmark = [pytest.mark.prove, pytest.mark.clause("interop")]

OPENAI = Client("openai_strict", pinned_as="openai_agents")
PYDANTIC = Client("pydantic_schemas", pinned_as="pydantic_agent")
Schemas = dict[str, dict[str, Any]]


async def listed(served) -> Schemas:
    tools = (await served.rpc("tools/list"))["result"]["tools"]
    return {tool["name"]: tool["inputSchema"] for tool in tools}


async def converted(client, served) -> dict[str, Schemas]:
    """Return the schemas that a client sends, by its modes."""
    ways: dict[str, Schemas] = (await reported(client, served, (None, [])))["sessions"][0]["tools"]
    return ways


def lost(schemas: Schemas, made: Schemas) -> list[tuple[str, str, str]]:
    """Return (tool, argument, keyword) of every constraint that got lost."""
    return [
        (tool, name, keyword)
        for tool, schema in schemas.items()
        for name, argument in schema["properties"].items()
        for keyword, value in argument.items()
        if not is_said(keyword, value, made[tool]["properties"].get(name, {}))
    ]


def is_said(keyword: str, value: Any, argument: dict[str, Any]) -> bool:
    words = argument.get("description", "")
    in_words = {
        "description": words.startswith(str(value)),
        "default": f"Default {value}." in words,
        "format": f"(format: {value})" in words,
        "maxLength": f"(maxLength={value})" in words,
    }
    return argument.get(keyword) == value or in_words.get(keyword, False)


def all_required(schemas: Schemas) -> Schemas:
    return {
        tool: {**schema, "required": list(schema["properties"])} for tool, schema in schemas.items()
    }


def without(schemas: Schemas, keyword: str) -> Schemas:
    return {
        tool: {key: value for key, value in schema.items() if key != keyword}
        for tool, schema in schemas.items()
    }


async def test_openais_agents_change_nothing_but_that_strict_mode_requires_every_argument(served):
    schemas = await listed(served)
    ways = await converted(OPENAI, served)
    assert ways["as it is"] == schemas
    assert ways["strict"] == all_required(schemas)


async def test_pydantic_ai_moves_unsupported_keywords_into_the_description(served):
    schemas = await listed(served)
    ways = await converted(PYDANTIC, served)
    assert ways["openai"] == schemas
    for made in ways.values():
        assert lost(schemas, made) == []
    required, rest = all_required(schemas), without(schemas, "properties")
    assert without(ways["openai strict"], "properties") == without(required, "properties")
    assert without(ways["google"], "properties") == rest
    assert without(ways["google live"], "properties") == without(rest, "additionalProperties")
