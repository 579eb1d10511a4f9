"""Files that tests write: images in folders, and in Parquet as on the Hugging Face hub."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from equipoise import Client, Federation, Protocol, Training
from equipoise.data.images import Images


def pixels(count: int, size: int = 8, colour: bool = False, seed: int = 0) -> np.ndarray:
    """Random images, uint8."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, size, size, 3) if colour else (count, size, size), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def image_table(images, labels, names=None, column="image", **columns) -> pa.Table:
    """A table with encoded images, a label column and the hub's description of them."""
    contents = [image if isinstance(image, bytes) else png(image) for image in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    encoded = pa.array([{"bytes": content, "path": None} for content in contents], kind)
    features = {column: {"_type": "Image"}}
    if names:
        features["label"] = {"names": list(names), "_type": "ClassLabel"}
    table = pa.table({column: encoded, "label": pa.array(labels), **columns})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write_images(path: Path, images, labels, names=None, column="image", **columns) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(image_table(images, labels, names, column, **columns), path)
    return path


def write_folder(root: Path, client: str, classes: dict[str, np.ndarray], suffix: str = ".png") -> None:
    """`<client>/<class>/<image>`."""
    for name, images in classes.items():
        folder = root / client / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(folder / f"{i:03d}{suffix}")


def images_federation(names=("a", "b", "c"), **preparation):
    x = torch.from_numpy(pixels(60, 8, colour=True).transpose(0, 3, 1, 2).copy())
    y = torch.arange(60) % 3
    parts = torch.arange(60).view(3, 20)
    clients = tuple(Client(n, p[:14], test=p[14:]) for n, p in zip("abc", parts, strict=True) if n in names)
    protocol = Protocol(2, 1.0, Training(batch=5, lr=0.05), "small_cnn(width=4)")
    return Federation("images", x, y, clients, ("r", "g", "b"), protocol, Images(**preparation))
