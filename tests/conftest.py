"""Real data comes from the folder that EQUIPOISE_DATA names, or from `shared/data` beside the checkout, if it is there."""

import os
import signal
from pathlib import Path

import pytest

os.environ.pop("COLUMNS", None)  # tables are as wide as a test says, not as the terminal that it was started in

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory):
    """A cache of this session's own, so that tests neither use nor change the user's."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a suite in the background: what it starts would ignore Ctrl-C, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = dict(os.environ)
    # One cache for all test processes of the session, whose folders lie side by side: images are decoded once.
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    os.environ["EQUIPOISE_CACHE"] = str((base.parent if parallel else base) / "cache")
    if not os.environ.get("EQUIPOISE_DATA") and BESIDE.is_dir():
        os.environ["EQUIPOISE_DATA"] = str(BESIDE)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _only_the_librarys_methods():
    """A method that a test registers is gone after it: others count the methods."""
    from equipoise.methods import METHODS

    known = set(METHODS)
    yield
    for name in set(METHODS) - known:
        del METHODS[name]


@pytest.fixture
def real_data():
    """The folder with the real data sets; without one, the test is skipped."""
    folder = os.environ.get("EQUIPOISE_DATA")
    if not folder:
        pytest.skip("needs real data: set EQUIPOISE_DATA to the folder that holds it")
    return Path(folder)


@pytest.fixture
def empty_data(tmp_path, monkeypatch):
    """An empty data folder and an empty cache."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("EQUIPOISE_DATA", str(folder))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return folder
