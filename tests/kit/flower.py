"""Flower's grid without a network: messages are serialised, read again, and given to the site's app in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Fault = Callable[[Message, Message], Message | None]  # (asked, answer) -> what arrives


def over_the_wire(message: Message) -> Message:
    """As the other side reads it."""
    proto = ProtoMessage()
    proto.ParseFromString(message_to_proto(message).SerializeToString())
    return message_from_proto(proto)


class LoopGrid(Grid):
    def __init__(self, app: ClientApp, nodes: Mapping[int, Mapping[str, object]], fault: Fault | None = None) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            1,
            1,
            1,
        )  # a private name of Flower's: here only
        self.app, self.fault = app, fault
        self.contexts = {node: Context(1, node, dict(config), RecordDict(), {}) for node, config in nodes.items()}
        self.kinds: list[str] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for asked in messages:
            self.kinds.append(asked.metadata.message_type)
            node = asked.metadata.dst_node_id
            if node not in self.contexts:
                continue
            answer = over_the_wire(self.app(over_the_wire(asked), self.contexts[node]))
            arrived = self.fault(asked, answer) if self.fault else answer
            replies += [] if arrived is None else [arrived]
        return reversed(replies)  # the order of arrival must not matter

    def replace(self, node: int, other: int) -> None:
        """A site comes back under another node id, with nothing but its configuration."""
        old = self.contexts.pop(node)
        self.contexts[other] = Context(1, other, dict(old.node_config), RecordDict(), {})

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, *args: object, **more: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
