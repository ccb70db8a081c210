"""Prints the tool schemas that OpenAI's SDK sends to a model, by default and in strict mode."""

from agents import Agent, RunContextWrapper
from agents.mcp import MCPServerStreamableHttp
from plan import report


async def session(url, headers, calls):
    async with MCPServerStreamableHttp({"url": url, "headers": headers}) as server:
        return {"as it is": await sent(server, False), "strict": await sent(server, True)}, []


async def sent(server, is_strict):
    config = {"convert_schemas_to_strict": is_strict}
    agent = Agent("caller", mcp_servers=[server], mcp_config=config)
    tools = await agent.get_mcp_tools(RunContextWrapper(None))
    assert all(tool.strict_json_schema is is_strict for tool in tools)
    return {tool.name: tool.params_json_schema for tool in tools}


report("openai-agents", session)
