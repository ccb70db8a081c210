"""Other MCP servers with our tools, and a server of fixed bytes as the upper limit.

Each runs as a separate process, `-m bench.peers.NAME PORT ANSWERS`, where ANSWERS is a JSON file
that maps the name of a case to its result.
"""
