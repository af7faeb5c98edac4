"""Codes of the numeric lab (`scaffold.verify.numeric`): VCG650 and above."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG650",
        "a replayed graph returns other embeddings than eager execution",
        "The release's own manager, on emulated CUDA graphs, was compared with `embed_multimodal` of the pristine tree "
        "and differs in values, shapes or number of items. The check's name says which budgets, sizes and modality: a "
        "failure only after larger items points at a buffer that keeps old values, for reversed items at offsets or "
        "order, one for a single modality at its pixel and size keys.",
    ),
    Code(
        "VCG651",
        "eager execution changed",
        "Splitting a tower may not change what it computes: eager embeddings must stay bit-identical to the pristine "
        "tree's. A statement was probably moved across an assignment that it depends on.",
    ),
    Code(
        "VCG652",
        "the captured forward reads device memory from the host",
        "`.item()`, `.tolist()`, `nonzero`, boolean indexing and shapes that depend on data stop a CUDA graph capture. "
        "The report names the line. Compute the value in the metadata, before the replay, and pass it as a buffer.",
    ),
    Code(
        "VCG653",
        "device and host memory are mixed",
        "A tensor was copied from the host while a graph was captured, or host and device tensors met in one operator. "
        "Create the tensor on the model's device beforehand; only scalars that kernels take by value stay on the host.",
    ),
    Code(
        "VCG654",
        "the changed tree raised in the lab",
        "The changed files were imported, built, captured or executed with the release's own classes and raised. The "
        "last lines of the traceback are in the notes.",
    ),
    Code(
        "VCG655",
        "the lab gave no result in time",
        "A child process was stopped at its time limit: a loop that waits for data, or a slow machine.",
    ),
    Code(
        "VCG656",
        "the pristine tree does not run in the lab",
        "The lab could not import the release or build the model without the change. Install the `cpu` extra (`pip "
        "install 'vitcg-scaffold[cpu]'`); a release newer than the lab may need a new trick in "
        "`scaffold/verify/numeric/cpu_imports.py`.",
    ),
    Code(
        "VCG657",
        "items that fit a budget were not replayed",
        "Right values are not enough: a port that always runs eagerly proves nothing about its graphs. Either the "
        "configuration does not list the modality, or token counts are wrong, or nothing was compared at all.",
    ),
    Code(
        "VCG658",
        "a result aliases graph memory",
        "An embedding was right when it was returned and changed when later items were encoded: it is a view of the "
        "graph's output buffer. Clone what is cut out of it.",
    ),
    Code(
        "VCG659",
        "the lab has no recipe for the model",
        "A recipe builds the model's real vision classes with tiny sizes. Write one under "
        "`scaffold/verify/numeric/recipes/`, or rely on the structural proofs alone.",
    ),
    Code(
        "VCG660",
        "precomputed embeddings are not passed through",
        "Requests may carry `image_embeds` instead of pixels. The runner hands them to the manager as well, so the "
        "generated methods must return them as `embed_multimodal` does.",
    ),
    Code(
        "VCG661",
        "the captured forward shards its input over ranks",
        "With `mm_encoder_tp_mode=data` the manager distributes items itself. A forward that calls "
        "`run_dp_sharded_vision_model` gathers again on every replay, with per-rank replay counts: it hangs.",
    ),
    Code(
        "VCG662",
        "a short context stops the start-up",
        "When one item has more tokens than the scheduler takes in one batch, the minimum budget exceeds the maximum "
        "and the manager raises. Clamp the minimum; such items then run eagerly.",
    ),
    Code("VCG663", "an overlay path leaves the tree", "Replaced files are named relative to the root of the tree."),
    Code(
        "VCG664",
        "the change renames or reshapes parameters",
        "Weights of the pristine model are loaded strictly into the changed one, so that checkpoints keep loading. "
        "Metadata must be buffers that are not persistent, or plain tensors.",
    ),
    Code(
        "VCG665",
        "an attention sequence of negative length was replayed",
        "The tail of cumulative offsets was filled with zeros instead of the last offset. The reference kernel skips "
        "such a sequence; FlashAttention 3 on a GPU computes wrong rows from it.",
    ),
    Code(
        "VCG666",
        "more video frames than the capacity raise",
        "A batch may fit the token budget and still have more frames than the graph has attention sequences for. It "
        "must run eagerly then; a copy into a buffer that is too short raises in the middle of serving.",
    ),
    Code(
        "VCG668",
        "no recipe can be made automatically",
        "The model has no shipped recipe, and the lab could not build it small by itself, or its results there could "
        "not tell a right port from a wrong one. The message names the first thing that is missing. The checkpoint's "
        "`config.json`, given with `--config`, helps most; the last resort is a recipe in Python (`docs/verify.md`).",
    ),
    Code(
        "VCG667",
        "the model has no encoder CUDA graph methods",
        "The host class under check does not implement the protocol, so there is no graph to compare. Either the tree "
        "was never ported and no change was passed, or the change went into another class.",
    ),
)
