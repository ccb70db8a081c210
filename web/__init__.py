"""HTML pages for people, built on the same handlers as the tools; only `service` imports them."""
