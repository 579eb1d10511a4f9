"""Federations: who holds what data. `sets/` has one file per data set."""

from equipoise.data.catalogue import DATASETS, load_federation
from equipoise.data.clients import Client
from equipoise.data.federation import Federation, Preparation, Protocol

__all__ = ["DATASETS", "Client", "Federation", "Preparation", "Protocol", "load_federation"]
