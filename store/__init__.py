"""Persistence: the market store, the access store and all SQL. Imports schemas only."""
