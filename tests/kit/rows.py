"""The methods that tests go through: every registered one, variants and sums. A new method is tested from the start."""

from equipoise.engine.runners import RUNNERS
from equipoise.methods import METHODS, parse

# Starting processes takes seconds: those runners are tested apart.
IN_PROCESS = [runner for runner in RUNNERS if runner not in ("processes", "distributed")]

# The same method with less work in a round, where that changes nothing of what is tested.
QUICK = {
    "eagle": "eagle(lstar_epochs=15)",
    "fedlsa": "fedlsa(width=8, server_epochs=5)",
    "fedtgp": "fedtgp(server_epochs=3)",
}
ROWS = [
    *(QUICK.get(name, name) for name in METHODS),
    "fedavg(weights='uniform')",
    "fedequilibria(t=1, moo='update')",
    "fedequilibria(t=0)",
    "fedequilibria(fim='batch', fim_scale='l2')",
    "eagle(lag=0, lstar_epochs=4)",
    "eagle(apply='server', lstar_epochs=4)",
    "f2dc(variant='released')",
    "f2dc(daa_counts='class')",
    "f2dc(share_modules=False, eval_view='mean_modules', layers=(0, 1))",
    "fedheal(variant='released')",
    "fedheal(fael=False)",
    "fedheal(fphl=False)",
    "fedfe(q=0, beta_init=0)",
    "fedfe(order='random', tau=3)",
    "eagle(lstar_epochs=4) + fedheal",
    "f2dc_modules + fedheal",
    "f2dc_modules + fedequilibria",
    "local_only + f2dc_modules",
]
# Variants and sums whose parts stand above already: their runners must agree, too.
MORE = [
    "scaffold(variant='released')",
    "scaffold(momentum=False)",
    "feddyn(evaluate='server')",
    "moon(projection=5)",
    "fedproto(average='counts', variant='released')",
    "fdse(lmbd=0, evaluate='averaged-personal')",
    "ditto(evaluate='averaged-personal')",
    "afl(variant='released')",
    "afl(lambda_first=True, evaluate='last')",
    "qffl(solver='fedsgd')",
    "fedlf(variant='released', absentees=False)",
    "fedheal(fael='exact')",
    "qffl(variant='released')",
    "scaffold(weights='samples')",
    "fedheal + select_in_turn(shuffled=True)",
    "fedmgda_plus(around='uniform', step='mean_length', server_lr=0.5)",
    "moon + fedheal",
    "scaffold + qffl",
    "feddyn + afl",
    "fedproto + fedheal",
    "fedbn + afl",
    "ditto + fedlsa(width=8, server_epochs=5)",
    "fdse + f2dc_modules",
    "f2dc_modules + fpl",
    "ditto + f2dc_modules",
    "power_of_choice(losses='remembered')",
    "fedheal + power_of_choice(candidates=4)",
    "eagle(lag=0, lstar_epochs=4) + power_of_choice",
    "fedbn + select_in_turn",
    "fedavgm(nesterov=True, damped=True, schedule='cosine')",
    "fedheal + fedadam",
    "fednova(mu=0.1)",
    "fednova + fedavgm",
    "feddg_ga(variant='released')",
    "aaggff(setting='device')",
]


def needs_images(text):
    return bool(parse(text).wrap) and "f2dc" in text


def needs_groups(text):
    return any("groups" in part.needs for part in parse(text).parts)
