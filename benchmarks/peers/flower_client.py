"""Flower's client app. It is a module of its own, so that an actor keeps its data between messages."""

import os

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from work import WORK, build_network, draw_data

app = ClientApp()
held = {}


@app.train()
def train(message, context):
    torch.set_num_threads(1)
    work = WORK[os.environ["EQUIPOISE_WORK"]]
    if not held:
        held["x"], held["y"] = draw_data(work)
        held["net"] = build_network(work)
    client = int(context.node_config["partition-id"])
    x, y, net = held["x"][client], held["y"][client], held["net"]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        for index in torch.randperm(len(y)).split(work.batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})})
    return Message(content=content, reply_to=message)
