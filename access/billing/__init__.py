"""Billing: one module per provider, all implementing the Protocol in provider.py."""
