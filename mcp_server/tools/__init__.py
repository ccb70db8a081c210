"""One file a tool: its description, schemas and handler side by side."""
