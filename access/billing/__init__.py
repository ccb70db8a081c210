"""Billing: the providers that sell the plan, and their base in provider.py."""
