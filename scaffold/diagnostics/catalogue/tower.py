"""Codes of the tower stage: VCG450 to VCG469, and VCG640 to VCG649."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG450",
        "the tower's class or method is not there",
        "The tower is found by its class in the model's module and by its entry method (`forward` unless the "
        "descriptor says otherwise). Look the name up in the tree: it may have been renamed between releases.",
    ),
    Code(
        "VCG451",
        "a data or metadata parameter is missing or unnamed",
        "Slicing needs to know which parameters of the tower follow the pixels (data) and which follow the grid "
        "(metadata). Every parameter without a default must be one of the two.",
    ),
    Code(
        "VCG452",
        "control flow on metadata touches data",
        "A captured graph replays the operations of the capture: a branch or loop that depends on the grid and "
        "touches pixels would keep the capture's path for every replay. Per-item loops over data can usually be "
        "replaced by one gather with an index that is built from the grid.",
    ),
    Code(
        "VCG453",
        "metadata needs something that only data has",
        "Metadata is computed from the grid alone, before the graph runs. A statement that also needs the shape of the "
        "pixels cannot move, and in the captured part that shape is the captured one. The same number can often be had "
        "from metadata, for example the last entry of `cu_seqlens`.",
    ),
    Code(
        "VCG454",
        "metadata depends on a statement that stays",
        "A statement of the metadata reads a variable that the captured part defines, or one list collects values "
        "of both sides. Compute it before, in statements that depend on the grid only.",
    ),
    Code(
        "VCG455",
        "metadata is changed in place on the wrong side of the cut",
        "Crossing values become fixed buffers of a captured graph. Writing into them from the captured part corrupts "
        "the buffer; changing them after data has used them cannot be moved before that use.",
    ),
    Code(
        "VCG456",
        "a Python or numpy value crosses the cut",
        "Only tensors can be refreshed between replays; a Python value is frozen at capture. If a child module needs "
        "it, the child's own `forward` must be split; otherwise compute a tensor from it before data uses it.",
    ),
    Code(
        "VCG457",
        "a child module that gets metadata cannot be split",
        "The child needs host values of the grid, so its `forward` has to be split like the tower's own, and that was "
        "refused for the reason given with this message.",
    ),
    Code(
        "VCG458",
        "the split of the tower cannot be written",
        "The slice is clean but its text is not safe to write: there is nothing to split, a name is taken, an early "
        "exit needs values that only the moved part has, or cumulative offsets are built in a way that leaves no place "
        "to pad them. The message names the statement to change.",
    ),
    Code(
        "VCG459",
        "metadata is computed from padded offsets",
        "Cumulative offsets are padded with empty sequences to the captured number of sequences. A later statement "
        "reads them; empty sequences at the end usually change nothing, but look at it.",
    ),
    Code(
        "VCG460",
        "the captured part would still depend on the grid's values on the host",
        "Some operation that stays in `forward`, or in a child module that it calls, turns metadata into a host "
        "value: a branch, a loop, a size, a `.tolist()`. A captured graph would keep the value of the capture. The "
        "message names the line and the calls that lead to it.",
    ),
    Code(
        "VCG461",
        "the tower takes metadata and ignores it",
        "A tower that inherits the metadata method of another one and does not read what it is given looks split, but "
        "a captured graph would keep the metadata of the capture in it.",
    ),
    Code(
        "VCG462",
        "a stand-alone adapter cannot use the installed tower",
        "Where the installed tower has no metadata method, an adapter splits it when the model is made, from the "
        "source of the class that runs, with the proof that statements were moved and none was changed. The message "
        "says what stood against it. Nothing was changed; the release's own class, or a port into a tree, still works.",
    ),
    Code(
        "VCG640",
        "the split of the tower is not a pure move",
        "After writing the split, every statement of the old `forward` must be found again, unchanged and in order, "
        "in the metadata method or in the new `forward`. One is not: the tool refuses its own result.",
    ),
    Code(
        "VCG641",
        "the split of the tower added something that could change eager",
        "Around the moved statements only padding, overrides, device placement and reads of the metadata may stand, "
        "each without effect when no capacity is given.",
    ),
    Code(
        "VCG642",
        "the split of the tower changed something else",
        "Everything outside of the split methods must be as it was.",
    ),
)
