"""How fast one training step is, on everything that can take it, side by side."""
