"""A model of a user's own, named as text: `mynet.py:Net(width=3)` is the class or function `Net` in the file `mynet.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from torch import nn

from equipoise.errors import EquipoiseError
from equipoise.grammar import Call, Entry, did_you_mean, join_words, parse_one
from equipoise.own_code import explain_error, hash_files, import_file

NAMED = re.compile(r"\s*(?P<file>\S.*\.py)(?::(?P<call>.*))?\s*", re.DOTALL)
FROM_DATA = ("input_shape", "classes")  # parameters that a model gets if it has them: they follow from the data


def find_file(text: str) -> Path | None:
    """The file in a text such as `mynet.py:Net`; None for a model of the library."""
    named = NAMED.fullmatch(text)
    return Path(named["file"]) if named else None


def hide_folder(text: str) -> str:
    """The text for records, which do not tell where a user's files are.

    >>> hide_folder("/home/me/mynet.py:Net(width=3)")
    'mynet.py:Net(width=3)'
    """
    file = find_file(text)
    return text if file is None else file.name + text.strip().removeprefix(str(file))


def hash_model_file(text: str) -> dict[str, str]:
    """The file of a model of a user's own, and a hash of its content; empty for a model of the library."""
    file = find_file(text)
    return {} if file is None else hash_files([file.expanduser()])


def find_own_builder(text: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The function that builds the model which a text such as `mynet.py:Net(width=3)` names, from the shape of a sample
    and the number of classes. The file is imported, and the arguments are checked."""
    named = NAMED.fullmatch(text)
    assert named is not None
    module = import_file(named["file"], "model")
    file = Path(str(module.__file__))
    if not (named["call"] or "").strip():
        names = _list_builders(module)
        example = f"{named['file']}:{names[0] if names else 'Net'}"
        raise EquipoiseError(f"Which model of `{file.name}`? Name a class or function of it: --model {example}.")
    call = parse_one(named["call"], "model", "Net(width=3)")
    function = getattr(module, call.name, None)
    if not callable(function):
        names = _list_builders(module)
        raise EquipoiseError(
            f"There is no class or function `{call.name}` in `{file.name}`.{did_you_mean(call.name, names)} It has: "
            f"{join_words(names, 12) or 'none'}."
        )
    entry: Entry[nn.Module] = Entry(call.name, function)
    arguments = check_arguments(entry, call)

    def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        known = dict(zip(FROM_DATA, (input_shape, classes), strict=True))
        given = {**{name: known[name] for name in FROM_DATA if name in entry.parameters}, **arguments}
        missing = [
            name
            for name, one in entry.parameters.items()
            if one.default is inspect.Parameter.empty
            and one.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            and name not in given
        ]
        if missing:
            example = f"{named['file']}:{call.name}({missing[0]}=...)"
            raise EquipoiseError(f"`{call.name}` of `{file.name}` needs `{missing[0]}`: write {example}.")
        try:
            model = function(**given)
        except Exception as error:  # of any kind: it is a user's own code
            raise EquipoiseError(f"Model `{text}` cannot be built: {explain_error(error, file)}") from error
        if not isinstance(model, nn.Module):
            raise EquipoiseError(
                f"`{call.name}` of `{file.name}` must give a torch.nn.Module. Found {type(model).__name__}."
            )
        return model

    return build


def check_arguments(entry: Entry[nn.Module], call: Call) -> dict[str, object]:
    """The arguments that are given to a model, checked. Those that follow from the data cannot be given."""
    for name in FROM_DATA:
        if name in dict(call.arguments):
            raise EquipoiseError(f"`{name}` of a model follows from the data. Leave it out of `{call}`.")
    return entry.check(dict(call.arguments))


def _list_builders(module: ModuleType) -> list[str]:
    """The names of the classes and functions that a file defines itself, models first."""
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and n[0] != "_"}
    models = [name for name, value in own.items() if inspect.isclass(value) and issubclass(value, nn.Module)]
    return [*models, *(name for name, value in own.items() if inspect.isfunction(value))]
