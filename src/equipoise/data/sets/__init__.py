"""The data sets, a file each."""
