"""Models of every query, result and error: the one source of JSON Schema; imports no layer."""
