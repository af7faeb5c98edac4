"""Codes of the publish stage: the disk said no."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG701",
        "the tree cannot be written",
        "The file system is read-only, or you may not write there. Or the tree is the pristine copy of a release in "
        "the cache, which the tool never writes: name the release instead of the folder. The tool changed no file. "
        "Work on a copy, or use `--diff` to see the changes without writing them.",
    ),
    Code(
        "VCG702",
        "no disk space",
        "The disk or the quota is full. The tool puts all new bytes and all backups on the disk before it touches the "
        "first file, and undoing needs no space. So it changed no file. Free some space and run the command again.",
    ),
    Code(
        "VCG703",
        "writing failed",
        "The operating system reported an error. The tool rolled back what it had written, so no file changed. Remove "
        "the cause that the message names, then run the command again.",
    ),
    Code(
        "VCG704",
        "a half-written run could not be rolled back",
        "A run failed, and undoing it failed too (or its repair by `revert` did). The journal in `.vitcg-scaffold` "
        "still has all that is needed: remove the cause, then run `vitcg-scaffold revert --unfinished`.",
    ),
    Code(
        "VCG705",
        "another run is writing to this tree",
        "One run at a time may write to a tree. The lock ends with the process that holds it, even if somebody kills "
        "that. Wait, then start again: the tool must plan from what the other run leaves.",
    ),
    Code(
        "VCG706",
        "an earlier run was killed while it wrote",
        "The tree may hold some files from before and some from after that run. `vitcg-scaffold revert` restores the "
        "state before it. Every command that writes refuses until then.",
    ),
    Code(
        "VCG707",
        "our records are damaged",
        "A file in `.vitcg-scaffold` is not what a run of this tool wrote there. Compare the tree with its origin "
        "(for a checkout: `git diff`), then delete the folder; only the ability to revert earlier runs is lost.",
    ),
    Code(
        "VCG708",
        "the tree spans file systems",
        "The tool replaces files by renames from the `.vitcg-scaffold` folder, which are atomic on one file system "
        "only. A part of this tree is mounted from elsewhere. Copy the tree to one file system and work there.",
    ),
    Code(
        "VCG710",
        "reading or writing failed",
        "The operating system refused something that no stage foresaw, most often the output itself: a full disk "
        "behind `> FILE`, or a stream that went away. A tree that was being written has been rolled back.",
    ),
    Code(
        "VCG711",
        "the cache or working copy cannot be written",
        "The disk is full or the folder may not be written. Nothing incomplete was left under the final name. "
        "VITCG_CACHE_DIR moves the cache.",
    ),
    Code(
        "VCG712",
        "others can write the cache folder",
        "The tool runs release trees and their bytecode from its cache folder, and `pr` quotes the proofs in it. So "
        "only you and root may put files there. The folder must belong to one of you, and only you and a group of your "
        "own may write to it. A folder above it that everybody can write to needs the sticky bit, as /tmp has. If the "
        "folder belongs to somebody else, set VITCG_CACHE_DIR to a folder of your own.",
    ),
)
