"""The OAuth authorization server: clients, authorizations and tokens. Imports access, store and schemas."""
