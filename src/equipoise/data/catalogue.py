"""The data sets by name, and `load_federation`, which reads one from text."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

from equipoise.data.federation import Federation, Protocol
from equipoise.data.files import TABLES
from equipoise.data.own import own
from equipoise.data.sets.cifar10 import cifar10
from equipoise.data.sets.clinics import clinics
from equipoise.data.sets.digits import digits
from equipoise.data.sets.dirty_mnist import dirty_mnist
from equipoise.data.sets.emnist import emnist
from equipoise.data.sets.fmnist3 import fmnist3
from equipoise.data.sets.gaussians import gaussians
from equipoise.data.sets.heart import heart
from equipoise.data.sets.incomes import incomes
from equipoise.data.sets.mnist_shards import mnist_shards
from equipoise.data.sets.office_caltech import office_caltech
from equipoise.data.sets.pacs import pacs
from equipoise.data.sets.scanners import scanners
from equipoise.data.sources import Source
from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Entry, Registry, Value, parse_one

DATASETS: Registry[Federation] = Registry("dataset")
PER_RUN = "run"  # as the seed of a data set: it is drawn anew for each run, with the run's seed
NAMED = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(\(.*\))?\s*", re.DOTALL)  # a name, with or without arguments


def _register(function: Callable[..., Federation], reference: str) -> None:
    name = function.__name__.replace("_", "-")
    DATASETS[name] = Entry(name, function, (function.__doc__ or "").strip().split("\n")[0], reference)


def list_presets(name: str) -> tuple[str, ...]:
    """The names of a data set's presets, which are ways to deal out and train it.

    >>> list_presets("pacs")
    ('cpu', 'fedequilibria', 'f2dc')
    """
    entry = DATASETS.get(_plain_name(name))
    hint = get_type_hints(entry.function).get("preset") if entry else None
    return tuple(map(str, get_args(hint)))


def say_availability(name: str) -> str:
    """Whether the files of a data set are here, in a word or two."""
    sources = list_sources(name)
    missing = [source for source in sources if not source.is_here]
    if not sources:
        return "none needed" if name != "own" else ""
    if not missing:
        return "here"
    return ", ".join(f"{source.title}: {source.otherwise}" for source in missing)


def list_sources(name: str) -> tuple[Source, ...]:
    """The sources of a data set's files, which its module lists as `NEEDS`."""
    module = sys.modules[DATASETS[name].function.__module__]
    return tuple(getattr(module, "NEEDS", ()))


def _plain_name(text: str) -> str:
    named = NAMED.fullmatch(text)
    return named[1].replace("_", "-") if named else text


_register(scanners, "scikit-learn's handwritten digits (Alpaydin and Kaynak, 1998)")
_register(clinics, "scikit-learn's handwritten digits (Alpaydin and Kaynak, 1998)")
_register(gaussians, "EAGLE, section 4.1")
_register(incomes, "generated, in the manner of the Adult data (Becker and Kohavi, 1996)")
_register(digits, "MNIST, USPS, SVHN, SYN; FedHEAL, FedEquilibria, F2DC")
_register(office_caltech, "Gong et al., 2012; FedHEAL, FedEquilibria, F2DC")
_register(pacs, "Li et al., 2017; FedEquilibria, F2DC")
_register(emnist, "Cohen et al., 2017; EAGLE")
_register(dirty_mnist, "Mukhoti et al., 2023; EAGLE")
_register(cifar10, "Krizhevsky, 2009; FedFE, FedFV")
_register(mnist_shards, "LeCun et al., 1998; FedFE, FedFV")
_register(fmnist3, "Xiao et al., 2017; FedFE, FedFV")
_register(heart, "Detrano et al., 1989 (UCI, CC BY 4.0)")
_register(own, "yours")


