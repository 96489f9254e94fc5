"""Whole systems on one machine: brokers, emulated fleets, data sets, the demo."""
