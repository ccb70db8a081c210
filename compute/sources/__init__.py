"""The sources of bars and funding, one file each; only the composition root imports them."""
