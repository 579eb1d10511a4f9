"""Models. Each returns `Outputs`; those with feature maps derive from `Staged`."""

from equipoise.models.adapt import adapt
from equipoise.models.catalogue import MODELS, build_model, find_builder
from equipoise.models.noise import Dropout, Noise
from equipoise.models.small import MLP
from equipoise.models.staged import Staged

__all__ = ["MLP", "MODELS", "Dropout", "Noise", "Staged", "adapt", "build_model", "find_builder"]
