"""Who takes the money: one file a provider, all behind the Protocol in provider.py."""
