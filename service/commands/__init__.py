"""The `signals` command: one module a subcommand, and what they share."""
