"""Codes of the conflict stage: the tree holds something that must not be overwritten."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG501",
        "a file changed while the run was in progress",
        "The tool plans and proves changes on the bytes that it read. Right before it replaces a file it compares the "
        "file with those bytes. Here they differ: an editor, git or another tool changed the file meanwhile. The tool "
        "wrote nothing. Run the command again: it plans from what the file holds now.",
    ),
    Code(
        "VCG502",
        "a path leaves the target tree",
        "A folder on the way to this file is a symbolic link out of the tree, or into its `.git` or `.vitcg-scaffold` "
        "folder. The tool writes files of the tree only. Replace the link by a real folder, or point `--vllm` at the "
        "tree that owns the file.",
    ),
    Code(
        "VCG503",
        "a target is not a regular file",
        "The tool replaces a file by renaming a new one over it. That would turn a symbolic link into a file, and it "
        "fails on a folder or a device. Put a regular file in its place, or remove it.",
    ),
    Code(
        "VCG504",
        "a file was changed after the run that is to be reverted",
        "`revert` restores the bytes from before the last run, and would drop what you edited since. It lists each "
        "file that no longer holds what the run wrote. Save your edits and use `--force`, or undo them by hand first.",
    ),
    Code(
        "VCG505",
        "a file was changed after a run was killed",
        "`revert` restores the bytes from before the killed run. This file holds neither those nor the run's own, so "
        "someone has edited it since. The tool restored nothing. Save the edits, then use `--force` to drop them in "
        "the tree.",
    ),
    Code(
        "VCG506",
        "no run is there to undo",
        "A tree's `.vitcg-scaffold` folder keeps the last 20 runs that wrote to it. `revert` undoes them from the "
        "last to the first. This tree has none, or none is left, or the current folder is in no such tree: then name "
        "the tree. Use git for older changes.",
    ),
    Code(
        "VCG507",
        "a target file is dirty",
        "The file holds work that git could not give back: changes that are staged or not committed, an untracked or "
        "ignored file, or any file while a merge, rebase, cherry-pick or revert is in progress. The tool compares "
        "contents and does not trust git's index. In a tree without git, a file counts as dirty if it changed after "
        "the tool's last run. Commit or stash first, or use `--allow-dirty`: `revert` still restores the exact bytes.",
    ),
    Code(
        "VCG508",
        "git does not say which files are dirty",
        "The tree is a git checkout, but `git` failed or did not answer in time; the notes have its own words. A "
        "frequent cause is a checkout that belongs to another user, which git refuses to read until `git config "
        "--global --add safe.directory PATH`. With `--allow-dirty` the tool does not ask git.",
    ),
    Code(
        "VCG509",
        "uncommitted work is not noticed because git is missing",
        "A note, not an error: the tree is a git checkout, but there is no `git` command on the PATH. Only files "
        "changed since our last run are recognised.",
    ),
    Code(
        "VCG511",
        "the tree does not hold the generated port",
        "`pr` describes what `new` wrote, and `verify` proves it. Here `new` would still change something: it never "
        "ran, the descriptor or the tool has changed since, or somebody edited the files.\n\nA port of which a third "
        "of the methods is the generated one counts as an edited or an earlier port. `new` does not write over it "
        "without --replace, and `new --check` exits with 1. The note has the first line that differs. `--check` also "
        "compares a test entry, and a method with the model's own code, with a port of the tree before: what `new` "
        "found there, or `--base`. To keep an edit, "
        "prove the tree's own code with `verify --as-is`. To drop it, use git, or `new --replace`.",
    ),
    Code(
        "VCG512",
        "nothing tells what the tree held before the port",
        "The proof compares the port with the tree before it. The last run of `new` keeps those bytes in the tree's "
        "`.vitcg-scaffold` folder. A port that came another way, by a checkout or a patch, has none: name the earlier "
        "tree with `--base`.",
    ),
    Code(
        "VCG513",
        "a file is no benchmark result",
        "`bench` writes JSON with the machine, versions, date and rows that all have the same columns. This file is "
        "something else. Give a file that `bench -o` wrote.",
    ),
    Code(
        "VCG514",
        "a hard link is not restored",
        "A note, not an error. The tool replaces a file by renaming a new one over it. So a file with a second name "
        "(a hard link) becomes a file of its own. Undoing the run restores its bytes and mode, but cannot make the "
        "two one file again.",
    ),
    Code(
        "VCG530",
        "a generated file is out of date",
        "An earlier run wrote the file and its bytes are still that run's, but the descriptor, a template or the tool "
        "has changed since. The difference shows how. `vitcg-scaffold new --all` writes the new file.",
    ),
    Code(
        "VCG531",
        "a generated file is missing",
        "A descriptor asks for this file and it is not there. `vitcg-scaffold new --all` writes it. Where the "
        "manifest has the digests of older generations (`built`), their files need not be there.",
    ),
    Code(
        "VCG532",
        "a file is left over",
        "No descriptor asks for this file. `vitcg-scaffold new --all` removes a file that an earlier run wrote, if its "
        "bytes are still that run's. It never removes any other file: move it out of the folder, which holds output "
        "only.",
    ),
    Code(
        "VCG533",
        "a generated file was edited by hand",
        "The file's bytes do not have the hash in its own header. `vitcg-scaffold new --all` overwrites it: generated "
        "files are changed in the descriptor or in a template. Version control protects the edit, and one that is not "
        "committed is refused (VCG507) without `--allow-dirty`; `vitcg-scaffold revert` restores it in any case.",
    ),
    Code(
        "VCG534",
        "the manifest cannot be trusted",
        "`MANIFEST.json` is not one that this tool writes: it is no JSON, of another schema, or names something that "
        "is no descriptor, or no digest. Nothing in it is used. Restore it from git, or delete it and name the "
        "descriptors again: `vitcg-scaffold new shipped`, for example.",
    ),
    Code(
        "VCG535",
        "there is nothing to generate",
        "No descriptor gives an adapter, or nothing was generated into this folder yet: it has no manifest that names "
        "descriptors. A check would pass without looking at anything. The exit code is 3. Name a descriptor, or a "
        "folder whose manifest names one.",
    ),
    Code(
        "VCG540",
        "two descriptors have one name or architecture",
        "Outputs are named after the descriptor's file, and vLLM has one class for an architecture. Rename one of the "
        "two files, leave one out, or generate into another folder.",
    ),
    Code(
        "VCG541",
        "a descriptor's name is no module name",
        "An adapter is a Python module, and its name is that of the descriptor's file. Rename the file to letters, "
        "digits and underscores, such as `my_model.yaml`.",
    ),
    Code(
        "VCG542",
        "a generation has no stand-alone adapter",
        "A note, not an error: an adapter is a subclass of the release's model class, generated without a tree. Where "
        "its layout has no form in the protocol, or where what it needs of the tower was not recorded for this "
        "descriptor (`python -m scaffold.adapters.towers`, for shipped ones), only a port into a tree works "
        "(`vitcg-scaffold new --vllm`).",
    ),
    Code(
        "VCG543",
        "a generated file cannot be compared",
        "A symbolic link, a folder or a device has the name of a generated file, or you may not read the file. The "
        "tool does not follow links: they may lead out of the folder. Put a regular file in its place, or remove it.",
    ),
)
