"""Draws one picture per method, from the method's own code: `python docs/make_pictures.py`.

Server rules are drawn as they act on three clients' updates; local terms as they act on small problems in the plane. The
drawings themselves are in `pictures_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib import pyplot as plt
from pictures_of.features import (
    draw_fedbn,
    draw_fedlsa,
    draw_fedproc,
    draw_fedproto,
    draw_fedrcl,
    draw_fedsa,
    draw_fedtgp,
    draw_fpl,
    draw_moon,
)
from pictures_of.groups import draw_fairfed, draw_fedfb
from pictures_of.local_training import draw_ditto, draw_feddyn, draw_fedprox, draw_propfair, draw_scaffold
from pictures_of.server_rules import (
    draw_afl,
    draw_by_strength,
    draw_fedfv,
    draw_fedmgda_plus,
    draw_per_tensor,
    draw_rule,
)

FOLDER = Path(__file__).parent / "pictures" / "methods"

PICTURES: dict[str, Callable[[], plt.Figure]] = {
    "afl": draw_afl,
    "daa": draw_rule("daa"),
    "ditto": draw_ditto,
    "eagle": draw_rule("eagle(apply='server', lag=0)", "eagle, on the server"),
    "fairfed": draw_fairfed,
    "fdse": draw_per_tensor("fdse", weights=True),
    "fedbn": draw_fedbn,
    "feddyn": draw_feddyn,
    "fedequilibria": draw_by_strength("fedequilibria", "t", (0.0, 0.3, 0.7, 1.0)),
    "fedfb": draw_fedfb,
    "fedfe": draw_by_strength("fedfe", "q", (0.0, 0.2, 1.0, 5.0), ", lr=1.0"),
    "fedfv": draw_fedfv,
    "fedheal": draw_rule("fedheal", rounds=4),
    "fedlf": draw_per_tensor("fedlf", weights=False),
    "fedlsa": draw_fedlsa,
    "fedmgda_plus": draw_fedmgda_plus,
    "fedproc": draw_fedproc,
    "fedproto": draw_fedproto,
    "fedprox": draw_fedprox,
    "fedrcl": draw_fedrcl,
    "fedsa": draw_fedsa,
    "fedtgp": draw_fedtgp,
    "fpl": draw_fpl,
    "gifair": draw_by_strength("gifair", "strength", (0.0, 0.3, 0.6, 0.9)),
    "moon": draw_moon,
    "propfair": draw_propfair,
    "qffl": draw_by_strength("qffl", "q", (0.0, 0.2, 1.0, 5.0), ", lr=1.0"),
    "scaffold": draw_scaffold,
    "term": draw_by_strength("term", "t", (0.0, 0.5, 1.0, 3.0)),
}


def save(name: str) -> None:
    """Draw one picture into its file."""
    figure = PICTURES[name]()
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    for method_name in PICTURES:
        save(method_name)
