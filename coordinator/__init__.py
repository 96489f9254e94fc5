"""The coordinator: rounds, cohorts, aggregation and the truth about a run."""
