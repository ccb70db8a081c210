"""The `signals` command: one module per subcommand, and their shared modules."""
