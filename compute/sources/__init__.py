"""Where bars come from, one file a source; imported by the composition root."""
