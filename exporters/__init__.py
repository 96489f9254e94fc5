"""From an algorithm and a model to the bundle that devices train from."""
