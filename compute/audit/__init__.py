"""Recomputes everything published from the stored bars; used by `signals audit`."""
