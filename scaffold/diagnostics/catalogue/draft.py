"""Codes of drafting a descriptor: VCG390, VCG480 to VCG489, VCG497, VCG510 and VCG709."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG390",
        "a question is still open",
        "A drafted descriptor says TODO where nothing that a run showed tells a value. The comments above "
        "it name candidates and the lines to look at. Look there, write the value instead of TODO (or settle and "
        "delete a TODO comment), and validate again. The tool generates nothing from a descriptor with an open "
        "question.",
    ),
    Code(
        "VCG480",
        "the tree has no such architecture",
        "`init` looks an architecture up in the registry of the tree's models, under the name that a checkpoint's "
        "config.json gives. Where the registry remembers that the model left vLLM, the message says its last release: "
        "draft it from that one. You can also give a model's file instead of its architecture.",
    ),
    Code(
        "VCG481",
        "the class is no multimodal model",
        "A model that can get encoder graphs has `embed_multimodal`, and a processor that "
        "MULTIMODAL_REGISTRY.register_processor registers on the class or on a base of it. The message says which of "
        "the two is missing, or which decorator the tool cannot follow. Name a file that defines such a class, or the "
        "class as FILE:CLASS.",
    ),
    Code(
        "VCG482",
        "the file is not of this tree",
        "`init` reads one tree: the model's file and everything that it imports. Give `--vllm` the tree that holds "
        "the file. A file of another package needs --package, with that package's folder or name.",
    ),
    Code(
        "VCG483",
        "the model is beyond the layouts",
        "A descriptor expresses models of six layouts: packed rows with metadata, tiles, two paths of tiles, and three "
        "of the encoder alone. Those take units of one shape (a cut, from 0.22 on), whole images and their crops, or "
        "rows of images of any size (from 0.23 on). "
        "This model does something between its inputs and its embeddings that none of them expresses. Each reason is "
        "a message with its line. There is no draft, because the tool could generate no port from it. With `-o FILE`, "
        "`init` leaves a file to start from: what is known of the model, and every reason at `layout: TODO`. It is no "
        "descriptor, and every command says so.\n\n"
        "A reason is often one statement. If the model is yours, change it: move what layers compute from sizes into "
        "the tower's `forward`, and what runs behind a packed tower into the tower. Otherwise write the port by hand, "
        "or teach the tool: docs/design.md says where a layout goes.",
    ),
    Code(
        "VCG484",
        "something that would be drafted is left out",
        "The layout cannot express this part of the source, and the descriptor is complete without it. A modality "
        "that the port leaves out runs eagerly, as before.",
    ),
    Code(
        "VCG485",
        "the model has a port already",
        "The class speaks the protocol, by itself or through a base class. A base's port serves all its subclasses: "
        "where a model inherits one and encodes its items with its base's code, nothing is to be done, and `init` ends "
        "there. With --force, and where the class has the port or encodes in another way, `init` drafts the model as "
        "if it had none. `new` refuses that draft (VCG520) without --replace.",
    ),
    Code(
        "VCG487",
        "graphs gain little in long calls",
        "A graph saves the time of launching the encoder's kernels. Where a call has so many rows that its kernels run "
        "longer than their launches take, nothing is left to save: many tiles of an image, a batch that the model pads "
        "to its longest item, or large images. The descriptor shows that items may be so long; how long they are "
        "depends on the checkpoint and the requests. docs/measured/cuts.md has the times.",
    ),
    Code(
        "VCG488",
        "a descriptor of the model comes with the tool",
        "The model, or a base class whose port it inherits, has a shipped descriptor. docs/matrix.md says on which "
        "releases it was proven. `new NAME` takes it; a draft of your own is then only a comparison.",
    ),
    Code(
        "VCG489",
        "a model that does not run gets no draft",
        "A draft says what a run of the model showed. This one ran on nothing, or --no-run forbids a run. `--recipe`, "
        "`--config` and `--set` say how to build it, as for `verify`. With `-o FILE`, `init` leaves a file to start "
        "from: what is known of the model, with the reason at `layout: TODO`.",
    ),
    Code(
        "VCG497",
        "a base class cannot be followed",
        "The model or its processor inherits from a class that the tree does not have: code of another package, or a "
        "class that is made at run time. Part of the model's code is there, so `init` says nothing about the model. It "
        "follows bases that are written as a name, `module.Class`, `NAME = other.Class`, and through imports in "
        "`try`, `if` and packages. Name the package of the base with --package, or copy its file into the tree. As a "
        "warning beside a draft it says that the rest of the source was enough for one.",
    ),
    Code(
        "VCG510",
        "the output exists already",
        "`init` never overwrites a descriptor that somebody may have completed. Choose another name, or use --force.",
    ),
    Code(
        "VCG709",
        "the output cannot be written",
        "The output's folder is missing or not writable, or the disk is full. The tool wrote nothing there.",
    ),
)
