"""An agent of OpenAI's SDK with a scripted model that makes one call of a plan per turn.

With the argument `schemas` it reports the tool schemas that the SDK sends to a model, by default
and in strict mode.
"""

import json
import sys

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    Runner,
    Usage,
)
from agents.mcp import MCPServerStreamableHttp
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from plan import build_entry, report


class Scripted(Model):
    def __init__(self, calls):
        self.calls = calls
        self.tools = []
        self.outputs = []

    async def get_response(self, *, input, tools, **others):
        self.tools = [tool.name for tool in tools]
        self.outputs = [
            item["output"] for item in input if item.get("type") == "function_call_output"
        ]
        return ModelResponse(output=[self.next_turn()], usage=Usage(), response_id=None)

    def stream_response(self, **others):
        raise NotImplementedError

    def next_turn(self):
        done = len(self.outputs)
        if done < len(self.calls):
            call = self.calls[done]
            return ResponseFunctionToolCall(
                type="function_call",
                call_id=str(done),
                name=call["tool"],
                arguments=json.dumps(call["arguments"]),
            )
        text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
        return ResponseOutputMessage(
            type="message", id="done", role="assistant", status="completed", content=[text]
        )


async def session(url, headers, calls):
    model = Scripted(calls)
    async with MCPServerStreamableHttp({"url": url, "headers": headers}) as server:
        await Runner.run(
            Agent("caller", model=model, mcp_servers=[server]),
            "Go on.",
            max_turns=len(calls) + 1,
            run_config=RunConfig(tracing_disabled=True),
        )
    return model.tools, [build_entry(None, text_of(output)) for output in model.outputs]


def text_of(output):
    return output if isinstance(output, str) else "".join(part["text"] for part in output)


async def convert(url, headers, calls):
    async with MCPServerStreamableHttp({"url": url, "headers": headers}) as server:
        return {"as it is": await sent(server, False), "strict": await sent(server, True)}, []


async def sent(server, is_strict):
    config = {"convert_schemas_to_strict": is_strict}
    agent = Agent("caller", mcp_servers=[server], mcp_config=config)
    tools = await agent.get_mcp_tools(RunContextWrapper(None))
    assert all(tool.strict_json_schema is is_strict for tool in tools)
    return {tool.name: tool.params_json_schema for tool in tools}


report("openai-agents", convert if sys.argv[1:] == ["schemas"] else session)
