"""Composition root: settings, the app and the `signals` command; imports every layer."""
