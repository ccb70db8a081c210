"""Prints the tool schemas that Pydantic AI sends to models, by provider."""

from dataclasses import replace

from plan import report
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.profiles import google, openai


async def session(url, headers, calls):
    toolset = MCPToolset(url, headers=headers)
    return {
        "openai": await sent(toolset, openai.OpenAIJsonSchemaTransformer),
        "openai strict": await sent(toolset.prepared(strict), openai.OpenAIJsonSchemaTransformer),
        "google": await sent(toolset, google.GoogleJsonSchemaTransformer),
        "google live": await sent(toolset, google.GoogleOpenAPISchemaTransformer),
    }, []


def strict(context, tools):
    return [replace(tool, strict=True) for tool in tools]


async def sent(toolset, transformer):
    schemas = {}

    def answer(messages, info):
        schemas.update((tool.name, tool.parameters_json_schema) for tool in info.function_tools)
        return ModelResponse([TextPart("Done.")])

    model = FunctionModel(answer, profile={"json_schema_transformer": transformer})
    await Agent(model, toolsets=[toolset]).run("Go on.")
    return schemas


report("pydantic-ai-slim", session)
