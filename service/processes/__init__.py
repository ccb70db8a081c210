"""Processes: the one that computes, those that serve, their shutdown and memory."""
