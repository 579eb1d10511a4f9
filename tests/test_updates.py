import pytest
import torch

from equipoise.updates import CHUNK, Updates, gram, products


@pytest.fixture
def rows():
    return torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_gram_accumulates_in_float64_over_chunks():
    wide = torch.randn(3, CHUNK // 2, generator=torch.Generator().manual_seed(0))
    exact = wide.double() @ wide.double().T
    assert torch.allclose(gram(wide), exact, rtol=1e-12)
    assert torch.allclose(products(wide, wide[0]), exact[0], rtol=1e-12)


def test_coefficients_stand_for_the_product(rows):
    C = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    updates = Updates(rows).with_coefficients(C)
    shaped = C @ rows
    w = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert torch.allclose(updates.shaped, shaped)
    assert torch.allclose(updates.gram, shaped @ shaped.T)
    assert torch.allclose(updates.norms(), shaped.norm(dim=1))
    assert torch.allclose(updates.combine(w), w @ shaped)
    assert torch.allclose(updates.with_coefficients(C).shaped, C @ shaped)


def test_the_gram_matrix_is_computed_once(rows, monkeypatch):
    import equipoise.updates as module

    calls = []
    monkeypatch.setattr(module, "gram", lambda *given: calls.append(1) or gram(*given))
    updates = Updates(rows)
    shaped = updates.with_coefficients(updates.gram)
    _ = shaped.gram, shaped.norms(), shaped.gram
    assert len(calls) == 1


def test_a_mask_leaves_entries_out(rows):
    mask = rows > 0
    updates = Updates(rows).with_mask(mask)
    w = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert torch.allclose(updates.norms(), (rows * mask).norm(dim=1))
    assert torch.allclose(updates.squared_norms(slice(0, 10)), (rows * mask)[:, :10].square().sum(1))
    assert torch.allclose(updates.combine(w), w @ (rows * mask))
    assert torch.allclose(updates.gram, (rows * mask) @ (rows * mask).T)


def test_masks_and_coefficients_combine_in_both_orders(rows):
    C = torch.eye(4, dtype=torch.float64) + 0.1
    mask = rows > 0
    first_mask = Updates(rows).with_mask(mask).with_coefficients(C)
    assert torch.allclose(first_mask.rows, C @ (rows * mask))
    first_project = Updates(rows).with_coefficients(C).with_mask(mask)
    assert torch.allclose(first_project.shaped, (C @ rows) * mask)
