"""The tower split: cut a vision tower's `forward` into metadata (from the grid) and data (from the pixels)."""

from scaffold.tower.model import Crossing, Hazard, Kind, Label, Place, TowerSlice
from scaffold.tower.slicing import slice_tower

__all__ = ["Crossing", "Hazard", "Kind", "Label", "Place", "TowerSlice", "slice_tower"]
