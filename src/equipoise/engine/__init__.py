"""A whole run."""
