"""Codes of the static proofs: VCG600 to VCG629."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG600",
        "the result is not valid Python",
        "The edited file does not compile. Nothing was written. A template or a snippet file is the likely cause.",
    ),
    Code(
        "VCG601",
        "something changed that was not planned",
        "The planned nodes are taken out of the result's syntax tree, the removed ones out of the original's, and the "
        "rest must be equal, docstrings and decorators included. Here it is not. The tool refuses its own result; "
        "nothing was written.",
    ),
    Code(
        "VCG602",
        "a planned change is not in the result",
        "Each planned import, base, method, definition, entry or row must be in the result once, with the planned "
        "meaning, and each planned removal must have happened.",
    ),
    Code(
        "VCG603",
        "a planned change is in the wrong place",
        "A base before the others changes the method resolution order; an import below its first use fails; methods "
        "out of place make a diff that nobody can review.",
    ),
    Code(
        "VCG604",
        "a line changed outside the planned places",
        "Outside the lines that the plan declares, the text must be the same byte for byte: a formatter or an editor "
        "touched something else.",
    ),
    Code(
        "VCG605",
        "a comment was lost or changed",
        "Syntax trees do not contain comments, so they are compared on their own. Only comments of removed methods may "
        "go.",
    ),
    Code(
        "VCG606",
        "a second run would change the file again",
        "Every operation must find its own result and leave it alone. Otherwise each run would make another diff.",
    ),
    Code(
        "VCG607",
        "the form of the file changed",
        "Encoding, byte order mark, kind of newline and the newline at the end of the file are kept as they were.",
    ),
    Code(
        "VCG610",
        "a method of the protocol is missing",
        "The class must define every method of the tree's protocol that has no default body. vLLM would find out when "
        "it captures the graphs.",
    ),
    Code(
        "VCG611",
        "a method's signature is not the protocol's",
        "Names, kinds, order and defaults of the parameters must be those of the tree's protocol. vLLM's own check "
        "compares names of methods only.",
    ),
    Code(
        "VCG620",
        "the result breaks a rule of the target's linter",
        "`ruff check` with the target's own configuration reports something that it did not report before the edit.",
    ),
    Code(
        "VCG621",
        "the changed lines are not in the target's format",
        "`ruff format` with the target's own configuration would change the planned lines again.",
    ),
    Code(
        "VCG622",
        "the target's ruff settings could not be used",
        "The installed ruff rejects the target's configuration: rules that were removed since, or a pinned version. "
        "ruff's defaults were used for format and lint instead, so the target's own hooks may still complain.",
    ),
    Code(
        "VCG623",
        "ruff cannot be run",
        "ruff formats and checks the changed lines. It is a dependency of this tool; the environment is incomplete.",
    ),
    Code(
        "VCG624",
        "the refused result was kept",
        "A proof refused what the tool made, so nothing was written to the tree. The refused files are in a temporary "
        "folder, under the paths that they would have had, so that they can be compared and reported.",
    ),
    Code(
        "VCG625",
        "the tool itself failed",
        "An error that nobody foresaw: a bug of vitcg-scaffold, like a refused proof, and with its exit code. With "
        "--debug the traceback is shown; report it. A run that was writing is repaired by `vitcg-scaffold recover`.",
    ),
)
