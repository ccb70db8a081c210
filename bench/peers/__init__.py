"""Other people's servers with the tools of ours, and the fixed bytes that none can be faster than.

Each is a process of its own: `-m bench.peers.NAME PORT ANSWERS`, the answers a JSON file by name.
"""
