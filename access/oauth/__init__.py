"""OAuth 2.1 authorization server: clients, authorization requests, codes and tokens.

Imports store and schemas, and the keys and throttles of access.
"""
