"""Recomputes rows of the feed from a customer's own bars, and explains differences. Pure."""
