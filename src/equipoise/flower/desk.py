"""The desk of a federation on Flower: it sends the server's messages to real sites, and collects their answers.

A site whose answer is late, an error or not valid is left out of the round, and the round's record says why. A site is
known by its name, not by Flower's node id: if it comes back as another node, it goes on where it was.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from equipoise.data import Federation
from equipoise.data.own import order_by_number
from equipoise.data.stand_in import About, build_stand_in, list_disagreements, list_groups, read_about
from equipoise.engine.checks import Answer, Checks, Expected, Refusal, admit
from equipoise.engine.desk import Heard, LoneDesk
from equipoise.engine.result import Rejection, RoundRecord
from equipoise.engine.runners import Errand
from equipoise.errors import EquipoiseError
from equipoise.flower import wire
from equipoise.flower.plan import Plan
from equipoise.flower.scores import check_scores
from equipoise.grammar import join_words
from equipoise.metrics import UNSEEN
from equipoise.rounds.evaluation import SCORED, Score
from equipoise.rounds.server import make_broadcast
from equipoise.runs.reading import AWAY, LATE
from equipoise.types import Broadcast, ClientState, Layout, Server

Read = TypeVar("Read")
POLL = 1.0  # seconds between two looks at which nodes are connected


@dataclass
class FlowerDesk(LoneDesk):
    """Reaches the sites. It knows which node is which site, and which round of each site counted last."""

    grid: Grid  # by which Flower reaches the nodes
    plan: Plan
    layout: Layout = Layout((), ())  # of the model's parameters; set once the model is built
    names: list[str] = field(default_factory=list)  # of the sites, in the order of their numbers
    unseen: int = 0  # how many of them, the last ones, are held out: they never train, and are only scored
    about: dict[str, About] = field(default_factory=dict)  # what each site said of itself
    nodes: dict[str, int] = field(default_factory=dict)  # the node id of each site
    refused: dict[int, Rejection] = field(default_factory=dict)  # nodes that cannot take part, and are not asked again
    called: dict[int, str] = field(default_factory=dict)  # what nodes that sent an error call themselves
    silent: set[int] = field(default_factory=set)  # nodes whose site did not answer the last message
    counted: dict[int, int] = field(default_factory=dict)  # the last round (from 0) of each site that counted
    run: str = ""  # the name by which sites know the run; it stays when another run of Flower's resumes it

    # ------------------------------------------------------------------ before the first round
    def assemble(self, on_note: Callable[[str], None] | None = None) -> Federation:
        """Wait for all sites, and build a federation without data from what they say of themselves.

        What is wrong at one site is said at once, by `on_note`. The run then waits for the other sites, so that the
        error by which it ends tells what is wrong at any of them.
        """
        deadline = time.monotonic() + self.plan.start_timeout
        said: set[str] = set()
        while True:
            found = self._greet()
            news = [text for one in found if (text := _tell(one)) not in said]
            said |= set(news)
            for text in news:
                if on_note:
                    on_note(text)
            mended = [node for node, one in self.refused.items() if one.client in self.about]
            wrong = [one for node, one in self.refused.items() if node not in mended]
            is_late = time.monotonic() > deadline
            if len(self.about) + len(wrong) >= self.plan.sites or is_late:
                in_the_way = wrong if len(self.about) < self.plan.sites else []  # without a place to fill, nobody is
                self._refuse([*in_the_way, *(one for one in found if one not in wrong)])
                return self._seat()
            time.sleep(POLL)

    def _refuse(self, wrong: Sequence[Rejection]) -> None:
        """End the run with one error that tells all that stands in its way, if anything does."""
        places, there = self.plan.sites, join_words(sorted(self.about)) or "none"
        mistakes = [_tell(one) for one in wrong]
        if len(self.about) > places:
            mistakes.append(f"{len(self.about)} sites came for {places} places: {there}. Set `sites`.")
        elif len(self.about) + len(wrong) < places:
            limit = f"{self.plan.start_timeout:g} s"
            mistakes.append(
                f"{len(self.about)} of {places} sites came within {limit}: {there}. Start the others, or set `sites`."
            )
        if differ := list_disagreements(dict(sorted(self.about.items()))):
            advice = (
                "Sites must agree: give all of them the same schema.json (equipoise deploy merge-schemas) and settings."
            )
            mistakes += [*differ, advice]
        if mistakes:
            raise EquipoiseError("\n- ".join(["The run cannot begin.", *mistakes]))

    def _seat(self) -> Federation:
        """Number the sites: by their parts of a data set that is dealt out, else in the order of their names."""
        numbers = {name: int(str(about["number"])) for name, about in self.about.items()}
        dealt = sorted(numbers.values()) == list(range(len(numbers)))
        self.names = sorted(self.about, key=lambda name: numbers[name] if dealt else order_by_number(name))
        return build_stand_in([self.about[name] for name in self.names])

    def seat_again(self, federation: Federation) -> None:
        """Number the sites as the run does: first those that train, then those that are held out."""
        self.names = [client.name for client in (*federation.clients, *federation.unseen)]
        self.unseen = len(federation.unseen)

    def _is_unseen(self, number: int) -> bool:
        return number >= len(self.names) - self.unseen

    # ------------------------------------------------------------------ what the loop over rounds calls
    def open(self, name: str, records: Sequence[RoundRecord]) -> str:
        """Begin a run under a random name, or go on with the run `name` after these rounds. Returns the name."""
        self.run = name or secrets.token_hex(8)
        for record in records:
            self.count(record.clients, record.round - 1)
        return self.run

    def count(self, clients: Sequence[int], round: int) -> None:
        """Note that this round of these sites counted. Their next message says so, and they go on from there."""
        self.counted |= dict.fromkeys(clients, round)

    def find_present(self, wanted: Sequence[int]) -> tuple[Sequence[int], list[Rejection]]:
        """Which of these sites are connected, and why the others are not.

        If too few are, it waits for more, at most for the time of a round.
        """
        needed = min(self.plan.min_sites or 1, len(wanted))
        deadline = time.monotonic() + self.plan.round_timeout
        refused: list[Rejection] = []
        while True:
            refused += [replace(one, why=_in_one_line(one.why)) for one in self._greet()]
            found = self._connected(wanted)
            if len(found) >= needed or time.monotonic() > deadline:
                away = [Rejection(self.names[k], AWAY) for k in wanted if k not in found]
                return found, [*away, *refused]
            time.sleep(POLL)

    def ask(self, errand: Errand, expected: Expected, checks: Checks) -> Heard:
        """Ask sites to do an errand, and return the answers that count.

        Nothing is sent in the phase `start`: sites keep their states themselves, and make the first one by themselves.
        """
        if errand.phase == "start" or not errand.clients:
            return Heard(None)
        trains = errand.phase == "train"

        def read(client: int, content: RecordDict) -> Answer:
            reports, buffers = wire.unpack_arrays(content, "reports"), wire.unpack_arrays(content, "buffers")
            update = wire.unpack_arrays(content, "update") if trains else None
            return Answer(client, errand.broadcast.round, reports, update, buffers)

        answers, refused = self._send(
            "train" if trains else f"train.{errand.phase}", errand.clients, errand.broadcast, read
        )
        replies, more = admit(answers, expected, checks)
        return Heard(replies, {}, [*refused, *(one._replace(why=f"{one.why}.") for one in more)])

    def score(
        self, server: Server, kept: Mapping[int, ClientState], states: Mapping[int, ClientState]
    ) -> tuple[Sequence[Score], list[Rejection]]:
        """Score the model at every connected site, on its own test data, and on its validation data if it has some.

        A site that did not answer its last message is left out: the server would only wait for it once more.
        """
        held = {k: self._count_scored(k) for k in range(len(self.names))}
        tested = [
            k
            for k in self._connected(range(len(self.names)))
            if any(held[k].values()) and self.nodes[self.names[k]] not in self.silent
        ]

        def read(client: int, content: RecordDict) -> list[Score]:
            name = self.names[client]
            domain = str(self.about[name]["domain"]) or name
            scores = []
            groups = len(list_groups(self.about[name]))
            for split, samples in held[client].items():
                if not samples:
                    continue
                values = content.metric_records.get(split)
                if values is None:
                    raise EquipoiseError(f"its {split} scores are missing.")
                told = check_scores(values, samples, groups)
                scores += [Score(name, domain, split, metric, value, samples) for metric, value in told.items()]
            return scores

        found, refused = self._send("evaluate", tested, make_broadcast(server, 0), read, server.evaluated)
        scores = [score for site in found for score in site]
        return scores, [Rejection(self.names[one.client], one.why) for one in refused]

    def _count_scored(self, number: int) -> dict[str, int]:
        """How many samples of each split a site scores. One that is held out scores its test data, or without any its
        training data."""
        counts: dict[str, int] = {split: int(str(self.about[self.names[number]][split])) for split in SCORED}
        return {UNSEEN: counts["test"] or counts["train"]} if self._is_unseen(number) else counts

    # ------------------------------------------------------------------ messages
    def _greet(self) -> list[Rejection]:
        """Ask new nodes who they are. Returns those that are refused, and why.

        Flower lists a node as connected for a while after it died. So a new node takes the place of an old one with the
        same name if the old one did not answer its last message, but never if it did: then the new node is refused
        for now, and asked again the next time. A node that is refused for another reason is not asked again.
        """
        present = set(self.grid.get_node_ids())
        strangers = sorted(present - set(self.nodes.values()) - set(self.refused))
        answers, silent = self._exchange("query.hello", {node: RecordDict() for node in strangers})
        mistakes = {node: why for node, why in silent.items() if why != LATE}
        rivals: dict[int, str] = {}
        for node, content in sorted(answers.items()):
            try:
                about = read_about(str(wire.read_facts(content)["about"]))
            except Exception as error:  # of any kind: no greeting may end the run
                mistakes[node] = f"it does not say which site it is. {wire.explain(error)}"
                continue
            name = str(about["name"])
            if self.nodes.get(name) in present - self.silent:
                rivals[node] = f"two nodes call themselves `{name}`. Name each with --node-config 'site=\"...\"'."
            elif self.names and name not in self.names:
                mistakes[node] = f"`{name}` is not one of the sites that the run began with."
            elif self.names and about != self.about[name]:
                mistakes[node] = f"the data of `{name}` are not those that the run began with."
            else:
                self.nodes[name] = node
                self.about[name] = about
        found = {node: Rejection(self.called.get(node) or f"node {node}", why) for node, why in mistakes.items()}
        self.refused |= found
        return [*(Rejection(f"node {node}", why) for node, why in rivals.items()), *found.values()]

    def _connected(self, numbers: Iterable[int]) -> list[int]:
        """Which of these sites are connected now."""
        here = set(self.grid.get_node_ids())
        return [k for k in numbers if self.nodes[self.names[k]] in here]

    def _send(
        self,
        kind: str,
        clients: Sequence[int],
        broadcast: Broadcast,
        read: Callable[[int, RecordDict], Read],
        evaluated: Tensor | None = None,
    ) -> tuple[list[Read], list[Refusal]]:
        """Send one message to each of these sites. Returns the answers as read, and the refusals, in order of sites."""
        node_of = {self.nodes[self.names[k]]: k for k in clients}
        contents = {}
        for node, k in node_of.items():
            facts = {"round": broadcast.round, "rounds": broadcast.rounds, "number": k, "sites": len(self.names)}
            facts["unseen"] = self._is_unseen(k)
            rate = {} if broadcast.lr is None else {"lr": broadcast.lr}
            said = ConfigRecord({**facts, **rate, "run": self.run, "counted": self.counted.get(k, -1)})
            contents[node] = RecordDict({wire.FACTS: said, **wire.pack(broadcast, self.layout, k, evaluated)})
        answers, silent = self._exchange(kind, contents)
        rejected = {node_of[node]: why for node, why in silent.items()}
        usable: dict[int, Read] = {}
        for node, content in answers.items():
            k = node_of[node]
            try:
                self._refuse_stranger(content, k, broadcast.round)
                usable[k] = read(k, content)
            except Exception as error:  # of any kind: no answer may end the run
                rejected[k] = wire.explain(error)
        rejected = {k: _in_one_line(why) for k, why in rejected.items()}
        return [usable[k] for k in sorted(usable)], [Refusal(k, rejected[k]) for k in sorted(rejected)]

    def _exchange(self, kind: str, contents: Mapping[int, RecordDict]) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Send messages, and wait for answers at most for the time of a round.

        Returns the answers by node, and why the other nodes have none. The first answer of a node counts.
        """
        if not contents:
            return {}, {}
        limit = self.plan.round_timeout
        messages = [Message(content, node, kind, ttl=limit) for node, content in contents.items()]
        answers: dict[int, RecordDict] = {}
        silent = dict.fromkeys(contents, LATE)
        spoke: set[int] = set()
        for reply in self.grid.send_and_receive(messages, timeout=limit):
            node = reply.metadata.src_node_id
            if node not in silent:
                continue
            if reply.has_error():
                silent[node] = wire.clean(reply.error.reason or f"error {reply.error.code}")
                continue
            said = reply.content.config_records.get(wire.FACTS, ConfigRecord())
            if wire.ERROR in said:
                silent[node] = wire.clean(str(said[wire.ERROR]))
                self.called[node] = wire.clean(str(said.get("name", "")))
                spoke.add(node)
                continue
            answers[node] = reply.content
            del silent[node]
        self.silent = self.silent - set(contents) | set(silent) - spoke
        return answers, silent

    def _refuse_stranger(self, content: RecordDict, client: int, r: int) -> None:
        """Refuse an answer that comes from another site, or belongs to another round."""
        said = wire.read_facts(content)
        if said["name"] != self.names[client]:
            raise EquipoiseError(f"it answered as {said['name']!r}.")
        if said["round"] != r:
            raise EquipoiseError(f"it answered round {int(str(said['round'])) + 1} in round {r + 1}.")


def _tell(one: Rejection) -> str:
    """Why a site cannot take part. Each of several mistakes has a line of its own."""
    return f"`{one.client}` cannot take part: " + one.why.replace("\n", "\n  ")


def _in_one_line(text: str) -> str:
    """A text for records and notes, which have one line for each site."""
    return " ".join(text.split())
