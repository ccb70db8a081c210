"""How mail leaves: one file a way, all behind the Protocol in mailer.py."""
