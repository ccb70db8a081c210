"""Pydantic models of every query, result and error, from which all JSON Schema is generated.

This package imports no other layer.
"""
