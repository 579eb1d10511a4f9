"""Studies that several machines share: shards, and a cluster's queue."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from equipoise import EquipoiseError
from equipoise.data import load_federation
from equipoise.runs.reading import read
from equipoise.study.jobs import Job, list_jobs
from equipoise.study.shards import Shard
from equipoise.study.slurm import FOLDER, Queue, submit
from kit.command import equipoise, invoke

METHODS = ["fedavg", "fedheal", "local_only"]


@pytest.mark.parametrize(("items", "count"), [(7, 3), (2, 5), (1, 1), (12, 4)])
def test_every_run_is_in_exactly_one_shard(items, count):
    shares = [Shard(number, count).take(range(items)) for number in range(1, count + 1)]
    assert sorted(item for share in shares for item in share) == list(range(items))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_shard_that_cannot_be(text):
    with pytest.raises(EquipoiseError, match=r"--shard must be i/n with i from 1 to n, such as 2/8"):
        Shard.parse(text)


def test_shards_are_for_studies():
    with pytest.raises(EquipoiseError, match="--shard and --slurm are for studies of several runs"):
        invoke("run", "gaussians", "--shard", "1/2")
    with pytest.raises(EquipoiseError, match="leave --shard out, or --slurm"):
        invoke("compare", "gaussians", "--methods", "fedavg", "--shard", "1/2", "--slurm")


def test_a_queue_in_submitits_words():
    asked = Queue(partition="gpu", minutes=30, memory=8, cpus=4, gpus=1).list_parameters()
    assert asked == {
        "name": "equipoise", "timeout_min": 30, "cpus_per_task": 4, "gpus_per_node": 1, "mem_gb": 8,
        "slurm_partition": "gpu", "slurm_signal_delay_s": 90,
    }  # fmt: skip
    with pytest.raises(EquipoiseError, match="`slurm_minutes` must be at least 1"):
        Queue(minutes=0)


def test_without_a_cluster_the_user_is_told(tmp_path):
    if shutil.which("srun"):
        pytest.skip("there is a Slurm cluster here")
    with pytest.raises(EquipoiseError, match=r"Is this a machine of a Slurm cluster .* --slurm-here"):
        submit([Job("fedavg", "gaussians", rounds=1)], tmp_path, Queue())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_shards_make_the_same_runs_and_the_same_page(tmp_path):
    words = ("compare", "gaussians", "--methods", "fedavg", "--seeds", "2", "--rounds", "2", "--workers", "1")
    whole = equipoise(*words, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    for number in (1, 2):
        done = equipoise(*words, "--out", f"shard{number}", "--shard", f"{number}/2", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"Shard {number}/2: 2 of its 2 runs are finished" in " ".join(done.stdout.split())
        assert not (tmp_path / f"shard{number}" / "report.html").exists()  # it would show half of the study
    names = {place.name for place in (tmp_path / "whole").glob("gaussians-*")}
    parts = [{place.name for place in (tmp_path / f"shard{n}").glob("gaussians-*")} for n in (1, 2)]
    assert parts[0] | parts[1] == names
    assert not parts[0] & parts[1]
    for name in names:
        place = next(tmp_path.glob(f"shard*/{name}"))
        assert (read(place).curve()[1] == read(tmp_path / "whole" / name).curve()[1]).all()
        shutil.copytree(tmp_path / "whole" / name, place, dirs_exist_ok=True)  # the same seconds, which a page shows
    pages = []
    for folders in (("whole",), ("shard1", "shard2")):
        done = equipoise("report", *folders, "-o", "page/report.html", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        pages.append({file.name: file.read_bytes() for file in (tmp_path / "page").iterdir()})
        shutil.rmtree(tmp_path / "page")
    assert pages[0] == pages[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the job's process in /proc")
def test_a_job_that_is_cut_off_is_queued_again_and_goes_on(tmp_path):
    """The queue's signal before a time limit, with submitit's own executor for one machine."""
    data = load_federation("scanners")
    todo = list_jobs(["fedheal"], data, [0], Job(dataset="scanners", rounds=60, eval_every=20))
    (job,) = submit(todo, tmp_path, Queue(jobs=1, cpus=1, is_here=True, minutes=20))
    checkpoints = tmp_path / ".checkpoints"
    end = time.monotonic() + 200
    while not list(checkpoints.glob("*/round-*")) and time.monotonic() < end:
        time.sleep(0.2)
    assert list(checkpoints.glob("*/round-*")), job.stderr()
    (task,) = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
    os.kill(int(task), signal.SIGUSR2)
    assert job.result() == []  # nothing failed
    assert "Requeued job" in "".join(file.read_text() for file in (tmp_path / FOLDER).glob("*_log.*"))
    (place,) = tmp_path.glob("scanners-fedheal-*")
    found = read(place)
    assert found.is_finished
    assert not list(checkpoints.glob("*/round-*"))
