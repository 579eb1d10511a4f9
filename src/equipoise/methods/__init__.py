"""The methods, a file a paper. Each function returns a `Method`."""

from equipoise.methods.eagle import eagle
from equipoise.methods.f2dc import daa, f2dc, f2dc_modules
from equipoise.methods.fedavg import fedavg, fedsgd
from equipoise.methods.fedequilibria import fedequilibria
from equipoise.methods.fedfe import fedfe
from equipoise.methods.fedheal import fedheal
from equipoise.methods.references import centralised, local_only

__all__ = [
    "centralised",
    "daa",
    "eagle",
    "f2dc",
    "f2dc_modules",
    "fedavg",
    "fedequilibria",
    "fedfe",
    "fedheal",
    "fedsgd",
    "local_only",
]
