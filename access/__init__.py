"""Access control: API keys, quotas, purchases, sign-in and mail. Imports store and schemas."""
