"""The official SDK's client, version 2, configured to start with the older handshake."""

from mcp_2 import report_in

report_in("legacy")
