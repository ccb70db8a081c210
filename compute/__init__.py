"""The compute side: universe, sources, indicators, engine, runs, audit; writes to the store."""
