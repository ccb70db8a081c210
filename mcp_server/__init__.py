"""The MCP transport: the endpoint, and one file a tool. Imports serving and the layers below."""
