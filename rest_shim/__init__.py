"""The REST transport: /api/v1 routes onto the same tool handlers. Imports mcp_server and below."""
