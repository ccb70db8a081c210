"""Settings, and the parts they select: billing, mail, sources, stores and logs."""
