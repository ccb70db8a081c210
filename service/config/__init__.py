"""Settings, and the parts they choose: billing, mail, sources, stores, logs."""
