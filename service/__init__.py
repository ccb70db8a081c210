"""Composition root: settings, the app and the `signals` command. It imports every layer."""
