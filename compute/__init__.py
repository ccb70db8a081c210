"""The compute side: universe, sources, indicators, engine, replay and audit; writes to the store."""
