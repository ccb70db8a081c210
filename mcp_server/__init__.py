"""The MCP transport: the endpoint, and one file per tool. Imports serving and the layers below."""
