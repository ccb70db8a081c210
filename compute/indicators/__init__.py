"""The indicators, one file each, as pure step functions; imports only NumPy."""
