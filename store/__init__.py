"""Everything kept on disk; all SQL lives here. Imports schemas only."""
