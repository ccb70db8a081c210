"""The second face: /api/v1 routes onto the very handlers of the tools."""
