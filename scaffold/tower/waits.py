"""Names of what waits for the GPU: the one table that cuts and the interpreter of towers read."""

from __future__ import annotations

from typing import Final

#: Methods of a tensor whose result is on the host, and why no graph holds them.
ON_HOST: Final = {
    "tolist": "copies a tensor to the host and bakes its values into the graph",
    "item": "waits for the device and bakes the value into the graph",
    "cpu": "copies a tensor to the host",
    "numpy": "needs a host tensor; its values are baked into the graph",
}

#: Methods and functions that wait for values, because the shape of their result depends on these.
SIZED_BY_VALUES: Final = frozenset(
    {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount", "histc"}
)

WAITS: Final = frozenset({*ON_HOST, *SIZED_BY_VALUES})
