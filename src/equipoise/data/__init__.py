"""Federations: who holds what data. `sets/` has one file per data set."""

from equipoise.data.catalogue import DATASETS, load_federation
from equipoise.data.federation import Client, Federation, Preparation, Protocol

__all__ = ["DATASETS", "Client", "Federation", "Preparation", "Protocol", "load_federation"]
