"""Commands that read a running service at a terminal, and follow its feed.

They load neither the server nor the compute side: only `schemas`, and the parts of `service` that
other commands which call a service use too.
"""
