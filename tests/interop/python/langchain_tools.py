"""LangChain's tools of an MCP server, called in the way its agents call tools."""

from langchain_mcp_adapters.client import MultiServerMCPClient
from plan import report, told


async def session(url, headers, calls):
    server = {"transport": "streamable_http", "url": url, "headers": headers}
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"it": server}).get_tools()}
    return list(tools), [await called(tools[call["tool"]], call["arguments"]) for call in calls]


async def called(tool, arguments):
    asked = {"type": "tool_call", "id": "1", "name": tool.name, "args": arguments}
    message = await tool.ainvoke(asked)
    artifact = message.artifact or {}
    return told(message.status == "error", message.text, artifact.get("structured_content"))


report("langchain-mcp-adapters", session)
