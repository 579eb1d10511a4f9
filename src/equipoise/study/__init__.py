"""Studies: many runs, and the tables and reports that show their results together."""
