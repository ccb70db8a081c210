"""Code shared by both transports: running tools, caches, validation of arguments, HTTP basics.

It imports access, store and schemas.
"""
