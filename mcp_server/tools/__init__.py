"""The MCP tools, one file each with its description, schemas and handler."""
