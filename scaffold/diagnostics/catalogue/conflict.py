"""Codes of the conflict stage: the tree holds something that must not be overwritten."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG501",
        "a file changed while the run was in progress",
        "Changes are planned and proven on the bytes that a file held when it was read. Right before it is "
        "replaced, the file is compared with those bytes; here they differ, so an editor, a git command or another "
        "tool was faster. Nothing was written. Run the command again: it plans from what the file holds now.",
    ),
    Code(
        "VCG502",
        "a path leaves the target tree",
        "A folder on the way to this file is a symbolic link that leads out of the tree, or into its `.git` or "
        "`.vitcg-scaffold` folder. Only files of the tree itself are written. Replace the link by a real folder, or "
        "point `--vllm` at the tree that owns the file.",
    ),
    Code(
        "VCG503",
        "a target is not a regular file",
        "Files are replaced by renames, which would turn a symbolic link into a file, or fail on a folder or a "
        "device. Put a regular file in its place, or remove it.",
    ),
    Code(
        "VCG504",
        "a file was changed after the run that is to be reverted",
        "`revert` restores the bytes from before the last run and would drop what was edited since. Each file that "
        "no longer holds what the run wrote is listed. Save the edits and use `--force`, or undo them by hand "
        "first.",
    ),
    Code(
        "VCG505",
        "a file was changed after a run was killed",
        "`recover` restores the bytes from before the killed run. This file holds neither those nor the new ones, "
        "so someone has edited it since. Nothing was restored. Save the edits and use `--force` to drop them in the "
        "tree.",
    ),
    Code(
        "VCG506",
        "there is no run to revert",
        "The last 20 runs that wrote to a tree are kept in its `.vitcg-scaffold` folder, and `revert` undoes them "
        "from the last to the first. This tree has none (left). Older changes are a matter of git.",
    ),
    Code(
        "VCG507",
        "a target file is dirty",
        "The file holds work that git could not give back: changes that are staged or not committed, an untracked "
        "file, or any file while a merge, rebase, cherry-pick or revert is in progress. In a tree without git, a "
        "file that was changed after our last run counts as dirty. Commit or stash first, or use `--allow-dirty`: "
        "`revert` still restores the exact bytes.",
    ),
    Code(
        "VCG508",
        "git does not say which files are dirty",
        "The tree is a git checkout, but `git` failed or did not answer in time; its own words are shown. A "
        "frequent cause is a checkout that belongs to another user, which git refuses to read until `git config "
        "--global --add safe.directory PATH`. With `--allow-dirty` git is not asked.",
    ),
    Code(
        "VCG509",
        "uncommitted work is not noticed because git is missing",
        "A note, not an error: the tree is a git checkout, but there is no `git` command on the PATH. Only files "
        "changed since our last run are recognised.",
    ),
)
