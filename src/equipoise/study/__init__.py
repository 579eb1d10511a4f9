"""Many runs, and what they show together."""
