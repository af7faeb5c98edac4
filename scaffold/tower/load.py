"""Splits the tower of the installed vLLM when a model is adapted: what an adapter does about a pristine tower.

An adapter is generated without a tree and carries none of vLLM's statements. So the statements come from the class that
runs: its module is sliced and split like that of a tree, the split is proven, and the result becomes a subclass of the
tower's class, which this one tower gets. Other models keep the class as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from scaffold.diagnostics import DiagnosticError
from scaffold.tower.fit import made_of_pixels, misfits
from scaffold.tower.proof import prove_split
from scaffold.tower.running import Replaced, compiled, edited_files, give_methods, refused, subclass, tree_of
from scaffold.tower.slicing import METADATA_METHOD, slice_tower
from scaffold.tower.source import Program
from scaffold.tower.splitting import split_tower


def split_at_load(
    tower: Any,
    *,
    entry: str = "forward",
    data: str,
    metadata: Sequence[str],
    keys: Sequence[str],
    parameters: Sequence[str],
    names: Mapping[str, str] = MappingProxyType({}),
    lengths: Sequence[str] = (),
    grid: str | None = None,
    pixels: tuple[Any, str] | None = None,
) -> None:
    """Give `tower` a metadata method, unless its class has one.

    `data` and `metadata` are names of the parameters of `entry`; `keys` and `parameters` are what the caller will ask
    of the metadata method, and `names` the variables whose keys are called otherwise. Raises `DiagnosticError` VCG462
    when the class's source is not there, is not what runs, cannot be split, or when its split is not proven; `tower` is
    as it was then.

    The last three are for a tower of which an adapter knows nothing, so that it is read here as in a tree: `lengths`
    that it may have, the form of its `grid`, and the model's class and attribute that hand it `pixels` as they come.
    """
    owner: Any = type(tower)
    fit = None
    if pixels is not None and grid is not None:
        model, attribute = pixels
        _require_pixels(model, attribute)
        fit = tuple(lengths), tuple(parameters), grid
    replaced: tuple[Replaced, ...] = ()
    if fit is not None or getattr(owner, METADATA_METHOD, None) is None:
        frames = "max_batch_size" not in parameters
        replaced = _split(owner, (entry, data, tuple(metadata), tuple(names.items())), tuple(keys), fit, frames)
    _require_parameters(subclass(owner, replaced), parameters)
    give_methods(tower, replaced)


@cache
def _split(
    owner: type[Any],
    asked: tuple[str, str, tuple[str, ...], tuple[tuple[str, str], ...]],
    keys: tuple[str, ...],
    fit: tuple[tuple[str, ...], tuple[str, ...], str] | None,
    frames: bool,
) -> tuple[Replaced, ...]:
    """The methods of the proven split, compiled in the namespaces of the modules that they come from.

    None where the class has a metadata method. `frames`: the main sequences are frames, not items. With `fit` the tower
    is read: lengths, parameters, the form of the grid.
    """
    tree, file = tree_of(owner)
    entry, data, metadata, names = asked
    has_method = getattr(owner, METADATA_METHOD, None) is not None
    try:
        found = slice_tower(tree, file, owner.__name__, entry=entry, data=(data,), metadata=metadata, names=dict(names))
        split = None if has_method and found.already_split else split_tower(found, frames=frames)
        if fit is not None:
            lengths, wanted, grid = fit
            takes = found.method_parameters if split is None else split.method_parameters
            unfit = misfits(found, takes, keys=keys, lengths=lengths, wanted=wanted, grid=grid)
            if unfit:
                raise refused(owner, "; ".join(unfit))
        if split is None or has_method:
            return ()
        missing = sorted(set(keys) - set(found.keys))
        if missing:
            raise refused(owner, f"its split has no metadata named {', '.join(missing)}")
        files = edited_files(tree, split.edits)
        problems = [item for name, texts in files.items() for item in prove_split(*texts, split, name)]
        if problems:
            raise DiagnosticError(problems)
    except DiagnosticError as error:
        if error.diagnostics[0].code == "VCG462":
            raise
        raise refused(owner, "its source has no split that is proven", *error.diagnostics) from None
    return tuple(compiled(owner, tree, edit, files[edit.file][1]) for edit in split.edits)


@cache
def _require_pixels(owner: type[Any], tower: str) -> None:
    tree, file = tree_of(owner)
    program = Program(tree)
    made = made_of_pixels([node for _, node in program.lineage(program.owner(file, owner.__name__))], tower)
    if made:
        raise refused(owner, f"it makes {' or '.join(sorted(made))} of pixels before its tower gets them")


def _require_parameters(owner: type[Any], wanted: Sequence[str]) -> None:
    taken = inspect.signature(getattr(owner, METADATA_METHOD)).parameters
    missing = [name for name in wanted if name not in taken]
    if missing:
        raise refused(owner, f"its {METADATA_METHOD} takes no {', '.join(missing)}")
