"""Codes of the tower stage: VCG450 to VCG469, and VCG640 to VCG649."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG450",
        "the tower's class or method is not there",
        "The tool looks for the tower's class in the model's module (`tower.class` in a descriptor), and for the "
        "method that takes pixels and grid in that class (`tower.entry`, `forward` by default; `--entry` of "
        "`vitcg-scaffold inspect`). The help lists what is there. A release may have renamed it. A descriptor need not "
        "name the class: without `tower.class` the tool takes the one that the model's `__init__` assigns. A layout "
        "without metadata names no tower: give `vitcg-scaffold inspect` MODULE:CLASS there.",
    ),
    Code(
        "VCG451",
        "a data or metadata parameter is missing or unnamed",
        "The slice needs to know which parameters of the tower follow the pixels (data), and which follow the grid "
        "(metadata). Name every parameter without a default as one of the two: `tower.data` and `tower.metadata` in a "
        "descriptor, `--data` and `--metadata` of `vitcg-scaffold inspect`.",
    ),
    Code(
        "VCG452",
        "control flow on metadata touches data",
        "A captured graph replays the operations of its capture. A branch or loop that depends on the grid and "
        "touches pixels would keep the capture's path for every replay. A loop over items can usually become one "
        "gather with an index that the grid gives.",
    ),
    Code(
        "VCG453",
        "metadata needs something that only data has",
        "The tool computes metadata from the grid alone, before the graph runs. A statement that also needs the shape "
        "of the pixels cannot move, and inside the graph that shape is the captured one. Take the number from "
        "metadata, for example the last entry of `cu_seqlens`.",
    ),
    Code(
        "VCG454",
        "metadata depends on a statement that stays",
        "A statement of the metadata reads a variable that the captured part defines, or one list collects values of "
        "both sides. Compute it earlier, in statements that depend on the grid only, or use one list for each side.",
    ),
    Code(
        "VCG455",
        "metadata is changed in place on the wrong side of the cut",
        "Values that cross the cut become fixed buffers of a captured graph. The captured part must not write into "
        "them, and a change after data has used them cannot move before that use. Write to a copy, or to a new "
        "variable.",
    ),
    Code(
        "VCG456",
        "a Python or numpy value crosses the cut",
        "A replay can refresh tensors only; a Python value freezes at capture. If a child module needs it, the tool "
        "splits the child's own `forward`. Otherwise compute a tensor from it before data uses it.",
    ),
    Code(
        "VCG457",
        "a child module that gets metadata cannot be split",
        "The child needs host values of the grid, so the tool has to split its `forward` like the tower's own. It "
        "could not, for the reason in this message.",
    ),
    Code(
        "VCG458",
        "the split of the tower cannot be written",
        "The slice is clean, but the tool cannot write its text safely. There is nothing to split, a name is taken, "
        "or an early exit needs values that only the moved part has. Or the tower builds cumulative offsets in a way "
        "that leaves no place to pad them. The message names the statement to change.",
    ),
    Code(
        "VCG459",
        "metadata is computed from padded offsets",
        "A warning. The port pads cumulative offsets with empty sequences, up to the captured number of sequences. A "
        "later statement reads them. Empty sequences at the end usually change nothing: check that this is so.",
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
        "The tower inherits the metadata method of another one and does not read what it gets. It looks split, but a "
        "captured graph would keep the metadata of its capture. Split this tower itself, or turn its encoder graphs "
        "off.",
    ),
    Code(
        "VCG462",
        "a stand-alone adapter cannot use the installed tower",
        "Where the installed tower has no metadata method, an adapter splits the tower before a manager is made "
        "for the model, and proves the move. The message says why it could not. The adapter changed nothing: the "
        "release's own class works on, and so does a port into a tree.",
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
