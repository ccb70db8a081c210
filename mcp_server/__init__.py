"""The primary face: the MCP endpoint and the tools. Imports access, store and schemas."""
