"""Benchmarks against peers and limits: `python -m bench` runs every module that has `rows()`."""
