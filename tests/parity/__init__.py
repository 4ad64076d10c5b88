"""Parity with peers: the cases of every family, and how a model of a peer is held against ours."""
