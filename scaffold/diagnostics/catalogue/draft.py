"""Codes of drafting a descriptor: VCG390, VCG480 to VCG489, VCG510 and VCG709."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG390",
        "a question is still open",
        "A drafted descriptor says TODO where the model's source does not tell a value, with candidates in the "
        "comments above. Look at the named place, write the value in place of TODO (or settle and delete a TODO "
        "comment), and validate again. Nothing is generated from a descriptor with an open question.",
    ),
    Code(
        "VCG480",
        "the tree has no such architecture",
        "`init` looks an architecture up in the registry of the tree's models, under the name that a checkpoint's "
        "config.json gives. Other releases may know it; a model's file can be given instead of its architecture.",
    ),
    Code(
        "VCG481",
        "there is no multimodal model class",
        "A model that can get encoder graphs has `embed_multimodal` and a processor registered with "
        "MULTIMODAL_REGISTRY.register_processor, on the class itself or on a base of it. Name the file that defines "
        "such a class, or the class as FILE:CLASS.",
    ),
    Code(
        "VCG482",
        "the file is not of this tree",
        "A draft is read from one tree: the model's file and everything that it imports. Give `--vllm` the tree that "
        "the file lies in.",
    ),
    Code(
        "VCG483",
        "the model is beyond the layouts",
        "A descriptor says models of four layouts: packed rows with metadata, tiles, two paths of tiles, and the "
        "encoder alone on units of one shape (a cut, from 0.22 on). This model does something between its inputs and "
        "its embeddings that none of them says, or that cannot be read; each reason is a message of its own, with its "
        "line. What speaks against a cut stands last. There is no draft, because no port could be generated "
        "from one.\n\nA reason is often one statement. If the model is yours to change, change it: what layers compute "
        "from sizes goes into the tower's `forward`, what runs behind a packed tower goes into the tower. Otherwise "
        "the port has to be written by hand, or the tool taught: docs/design.md says where a layout is added.",
    ),
    Code(
        "VCG484",
        "something that would be drafted is left out",
        "The source has it in a form that the layout cannot express, and the descriptor is complete without it. A "
        "modality that is left out, whose tokens follow another formula or whose inputs lie otherwise in memory, runs "
        "eagerly, as before.",
    ),
    Code(
        "VCG485",
        "the model has a port already",
        "The class speaks the protocol, by itself or through a base class. The draft is made as if it did not, and "
        "`new` refuses it (VCG520) unless --replace is given. A base's port serves all its subclasses: port the base, "
        "unless the subclass encodes its items in another way.",
    ),
    Code(
        "VCG486",
        "the model has no images and no videos",
        "The fields of the model's processor are of other modalities, such as audio. vLLM's encoder graphs are for "
        "images and videos: there is nothing to port.",
    ),
    Code(
        "VCG510",
        "the output exists already",
        "`init` never overwrites a descriptor that somebody may have completed. Choose another name, or use --force.",
    ),
    Code(
        "VCG709",
        "the draft cannot be written",
        "The file's folder is missing or not writable, or the disk is full. Nothing was written.",
    ),
)
