"""Draws one picture per method, from the method's own code: `python docs/make_pictures.py`.

Server rules are drawn as they act on three clients' updates; local terms as they act on small problems in the plane. The
drawings themselves are in `pictures_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib import pyplot as plt
from pictures_of.attacks import draw_robust
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
from pictures_of.selections import draw_selection
from pictures_of.server_paths import draw_fednova, draw_optimizer
from pictures_of.server_rules import (
    draw_by_strength,
    draw_fedfv,
    draw_fedmgda_plus,
    draw_over_rounds,
    draw_per_tensor,
    draw_rule,
)

FOLDER = Path(__file__).parent / "pictures" / "methods"

PICTURES: dict[str, Callable[[], plt.Figure]] = {
    "aaggff": draw_over_rounds(
        "aaggff", (1, 2, 5, 10, 20, 50, 100), (1, 10, 50, 100), "weights move slowly to large losses"
    ),
    "afl": draw_over_rounds("afl(gamma=0.05)", range(1, 11), (1, 2, 4, 8), "lambda climbs to the largest loss"),
    "daa": draw_rule("daa"),
    "ditto": draw_ditto,
    "eagle": draw_rule("eagle(apply='server', lag=0)", "eagle, on the server"),
    "fairfed": draw_fairfed,
    "fdse": draw_per_tensor("fdse", weights=True),
    "fedadagrad": draw_optimizer("fedadagrad(lr=0.5)"),
    "fedadam": draw_optimizer("fedadam(lr=0.2)"),
    "fedavgm": draw_optimizer("fedavgm(beta=0.7)"),
    "fedbn": draw_fedbn,
    "feddg_ga": draw_over_rounds("feddg_ga(step=0.5)", range(1, 11), (1, 2, 4, 8), "weights follow the gaps"),
    "feddyn": draw_feddyn,
    "fedequilibria": draw_by_strength("fedequilibria", "t", (0.0, 0.3, 0.7, 1.0)),
    "fedfb": draw_fedfb,
    "fedfe": draw_by_strength("fedfe", "q", (0.0, 0.2, 1.0, 5.0), ", lr=1.0"),
    "fedfv": draw_fedfv,
    "fedheal": draw_rule("fedheal", rounds=4),
    "fedlf": draw_per_tensor("fedlf", weights=False),
    "fedlsa": draw_fedlsa,
    "fedmgda_plus": draw_fedmgda_plus,
    "fednova": draw_fednova,
    "fedproc": draw_fedproc,
    "fedproto": draw_fedproto,
    "fedprox": draw_fedprox,
    "fedrcl": draw_fedrcl,
    "fedsa": draw_fedsa,
    "fedtgp": draw_fedtgp,
    "fedyogi": draw_optimizer("fedyogi(lr=0.2)"),
    "fpl": draw_fpl,
    "gifair": draw_by_strength("gifair", "strength", (0.0, 0.3, 0.6, 0.9)),
    "moon": draw_moon,
    "power_of_choice": draw_selection("power_of_choice(candidates=4)"),
    "propfair": draw_propfair,
    "qffl": draw_by_strength("qffl", "q", (0.0, 0.2, 1.0, 5.0), ", lr=1.0"),
    "robust": draw_robust,
    "scaffold": draw_scaffold,
    "select_by_hours": draw_selection("select_by_hours(opens=(0, 4, 8, 12, 16, 20), length=8)"),
    "select_by_samples": draw_selection("select_by_samples"),
    "select_in_turn": draw_selection("select_in_turn"),
    "select_worst": draw_selection("select_worst(quota=0.5)"),
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
