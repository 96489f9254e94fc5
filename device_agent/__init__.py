"""The agent: trains on a device's own data from exported graphs, without torch."""
