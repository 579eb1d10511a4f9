"""The site's half of a federation: it answers messages with what `client_round` computes. Data and state stay there."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from equipoise.data import Client, Federation, load_federation
from equipoise.data.catalogue import is_ours
from equipoise.data.own import own
from equipoise.data.stand_in import describe_site, seat_site
from equipoise.data.tables import Schema
from equipoise.engine.site_states import load_state, place_states, store_states
from equipoise.engine.states import flatten, nest
from equipoise.flower import wire
from equipoise.flower.plan import Plan
from equipoise.grammar import fit_to_type, join_words, split_list
from equipoise.groups import WITHHELD
from equipoise.losses import parse_loss
from equipoise.roles import Phase
from equipoise.rounds.client import client_round
from equipoise.rounds.evaluation import SCORED, evaluate, evaluate_unseen, list_models_at_home
from equipoise.rounds.server import make_broadcast
from equipoise.task import Task
from equipoise.types import ClientState, EquipoiseError

KEPT = "equipoise state "  # names records in `context.state`, with the number of rounds after which the state holds
LOG = logging.getLogger(__name__)
STATES = Path("~/.equipoise")  # the folder below which a run may ask a site to keep its states
# Names of columns and files stand in backticks in our messages, and values of data in quotes, as Python writes them.
VALUES = re.compile(r"""(`[^`]*`)|(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL)
OPTIONS = re.compile(r"--(label|target|group|ignore|image-size|drop-missing)\b")
Records = dict[str, ArrayRecord | ConfigRecord | MetricRecord]


@dataclass(frozen=True, eq=False)
class Site:
    """One site and its data."""

    federation: Federation  # the data, perhaps with those of other sites if a data set is dealt out
    client: Client  # which of them are the site's
    number: int = -1  # of its part, if a data set is dealt out; -1: the server chooses one


Handler = Callable[[Plan, Site, Message, Context], Records]


def client_app(
    plan: Plan | None = None,
    *,
    data: Federation | None = None,
    schema: str | Path | None = None,
    folder: Path | None = None,
) -> ClientApp:
    """The app that Flower runs at a site.

    Without a plan, it is read from the run's configuration. The node's configuration says which data are the site's:
    `site="north" data="/data/north.csv"`, or `partition-id=0` for a part of `data` or of the plan's data set. `schema`
    is the file of classes and columns that all sites agreed on. The run's configuration names no path at a site, but for a
    model's file that the app carries in `folder`.
    """
    app = ClientApp()

    def answering(answer: Handler) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                agreed = plan or _refuse_paths(Plan.from_config(context.run_config)).find_model(folder)
                content = RecordDict(answer(agreed, _site(agreed, data, schema, context), message, context))
            except Exception as error:  # of any kind: the server is told in words
                if not isinstance(error, EquipoiseError):
                    LOG.exception("An error of the software, of which the server is told only the kind")
                name = str(context.node_config.get("site", ""))
                content = RecordDict({wire.FACTS: ConfigRecord({wire.ERROR: _tell(error), "name": name})})
            return Message(content, reply_to=message)

        return handle

    app.query("hello")(answering(_hello))
    app.train("select")(answering(functools.partial(_take_part, "select")))
    app.train("probe")(answering(functools.partial(_take_part, "probe")))
    app.train()(answering(functools.partial(_take_part, "train")))
    app.evaluate()(answering(_score))
    return app


def _refuse_paths(plan: Plan) -> Plan:
    """The plan of a run's configuration, if it makes the site read or write no path: those come from the site itself."""
    if plan.data and not is_ours(plan.data):
        raise EquipoiseError(
            f"The run's configuration has data={plan.data!r}, which is no data set of the library. A site reads the files "
            "that its own --node-config names (data=...), and no others."
        )
    folder = Path(plan.site_state).expanduser().resolve()
    if plan.site_state and not folder.is_relative_to(STATES.expanduser().resolve()):
        raise EquipoiseError(
            f"The run's configuration has site-state={plan.site_state!r}, which is not below {STATES}. A site names another "
            "folder itself, with state=... in its --node-config."
        )
    return plan


def _tell(error: Exception) -> str:
    """What the server is told of an error. An error that is not ours may quote anything, so only its kind is told."""
    ours = isinstance(error, EquipoiseError)
    return wire.explain(error) if ours else f"{type(error).__name__}: the log of the site says more."


def withhold_values(text: str) -> str:
    """A message about a site's data without the values that it quotes.

    >>> withhold_values("Column `age` is a number in the schema. Found 'Smith' in line 7.")
    'Column `age` is a number in the schema. Found (withheld) in line 7.'
    """
    return VALUES.sub(lambda found: found[1] or "(withheld)", text)


def name_settings(text: str) -> str:
    """A message in which options of the command line are named as settings of a site's node.

    >>> name_settings("There is no label column `ill`. Name it with --label.")
    'There is no label column `ill`. Name it with `label` in --node-config.'
    """
    return OPTIONS.sub(r"`\1` in --node-config", text)


# --------------------------------------------------------------------------- the site's data
def _site(plan: Plan, data: Federation | None, schema: str | Path | None, context: Context) -> Site:
    """The site with the data that its node's configuration names."""
    node = context.node_config
    if "data" in node:
        name = str(node.get("site", context.node_id))
        path, agreed = str(node["data"]), node.get("schema", schema)
        size, label, ignore = node.get("image-size"), node.get("label"), str(node.get("ignore", ""))
        more = str(node.get("target", "")), None if "group" not in node else str(node["group"])
        options = (None if size is None else int(size), None if label is None else str(label), ignore, *more)
        dropping = bool(fit_to_type(node.get("drop-missing", plan.drop_missing), bool, "drop-missing in --node-config"))
        try:
            federation = _own(path, name, None if agreed is None else str(agreed), *options, dropping)
        except EquipoiseError as error:
            told = name_settings(str(error))
            LOG.warning("%s", told)  # here, with the values
            raise EquipoiseError(withhold_values(told)) from None
        if agreed is None and not node.get("share-levels", False):
            _refuse_levels(federation)
        return Site(_ready(plan, federation), _ready(plan, federation).clients[0])
    if data is None and not plan.data:
        raise EquipoiseError('This site has no data. Start its SuperNode with --node-config \'site="..." data="..."\'.')
    if "partition-id" not in node:
        raise EquipoiseError(
            "Which part of the data is this site's? Start its SuperNode with --node-config 'partition-id=0'."
        )
    federation = _ready(plan, data or _named(plan.data))
    number = int(node["partition-id"])
    if not 0 <= number < len(federation):
        raise EquipoiseError(f"partition-id must lie in 0 .. {len(federation) - 1}. Found {number}.")
    return Site(federation, federation.clients[number], number)


def _refuse_levels(federation: Federation) -> None:
    """Refuse a table with text columns, if no schema was agreed on: the server would be told what they hold."""
    schema = Schema.from_json(federation.schema)
    texts = [f"`{name}`" for name, levels in schema.columns.items() if levels is not None]
    texts += [f"`{schema.group}`"] * bool(schema.group)
    if texts:
        raise EquipoiseError(
            f"No schema was agreed on, so the server would be told the values of the text columns {join_words(texts, 12)}. "
            "Agree on a schema (equipoise deploy merge-schemas), or allow it with share-levels=true in --node-config."
        )


@functools.lru_cache(maxsize=1)  # a process that answers many messages loads the data once
def _named(text: str) -> Federation:
    return load_federation(text)


@functools.lru_cache(maxsize=4)
def _own(
    path: str,
    name: str,
    schema: str | None,
    size: int | None,
    label: str | None,
    ignore: str,
    target: str,
    group: str | None,
    drop_missing: bool,
) -> Federation:
    left_out = tuple(column.strip() for column in ignore.split(",") if column.strip())
    wanted = tuple(column.strip() for column in target.split(",") if column.strip())
    return own(
        path, site=name, schema=schema, image_size=size, label=label, ignore=left_out, target=wanted, group=group,
        drop_missing=drop_missing,
    )  # fmt: skip


def _ready(plan: Plan, federation: Federation) -> Federation:
    """The data, with validation data set aside if the method needs them."""
    return federation.with_validation() if plan.chosen.validates else federation


def _task(plan: Plan, site: Site, message: Message) -> tuple[Task, Federation, int]:
    """The task at this site, its data as those of one client among empty ones, and the number of that client."""
    said = wire.read_facts(message.content)
    number, sites = int(str(said["number"])), int(str(said["sites"]))
    federation = seat_site(site.federation, site.client, number, sites)
    training = plan.trained_as(federation.protocol.training)
    task = Task.build(
        plan.chosen, federation, model=plan.model, training=training, buffers=plan.buffers, seed=plan.seed,
        loss=parse_loss(plan.loss or federation.protocol.loss), metrics=tuple(split_list(plan.metrics)),
    )  # fmt: skip
    return task, federation, number


# --------------------------------------------------------------------------- answers
def _hello(plan: Plan, site: Site, message: Message, context: Context) -> Records:
    """Say who the site is, and what its data look like."""
    training = plan.trained_as(site.federation.protocol.training)
    about = describe_site(site.federation, site.client, training, site.number)
    about["notes"] = [withhold_values(name_settings(note)) for note in site.federation.notes]
    return {wire.FACTS: ConfigRecord({"about": json.dumps(about)})}


def _take_part(phase: Phase, plan: Plan, site: Site, message: Message, context: Context) -> Records:
    """Train, or report on the received model. A site that takes part for the first time makes its first state."""
    task, _, number = _task(plan, site, message)
    said = wire.read_facts(message.content)
    server = wire.unpack(message.content, task.layout, number)
    broadcast = make_broadcast(server, int(str(said["rounds"])), float(str(said["lr"])))
    before = int(str(said["counted"])) + 1
    state = _kept(plan, site, said, context)
    if state is None:
        state = client_round(plan.chosen, task, [number], broadcast, {}, plan.seed, "start")[1][number]
    replies, after = client_round(plan.chosen, task, [number], broadcast, {number: state}, plan.seed, phase)
    states = {before: state}
    if phase == "train":
        states[server.memory.round + 1] = after[number]
    _keep(plan, site, said, context, states)
    facts = ConfigRecord({"name": site.client.name, "round": server.memory.round})
    return {wire.FACTS: facts, **wire.pack_reply(replies, task.layout)}


def _score(plan: Plan, site: Site, message: Message, context: Context) -> Records:
    """Score the received model on the site's own test and training data, and on its validation data if it has some.

    A site that is held out of training scores the global model, on its test data.
    """
    task, federation, number = _task(plan, site, message)
    server = wire.unpack(message.content, task.layout, number)
    state = _kept(plan, site, wire.read_facts(message.content), context)
    states = {} if state is None else {number: state}
    if wire.read_facts(message.content).get("unseen"):
        scores = evaluate_unseen(plan.chosen, task, server, {}, federation, [site.client])
    else:
        models = list_models_at_home(plan.chosen, task)
        scores = evaluate(plan.chosen, task, server, states, federation, SCORED, models, [number], WITHHELD)
    by_split: dict[str, dict[str, float]] = {}
    for score in scores:
        by_split.setdefault(score.split, {})[score.metric] = score.value
    facts = ConfigRecord({"name": site.client.name, "round": server.memory.round})
    return {wire.FACTS: facts, **{split: MetricRecord(dict(values)) for split, values in by_split.items()}}


# --------------------------------------------------------------------------- the site's state
def _kept(plan: Plan, site: Site, said: ConfigRecord, context: Context) -> ClientState | None:
    """The site's state after the last of its rounds that counted; None if it has not begun, or has lost its state.

    The server may find that an answer came too late, when the site has trained already. Such a round must have no
    effect, so the state before the last round is kept beside the one after it. If the SuperNode was restarted, the
    state is read from disk.
    """
    rounds = int(str(said["counted"])) + 1
    if f"{KEPT}{rounds}" in context.state:
        return nest(wire.unpack_arrays(context.state, f"{KEPT}{rounds}"))
    root = _folder(plan, context)
    run, name = str(said["run"]), site.client.name
    return load_state(place_states(root, run, name), run, name, rounds) if root else None


def _keep(plan: Plan, site: Site, said: ConfigRecord, context: Context, states: Mapping[int, ClientState]) -> None:
    """Keep states by their number of rounds, first on disk: if that fails, the site sends an error and no answer."""
    root, run, name = _folder(plan, context), str(said["run"]), site.client.name
    if root and any(states.values()):  # most methods have nothing to keep
        store_states(place_states(root, run, name), run, name, states)
    for old in [key for key in context.state if key.startswith(KEPT)]:
        del context.state[old]
    for rounds, state in states.items():
        context.state[f"{KEPT}{rounds}"] = wire.pack_arrays(flatten(state))


def _folder(plan: Plan, context: Context) -> str:
    """The folder where this site keeps its states; empty: none."""
    return str(context.node_config.get("state", plan.site_state))