def is_path(text: str) -> bool:
    """Whether a text names a user's own data (a file, a folder, an id of the Hugging Face hub), not a named data set.

    >>> is_path("./my-data"), is_path("owner/name"), is_path("table.csv"), is_path("digits(preset='cpu')")
    (True, True, True, False)
    """
    named = NAMED.fullmatch(text)
    if named:
        return named[1].replace("_", "-") not in DATASETS and Path(text).exists()
    return "/" in text or os.sep in text or Path(text).suffix in TABLES or Path(text).exists()


def is_ours(text: str) -> bool:
    """Whether a text names a data set of the library, and so no file of anybody's. No file is looked for.

    >>> is_ours("digits(preset='cpu')"), is_ours("own(path='/etc/passwd')"), is_ours("/etc/passwd")
    (True, False, False)
    """
    name = _plain_name(text)
    return name in DATASETS and DATASETS[name].function is not own


def add_options(text: str, options: Mapping[str, object]) -> str:
    """Own data together with the options of the command line, as one text that `load_federation` reads.

    >>> add_options("./table.csv", {"label": "ill", "client": None})
    "own(path='./table.csv', label='ill')"
    """
    given = {name: value for name, value in options.items() if value}
    if is_path(text):
        return str(Call("own", (("path", text), *given.items())))
    if given:
        option = next(iter(given)).replace("_", "-")
        raise EquipoiseError(f"--{option} is for your own data. `{text}` is a data set with arguments: {text}(...).")
    return text


def list_words(text: str) -> list[str]:
    """The words of a command line that name this data set: those of `add_options` taken apart again.

    >>> list_words("own(path='./table.csv', target=('asthma', 'gout'), drop_missing=True)")
    ['./table.csv', '--target', 'asthma,gout', '--drop-missing']
    >>> list_words("digits(preset='cpu')")
    ["digits(preset='cpu')"]
    """
    if _plain_name(text) != "own":
        return [text]
    given = dict(parse_one(text, "data set", "scanners").arguments)
    words = [str(given.pop("path"))]
    for name, value in given.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return words


def name_setting(text: str) -> str:
    """The data set and preset that a text names, without loading them, as `Federation.setting`; empty for own data.

    >>> name_setting("pacs"), name_setting("digits(preset='fedheal')"), name_setting("./my-data")
    ('pacs cpu', 'digits fedheal', '')
    """
    if not text or is_path(text):
        return ""
    entry, given = _read_call(text)
    preset = entry.parameters.get("preset")
    return f"{entry.name} {given.get('preset', preset.default) if preset else Protocol().name}"


def load_federation(text: str) -> Federation:
    """A federation from text: a data set such as `gaussians(rotate=2)`, or the path of your own data.

    With `seed='run'`, as in `emnist(seed='run')`, a run draws the data set with its own seed.

    >>> len(load_federation("gaussians"))
    3
    """
    if is_path(text):
        return own(text)
    entry, given = _read_call(text)
    is_own = entry.function is own  # records are passed on: they must not tell where a user's files are
    hidden = ("path", "schema") if is_own else ()
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if name not in hidden)

    def draw(seed: int) -> Federation:
        checked = entry.check({**given, **({"seed": seed} if "seed" in given else {})})
        data = entry.function(**checked)
        return replace(data, arguments=arguments, dataset="" if is_own else entry.name, seed=seed)

    if given.get("seed") == PER_RUN and "seed" in entry.parameters:
        return replace(draw(0), redraw=draw)
    seed = entry.check(given).get("seed", 0)
    return draw(seed if isinstance(seed, int) else 0)


def _read_call(text: str) -> tuple[Entry[Federation], dict[str, Value]]:
    """The data set that a text names, and the arguments that it gives."""
    named = NAMED.fullmatch(text)  # names of data sets may have hyphens, which the grammar of methods does not know
    call = parse_one(named[1].replace("-", "_") + (named[2] or "") if named else text, "data set", "scanners")
    return DATASETS.find(call.name.replace("_", "-")), dict(call.arguments)
