"""The HTTP server: connections and their limits, the ASGI app, health and metrics."""
