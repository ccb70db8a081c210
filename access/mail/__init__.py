"""Outgoing mail: one module per transport, all implementing the Protocol in mailer.py."""
