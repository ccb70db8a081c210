"""Development programs: generated docs, clauses, mutants. Nothing imports them but tests."""
