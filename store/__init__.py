"""Everything kept on disk, behind two Protocols; all SQL lives here. Imports schemas alone."""
