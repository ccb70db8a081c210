"""Signs the transparency log of the feed, and asks witnesses to cosign it."""
