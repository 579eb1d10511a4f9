"""Transforms of whole batches, against the same thing done image by image."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from equipoise import run
from equipoise.data.images import IMAGENET, Images, add_colour, crop, flip, resize
from kit.files import images_federation, pixels

X = torch.from_numpy(pixels(9, 12, colour=True).transpose(0, 3, 1, 2).copy())


def test_crops_are_windows_of_the_padded_image():
    across, down = torch.linspace(0, 0.999, 9), torch.linspace(0.999, 0, 9)
    found = crop(X, 4, across, down)
    for i in range(9):
        padded = F.pad(X[i], (4, 4, 4, 4))
        row, column = int(down[i] * 9), int(across[i] * 9)
        assert torch.equal(found[i], padded[:, row : row + 12, column : column + 12])
    assert found.shape == X.shape
    middle = torch.full((9,), 0.5)
    assert torch.equal(crop(X, 4, middle, middle), X)


def test_every_offset_is_as_likely():
    draws = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount((draws * 9).long(), minlength=9)
    assert counts.min() > 2000  # 2,222 expected


def test_flips():
    draw = torch.tensor([0.49, 0.5] * 4 + [0.0])
    found = flip(X, draw)
    assert torch.equal(found[0], X[0].flip(-1))
    assert torch.equal(found[1], X[1])


@pytest.mark.parametrize("size", [5, 12, 20, 32])
@pytest.mark.parametrize("colour", [True, False])
def test_resizing_is_what_pillow_does(size, colour):
    images = pixels(6, 12, colour)
    batch = torch.from_numpy(images.transpose(0, 3, 1, 2).copy() if colour else images[:, None].copy())
    found = resize(batch, size)
    assert found.dtype == torch.uint8
    for i, image in enumerate(images):
        expected = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)).astype(int)
        ours = found[i].permute(1, 2, 0).squeeze(-1).numpy().astype(int)
        assert np.abs(ours - expected).max() <= 1


def test_oblong_images_become_squares():
    tall = torch.from_numpy(pixels(1, 16)[:, :, :9].copy())[:, None]
    expected = np.asarray(Image.fromarray(tall[0, 0].numpy()).resize((8, 8), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resize(tall, 8)[0, 0].numpy().astype(int) - expected).max() <= 1


def test_grey_to_colour():
    grey = X[:, :1]
    assert torch.equal(add_colour(grey)[:, 2], grey[:, 0])
    assert add_colour(X) is X


def test_normalisation():
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in IMAGENET)
    found = Images(*IMAGENET).evaluation(X)
    torch.testing.assert_close(found, (X.float() / 255 - mean) / std, rtol=1e-5, atol=1e-5)
    per_pixel = Images(torch.rand(3, 12, 12), 0.5 + torch.rand(3, 12, 12))
    expected = (X.float() / 255 - per_pixel.mean) / per_pixel.std
    torch.testing.assert_close(per_pixel.evaluation(X), expected, rtol=1e-4, atol=1e-5)
    assert Images().evaluation(X).max() <= 1
    assert X.dtype == torch.uint8  # left as it is


@pytest.mark.parametrize(("pad", "flip", "draws"), [(0, False, 0), (2, False, 2), (0, True, 1), (2, True, 3)])
def test_the_number_of_draws(pad, flip, draws):
    prepared = Images(pad=pad, flip=flip)
    assert prepared.draws == draws
    x = prepared.training(X, torch.full((9, draws), 0.5))
    torch.testing.assert_close(x, prepared.evaluation(X))  # the middle, and no flip


def test_augmentation_depends_on_seed_round_and_client_alone():
    federation = images_federation(pad=2, flip=True)
    one, many = (run("fedavg", federation, runner=runner) for runner in ("inline", "vectorised"))
    torch.testing.assert_close(one.server.theta, many.server.theta, rtol=1e-4, atol=1e-6)
    assert torch.equal(one.server.theta, run("fedavg", federation, runner="inline").server.theta)
    assert not torch.equal(one.server.theta, run("fedavg", federation, runner="inline", seed=1).server.theta)
    plain = run("fedavg", images_federation(), runner="inline")
    assert not torch.allclose(one.server.theta, plain.server.theta, atol=1e-4)


def test_uint8_pools_work_throughout():
    federation = images_federation(pad=1)
    assert federation.x.dtype == torch.uint8
    assert federation.input_shape == (3, 8, 8)
    assert federation.example().dtype == torch.float32
    for method in ("eagle(lstar_epochs=2)", "fedequilibria(fim_scale='l2')", "f2dc(hidden=4)", "centralised"):
        assert set(run(method, federation, rounds=1).values()) == {"a", "b", "c"}
