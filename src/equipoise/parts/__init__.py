"""Building blocks that two or more methods share, in one file per topic."""
