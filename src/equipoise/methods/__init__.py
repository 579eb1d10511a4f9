"""The methods of the library, one file per paper. Each function returns a `Method`; `parse` finds them by name."""

from equipoise.method.registry import METHODS, parse
from equipoise.methods.aaggff import aaggff
from equipoise.methods.afl import afl
from equipoise.methods.ditto import ditto
from equipoise.methods.eagle import eagle
from equipoise.methods.f2dc import daa, f2dc, f2dc_modules
from equipoise.methods.fairfed import fairfed
from equipoise.methods.fdse import fdse
from equipoise.methods.fedavg import fedavg, fedsgd
from equipoise.methods.fedavgm import fedavgm
from equipoise.methods.fedbn import fedbn
from equipoise.methods.feddg_ga import feddg_ga
from equipoise.methods.feddyn import feddyn
from equipoise.methods.fedequilibria import fedequilibria
from equipoise.methods.fedfb import fedfb
from equipoise.methods.fedfe import fedfe
from equipoise.methods.fedfv import fedfv
from equipoise.methods.fedheal import fedheal
from equipoise.methods.fedlf import fedlf
from equipoise.methods.fedlsa import fedlsa
from equipoise.methods.fedmgda_plus import fedmgda_plus
from equipoise.methods.fednova import fednova
from equipoise.methods.fedopt import fedadagrad, fedadam, fedyogi
from equipoise.methods.fedproc import fedproc
from equipoise.methods.fedproto import fedproto
from equipoise.methods.fedprox import fedprox
from equipoise.methods.fedrcl import fedrcl
from equipoise.methods.fedsa import fedsa
from equipoise.methods.fedtgp import fedtgp
from equipoise.methods.fpl import fpl
from equipoise.methods.gifair import gifair
from equipoise.methods.moon import moon
from equipoise.methods.power_of_choice import power_of_choice
from equipoise.methods.propfair import propfair
from equipoise.methods.qffl import qffl
from equipoise.methods.references import centralised, local_only
from equipoise.methods.robust import robust
from equipoise.methods.scaffold import scaffold
from equipoise.methods.selections import select_by_hours, select_by_samples, select_in_turn, select_worst
from equipoise.methods.term import term

__all__ = [
    "METHODS",
    "aaggff",
    "afl",
    "centralised",
    "daa",
    "ditto",
    "eagle",
    "f2dc",
    "f2dc_modules",
    "fairfed",
    "fdse",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedbn",
    "feddg_ga",
    "feddyn",
    "fedequilibria",
    "fedfb",
    "fedfe",
    "fedfv",
    "fedheal",
    "fedlf",
    "fedlsa",
    "fedmgda_plus",
    "fednova",
    "fedproc",
    "fedproto",
    "fedprox",
    "fedrcl",
    "fedsa",
    "fedsgd",
    "fedtgp",
    "fedyogi",
    "fpl",
    "gifair",
    "local_only",
    "moon",
    "parse",
    "power_of_choice",
    "propfair",
    "qffl",
    "robust",
    "scaffold",
    "select_by_hours",
    "select_by_samples",
    "select_in_turn",
    "select_worst",
    "term",
]
