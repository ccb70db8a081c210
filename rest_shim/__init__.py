"""The REST transport: /api/v1 routes to the tool handlers. Imports mcp_server and layers below."""
