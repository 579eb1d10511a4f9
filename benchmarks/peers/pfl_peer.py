"""Times pfl-research on the benchmark's work: its simulated backend, one process."""

import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from work import build_network, draw_data, print_result, read_arguments


class Network(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

    def loss(self, x, y, is_eval=False):
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        return {"accuracy": Weighted((self(x).argmax(1) == y).sum().item(), len(y))}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.seconds, self.last = [], time.perf_counter()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now
        return False, type(aggregate_metrics)()


name, work, rounds = read_arguments()
x, y = draw_data(work)
np.random.seed(0)
users = FederatedDataset(
    lambda user: Dataset(raw_data=[x[user], y[user]], user_id=user, metadata={}),
    get_user_sampler("random", list(range(work.clients))),
)
net = Network(build_network(work))
model = PyTorchModel(
    model=net,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
)
clock = Clock()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(rounds + 1, 10**9, work.cohort, None),
    backend=SimulatedBackend(training_data=users, val_data=users),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
)
print_result(clock.seconds)
