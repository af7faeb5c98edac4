"""Codes of the numeric lab (`scaffold.verify.numeric`): VCG650 and above."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG647",
        "the proof stopped at what the descriptor says for it",
        "The descriptor has a section `verify`, which says how to make the model for the numerical proof. The proof "
        "that `new` runs by itself ended without a verdict; the second message says why. `new` writes nothing: a "
        "descriptor cannot switch its own proof off. Mend the section. With --static `new` writes the port without "
        "the proof, and says so.",
    ),
    Code(
        "VCG650",
        "the port returns other embeddings than the model",
        "The lab drives the release's own manager on emulated CUDA graphs and compares what it returns with "
        "`embed_multimodal` of the pristine tree. Values, shapes or the number of items differ. The check's name says "
        "which budgets, sizes and modality. A failure only after larger items points at a buffer that keeps old "
        "values. One for reversed items points at offsets or order. One for items above all budgets points at "
        "`encoder_eager_forward`, because no graph serves them.",
    ),
    Code(
        "VCG651",
        "eager execution changed",
        "Splitting a tower may not change what it computes: eager embeddings must stay bit-identical to the pristine "
        "tree's. The likely cause is a statement that moved across an assignment which it depends on.",
    ),
    Code(
        "VCG652",
        "the captured forward reads device memory from the host",
        "`.item()`, `.tolist()`, `nonzero`, boolean indexing and shapes that depend on data stop a CUDA graph "
        "capture. The message names the line. Compute the value in the metadata, before the replay, and pass it as a "
        "buffer.",
    ),
    Code(
        "VCG653",
        "device and host memory are mixed",
        "The capture copied a tensor from the host, or one operator got host and device tensors. Create the tensor on "
        "the model's device beforehand. Only scalars that kernels take by value stay on the host.",
    ),
    Code(
        "VCG654",
        "the changed tree raised in the lab",
        "The pristine tree runs in the lab and the changed one does not: importing it, building it, capturing or "
        "executing raised. The notes have the end of the traceback. Where no changed file is in it, look at what the "
        "generated methods returned: the release's manager raised on it. A process that crashed without a report has "
        "this code as well.",
    ),
    Code(
        "VCG655",
        "the lab gave no result",
        "A child process reached its time limit, and the lab stopped it: look for a loop that waits for data, or "
        "raise the limit on a slow machine. Or the system killed it, which usually means that memory ran out: the port "
        "is neither right nor wrong, run the lab with more free memory or smaller sizes.",
    ),
    Code(
        "VCG656",
        "the pristine tree does not run in the lab",
        "The lab could not import the release or build the model without the change, so the change is not to blame. "
        "Install what is missing: the `cpu` extra has most of it (`pip install 'vitcg-scaffold[cpu]'`). A release "
        "newer than the lab may need a new trick in `scaffold/verify/numeric/cpu_imports.py`.",
    ),
    Code(
        "VCG657",
        "items that fit a budget were not replayed",
        "A port that always runs eagerly proves nothing about its graphs. Either the configuration does not list the "
        "modality, or token counts are wrong, or the lab compared nothing at all.",
    ),
    Code(
        "VCG658",
        "a result aliases graph memory",
        "An embedding was right when the manager returned it, and changed when it encoded later items: it is a view "
        "of the graph's output buffer. Clone what you cut out of it.",
    ),
    Code(
        "VCG659",
        "the lab has no recipe for the model",
        "A recipe builds the model's real vision classes with tiny sizes, and this name has none. Write one and give "
        "it as `--recipe FILE.py` (docs/verify.md), or rely on the structural proofs alone.",
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
        "One item may have more tokens than the scheduler takes in one batch. Then the port's smallest budget exceeds "
        "its largest, and the manager raises at start-up. Clamp the smallest budget to the largest; such items then "
        "run eagerly.",
    ),
    Code(
        "VCG663",
        "an overlay path leaves the tree",
        "An overlay names replaced files relative to the root of the tree, and this path leads out of it.",
    ),
    Code(
        "VCG664",
        "the change renames or reshapes parameters",
        "The lab loads the weights of the pristine model strictly into the changed one, as a checkpoint does. A "
        "parameter has another name or shape there. Keep metadata in buffers that are not persistent, or in plain "
        "tensors.",
    ),
    Code(
        "VCG665",
        "an attention sequence of negative length was replayed",
        "The tail of cumulative offsets holds zeros instead of the last offset. The reference kernel skips such a "
        "sequence; FlashAttention 3 on a GPU computes wrong rows from it. Repeat the last offset.",
    ),
    Code(
        "VCG666",
        "more video frames than the capacity raise",
        "A batch may fit the token budget and still have more frames than the graph has attention sequences. Run it "
        "eagerly: a copy into a buffer that is too short raises in the middle of serving.",
    ),
    Code(
        "VCG668",
        "no recipe can be made automatically",
        "The model has no shipped recipe, and the lab could not build it small by itself, or its results could not "
        "tell a right port from a wrong one. The message names the first thing that is missing. The checkpoint's "
        "folder without its weights, given with `--config`, helps most: `hf download NAME --exclude '*.safetensors'`. "
        "Its processor then makes the inputs, also where it is code of the checkpoint (`--trust-remote-code`). The "
        "last resort is a recipe in Python (`docs/verify.md`).",
    ),
    Code(
        "VCG669",
        "raw pixels give other embeddings",
        "From 0.28 on an engine leaves rescaling and normalising to a model whose class says "
        "`supports_mm_device_do_normalize`, unless a user objects: pixels arrive as bytes. A port must do what the "
        "model's own methods do with them before the tower, such as `self.input_norm(pixel_values, "
        "self.visual.dtype)` on 0.28 and 0.29. Later releases do it inside of the tower.",
    ),
    Code(
        "VCG667",
        "the model has no encoder CUDA graph methods",
        "The class under check does not implement the protocol, so it has no graph to compare. Nobody ported the tree "
        "and the run got no change, or the change went into another class.",
    ),
)
