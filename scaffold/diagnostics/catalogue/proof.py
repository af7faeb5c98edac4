"""Codes of the static proofs: VCG600 to VCG629."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG600",
        "the result is not valid Python",
        "The edited file does not compile. The tool wrote nothing. A template is the likely cause: report it.",
    ),
    Code(
        "VCG601",
        "something changed that was not planned",
        "The proof takes the planned nodes out of the result and the removed ones out of the original, and compares "
        "the rest, docstrings and decorators included. Here the rest differs. The tool refuses its own result and "
        "wrote nothing: report it.",
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
        "Syntax trees have no comments, so the proof compares comments on their own. Only those of removed methods "
        "may go.",
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
        "The class must define every method of the tree's protocol that has no default body. Without this check vLLM "
        "would find out while it captures the graphs.",
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
        "ruff formats and checks the changed lines, and it cannot run here. It is a dependency of this tool: install "
        "vitcg-scaffold again.",
    ),
    Code(
        "VCG624",
        "the refused result was kept",
        "A proof refused the tool's own result, so the tree is as it was. A temporary folder holds the refused files "
        "under the paths that they would have had. Attach them to a report.",
    ),
    Code(
        "VCG625",
        "the tool itself failed",
        "The tool met an error that nobody foresaw: a bug, with the exit code of a refused proof. Run again with "
        "--debug and report the traceback. `vitcg-scaffold revert --unfinished` repairs a run that was writing.",
    ),
    Code(
        "VCG626",
        "the tree's ruff settings cannot be read",
        "ruff reads `ruff.toml` or `pyproject.toml` of the tree, and what their `extend` names. One of these files is "
        "no regular file, is missing, is larger than 1 MB, has a line of more than 200 dots, or extends a path with a "
        "variable: ruff would wait for a pipe for ever, and tell what a variable holds. Nothing was run.",
    ),
)
