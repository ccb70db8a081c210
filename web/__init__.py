"""Pages for people, above access and on the same handlers; nothing below `service` imports them."""
