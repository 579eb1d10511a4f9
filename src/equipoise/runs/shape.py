"""What a manifest must hold, and tables beside it, so that whoever reads a run folder can rely on it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from equipoise.metrics import POOLED, UNSEEN

MOST_ROUNDS = 10**7  # more than any run does: plots have a column per round
WORDS = {str: "text", int: "a whole number", float: "a number", dict: "a table", list: "a list", Mapping: "a table"}
# Real sites do not tell which classes they hold.
CLIENT = {"name": str, "domain": str, "train": int, "test": int, "classes": ([float], None)}
SHAPE: Mapping[Any, Any] = {
    "status": str,
    "method": str,
    "parameters": {str: dict},
    "model": str,
    "training": dict,
    "demanded": dict,
    "rounds": int,
    "participation": float,
    "buffers": (str, dict),
    "seed": int,
    "digest": str,
    "evaluated": {"model": str},
    "warnings": [str],
    "rejected": [{"round": int, "client": str, "why": str}],
    "seconds": float,
    "seconds_per_round": [float],
    "cost": {"parameters": int, "upload": float, "flops": float},
    "versions": dict,
    "data": {
        "name": str,
        "fingerprint": str,
        "partition": str,
        "protocol": str,
        "classes": [str],
        "notes": [str],
        "clients": [CLIENT],
    },
}


def find_oddity(facts: Mapping[str, Any]) -> str:
    """What keeps a manifest from being one, in words; empty if nothing does."""
    found = _compare("", facts, SHAPE)
    if found:
        return found
    try:
        json.dumps(facts, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "holds text that is not Unicode"
    if not 1 <= facts["rounds"] <= MOST_ROUNDS:
        return f"says `rounds` {facts['rounds']}"
    if facts["status"] == "finished" and not facts["seconds_per_round"]:
        return "is of a finished run, and has no `seconds_per_round`"
    clients = facts["data"]["clients"]
    if len({len(client["classes"] or ()) for client in clients}) > 1:
        return "does not count the same classes at every client"
    names = [client["name"] for client in clients]
    return "" if names and len(set(names)) == len(names) else "does not name each client once"


def _compare(where: str, found: Any, wanted: Any) -> str:
    """In what a value is not of the wanted shape: a type, a table with these entries at least (`str`: with any, all of
    one shape), a list of one kind of item, None, or one of several in a tuple."""
    if isinstance(wanted, tuple):
        against = [_compare(where, found, one) for one in wanted]
        return against[0] if all(against) else ""
    if wanted is None:
        return "" if found is None else f"must hold nothing in `{where}`"
    kind = wanted if isinstance(wanted, type) else type(wanted)
    fits = isinstance(found, (int, float) if kind is float else kind) and not isinstance(found, bool)
    if not fits or (isinstance(found, float) and not math.isfinite(found)):
        return f"must hold {WORDS[kind]} in `{where}`" if where else "is not a manifest"
    if isinstance(wanted, Mapping):
        inside = f"{where}." if where else ""
        for name, one in wanted.items() if str not in wanted else dict.fromkeys(found, wanted[str]).items():
            if name not in found:
                return f"lacks `{inside}{name}`"
            said = _compare(f"{inside}{name}", found[name], one)
            if said:
                return said
    if isinstance(wanted, list):
        return next(filter(None, (_compare(where, item, wanted[0]) for item in found)), "")
    return ""


def _is_of(crowd: int, name: str) -> bool:
    """Whether a name is that of one of so many clients of a crowd, of which the manifest tells only some one by one."""
    number = name.removeprefix("client ")
    return number.isdecimal() and int(number) < crowd and name == f"client {int(number)}"


def find_strange_rows(facts: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> str:
    """What the tables of a run say of rounds or clients that the manifest does not know; empty if nothing."""
    clients = {client["name"] for client in facts["data"]["clients"]}
    unseen = {client["name"] for client in facts["data"].get(UNSEEN, ())}
    for name, table in tables.items():
        rounds = pc.min_max(table["round"]).as_py()
        if table.num_rows and not (rounds["min"] >= 1 and rounds["max"] <= facts["rounds"]):
            return f"its {name} have a round that the manifest does not"
        empty = [column for column in ("round", "client", "split", "metric") if column in table.column_names]
        if any(table[column].null_count for column in empty):
            return f"its {name} have a row without {' or '.join(empty)}"
    records = tables["records"]
    held = pc.equal(records["split"], UNSEEN)
    weighed = (tables["weights"], {*clients, POOLED})
    crowd = int(facts["data"].get("crowd", {}).get("clients", 0))
    for rows, known in ((records.filter(pc.invert(held)), clients), (records.filter(held), unseen), weighed):
        strange = {
            name for name in pc.unique(rows["client"]).to_pylist() if name not in known and not _is_of(crowd, name)
        }
        if strange:
            return f"the manifest does not know the client `{min(strange)}`"
    return ""
