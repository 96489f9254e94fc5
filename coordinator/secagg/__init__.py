"""Secure aggregation on the coordinator: what a run agrees on, the exchange of an attempt, and sums of masked uploads.

The protocol is in :mod:`edgepfl.secagg`; docs/secagg.md tells how its steps fit into a round.
"""
