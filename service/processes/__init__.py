"""Processes: the compute process, serving workers, their supervisor, shutdown and memory."""
