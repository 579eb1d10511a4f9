"""Searches the fairest composition of methods for a federation on validation data, and judges it on test data."""
