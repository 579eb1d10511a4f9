"""What a method is, and what its author needs."""

from equipoise.method.method import CHAINS, METHODS, ROLES, Method, parse, register

__all__ = ["CHAINS", "METHODS", "ROLES", "Method", "parse", "register"]
