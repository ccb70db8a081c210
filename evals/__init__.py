"""Measures how well a language model answers questions with the tools: `python -m evals`.

A development program, like `tools`: the service never imports it.
"""
