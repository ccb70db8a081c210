"""The audit: recomputes everything published from the stored bars, for `signals audit`."""
