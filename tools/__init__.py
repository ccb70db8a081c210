"""Development programs, and example data that tests and bench share. It imports neither."""
