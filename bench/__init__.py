"""Speed, measured beside peers and limits: each module has `rows()`, `python -m bench` runs all."""
