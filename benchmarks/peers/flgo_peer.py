"""Times FLGo on the benchmark's work: its default server and clients, one process."""

import importlib
import os
import sys
import tempfile
import time
import types

# FLGo imports torchvision for data sets that are not used here.
for missing in (
    "torchvision",
    "torchvision.transforms",
    "torchvision.datasets",
    "torchvision.utils",
    "torchvision.models",
):
    sys.modules[missing] = types.ModuleType(missing)

import warnings

warnings.simplefilter("ignore")
import flgo
import flgo.algorithm.fedavg as fedavg
import flgo.benchmark.partition as partition
from work import print_result, read_arguments

name, work, rounds = read_arguments()
here = os.path.dirname(os.path.abspath(__file__))
CONFIG = f"""
import sys
sys.path.insert(0, {here!r})
import torch
from work import WORK, draw_data, build_network
work = WORK[{name!r}]
x, y = draw_data(work)
train_data = torch.utils.data.TensorDataset(x.flatten(0, 1), y.flatten())
train_data.targets = y.flatten()
test_data = torch.utils.data.TensorDataset(x[0][:10], y[0][:10])
test_data.targets = y[0][:10]
def get_model():
    return build_network(work)
"""

seconds = []


class Server(fedavg.Server):
    def iterate(self):
        start = time.perf_counter()
        result = super().iterate()
        seconds.append(time.perf_counter() - start)
        return result


class Quiet(flgo.experiment.logger.BasicLogger):
    def log_once(self, *args, **kwargs):
        pass


class Timed:
    pass


Timed.Server, Timed.Client, Timed.__name__ = Server, fedavg.Client, "fedavg"

os.chdir(tempfile.mkdtemp())
open("config_work.py", "w").write(CONFIG)
flgo.gen_benchmark_from_file("work_task", "config_work.py", target_path=".")
sys.path.insert(0, os.getcwd())
task = importlib.import_module("work_task")
task.visualize = None  # a plot of 1,000 clients would take minutes
# What newer releases of torch ask of a subset with its own __getitem__.
dataset = importlib.import_module("work_task.core").TaskPipe.TaskDataset
dataset.__getitems__ = lambda self, indices: [self[i] for i in indices]
flgo.gen_task_by_(task, partition.IIDPartitioner(num_clients=work.clients), "./task")
option = {
    "num_rounds": rounds + 1, "num_epochs": work.epochs, "batch_size": work.batch, "learning_rate": work.lr,
    "proportion": work.cohort / work.clients, "gpu": [], "eval_interval": 10**9, "train_holdout": 0.0,
    "log_file": False, "no_log_console": True, "sample": "uniform",
}  # fmt: skip
flgo.init("./task", Timed, option=option, Logger=Quiet).run()
print_result(seconds)
