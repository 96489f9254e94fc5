"""Differential privacy on the coordinator: who is sampled, the noise, the accountant and the budget."""
