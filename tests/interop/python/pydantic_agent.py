"""An agent of Pydantic AI with a scripted model that makes one call of a plan per turn.

With the argument `schemas` it reports the tool schemas that it sends to models, by provider.
"""

import sys
from dataclasses import replace

from plan import build_entry, report
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.profiles import google, openai


async def session(url, headers, calls):
    tools = []

    def next_turn(messages, info):
        tools[:] = [tool.name for tool in info.function_tools]
        done = len(answers(messages))
        if done < len(calls):
            return ModelResponse([ToolCallPart(calls[done]["tool"], calls[done]["arguments"])])
        return ModelResponse([TextPart("Done.")])

    toolset = MCPToolset(url, headers=headers, max_retries=len(calls))
    run = await Agent(FunctionModel(next_turn), toolsets=[toolset]).run("Go on.")
    return tools, answers(run.all_messages())


def answers(messages):
    """Return the parts that the model received for each call; `outcome` marks a retry."""
    parts = [part for message in messages for part in message.parts]
    return [
        build_entry(part.outcome != "success", part.model_response_str(wrap_if_error=False))
        for part in parts
        if isinstance(part, ToolReturnPart)
    ]


async def convert(url, headers, calls):
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


report("pydantic-ai-slim", convert if sys.argv[1:] == ["schemas"] else session)
