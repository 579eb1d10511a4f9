"""Pictures of federations: drawn for every kind, with one bar a client and one colour a class."""

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from equipoise import EquipoiseError, Federation, load_federation
from equipoise.data.plots import _bars, _of_every_class, _rows, draw
from kit.files import images_federation


def many(clients, classes):
    y = torch.arange(2 * classes) % classes
    data = {f"c{k}": (torch.rand(len(y), 1, 6, 6), y) for k in range(clients)}
    return Federation.from_tensors(data, classes=classes)


@pytest.mark.parametrize(
    "make", [lambda: load_federation("gaussians"), images_federation, lambda: many(60, 3), lambda: many(3, 30)]
)
def test_every_kind_is_drawn(make, tmp_path):
    path = draw(make(), tmp_path / "deep" / "p.png")
    with Image.open(path) as picture:
        assert min(picture.size) > 300
        assert len(set(picture.convert("L").resize((60, 60)).tobytes())) > 10  # not blank


def test_bars_are_as_long_as_the_clients_are_large():
    federation = load_federation("scanners")
    figure = Figure()
    _bars(federation, figure)
    (axes,) = figure.axes
    widths = torch.tensor([[bar.get_width() for bar in group] for group in axes.containers])  # [classes, clients]
    assert torch.equal(widths.T.long(), federation.class_counts())
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [c.name for c in federation.clients]


def test_samples_show_every_class_of_every_domain():
    federation = load_federation("scanners")
    rows = _rows(federation)
    assert [title for title, _ in rows] == list(federation.domains)
    for title, positions in rows:
        held = set(torch.cat([c.train for c in federation.clients if c.domain == title]).tolist())
        assert set(positions) <= held
        assert len({int(federation.y[p]) for p in positions}) == len(positions)
    assert _of_every_class(torch.tensor([3, 1]), torch.tensor([0, 5, 0, 5]), 6) == [3, 1]
    assert {title for title, _ in _rows(many(20, 3))} == {""}


def test_a_picture_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(EquipoiseError, match=r"Cannot write the picture .*Choose another --out"):
        draw(load_federation("gaussians"), blocked / "p.png")
