"""Building blocks that two or more methods share, a file a role."""
