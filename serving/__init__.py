"""What both transports share: running a tool for a caller, caches, validation, HTTP basics.

Imports access, store and schemas.
"""
