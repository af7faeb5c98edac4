"""The tower split: cut a vision tower's `forward` into metadata (from the grid) and data (from the pixels)."""

from scaffold.tower.fit import conversion_of_pixels, made_of_pixels, misfits
from scaffold.tower.load import split_at_load
from scaffold.tower.parts import (
    Hazard,
    Kind,
    Parameter,
    TowerSlice,
    TowerSplit,
)
from scaffold.tower.proof import prove_split
from scaffold.tower.report import tower_report
from scaffold.tower.running import adapt
from scaffold.tower.slicing import METADATA_ARGUMENT, METADATA_METHOD, slice_tower
from scaffold.tower.splitting import split_tower
from scaffold.tower.tail import attention_leaves_rows, own_attention_leaves_rows

__all__ = [
    "METADATA_ARGUMENT",
    "METADATA_METHOD",
    "Hazard",
    "Kind",
    "Parameter",
    "TowerSlice",
    "TowerSplit",
    "adapt",
    "attention_leaves_rows",
    "conversion_of_pixels",
    "made_of_pixels",
    "misfits",
    "own_attention_leaves_rows",
    "prove_split",
    "slice_tower",
    "split_at_load",
    "split_tower",
    "tower_report",
]
