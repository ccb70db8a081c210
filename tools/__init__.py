"""Development programs and the example data they share with tests and bench; no tests here."""
