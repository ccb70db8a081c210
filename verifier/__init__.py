"""`signals verify`: checks the transparency log of a service from outside.

Imports no other package of ours: an error in the server's code must not be able to hide itself by
also being used here. The formats are those of C2SP: signed-note, tlog-checkpoint, tlog-tiles,
tlog-proof, tlog-cosignature and tlog-policy. docs/proof.md explains them to customers.
"""
