"""LangChain's tools of an MCP server, called in the way its agents call tools."""

from langchain_mcp_adapters.client import MultiServerMCPClient
from plan import build_entry, report


async def session(url, headers, calls):
    server = {"transport": "streamable_http", "url": url, "headers": headers}
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"it": server}).get_tools()}
    return list(tools), [await called(tools[call["tool"]], call["arguments"]) for call in calls]


async def called(tool, arguments):
    requested = {"type": "tool_call", "id": "1", "name": tool.name, "args": arguments}
    message = await tool.ainvoke(requested)
    artifact = message.artifact or {}
    return build_entry(message.status == "error", message.text, artifact.get("structured_content"))


report("langchain-mcp-adapters", session)
