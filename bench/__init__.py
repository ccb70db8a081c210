"""Benchmarks: one module a question, each with `rows()`. Nothing imports this package."""
