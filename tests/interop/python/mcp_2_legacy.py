"""The official SDK's client, version 2, told to begin with the handshake of older protocols."""

from mcp_2 import report_in

report_in("legacy")
