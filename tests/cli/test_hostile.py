"""What somebody else's tree may carry: a repository whose settings run programs, special files, code of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from test_new import git, make_repository

pytestmark = pytest.mark.trees


@pytest.fixture
def trapped(small_tree, tmp_path) -> Path:
    """A checkout in which everything that git can be told to run leaves a file `witness` beside the tree."""
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $*" >> {shlex.quote(str(tmp_path / "witness"))}\nexit 1\n')
    trap.chmod(0o755)
    make_repository(small_tree)
    git(small_tree, "tag", "v0.22.0")
    (small_tree / ".git/info/attributes").write_text("* filter=trap diff=trap merge=trap\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "post-checkout", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman"):
        (hooks / name).symlink_to(trap)
    settings = {
        **{f"filter.trap.{kind}": trap for kind in ("clean", "smudge", "process")},
        "filter.trap.required": "true",
        **{f"diff.trap.{kind}": trap for kind in ("textconv", "command")},
        "merge.trap.driver": trap,
        "diff.external": trap,
        **{f"core.{kind}": trap for kind in ("fsmonitor", "pager", "editor", "sshCommand", "gitProxy", "askPass")},
        "core.hooksPath": hooks,
        "core.alternateRefsCommand": trap,
        "log.showSignature": "true",
        "gpg.program": trap,
        "credential.helper": f"!{trap}",
        **{f"alias.{name}": f"!{trap}" for name in ("ls-files", "ls-tree", "rev-list", "st")},
        **{f"pager.{name}": trap for name in ("log", "show", "describe", "ls-files", "rev-list", "status")},
        # Objects that a partial clone has left out are fetched when they are asked for.
        "remote.origin.url": f"ext::{trap}",
        "remote.origin.uploadpack": trap,
        "remote.origin.promisor": "true",
        "protocol.allow": "always",
        "extensions.partialClone": "origin",
        "core.repositoryFormatVersion": "1",
    }
    for name, value in settings.items():
        git(small_tree, "config", name, str(value))
    for path in small_tree.rglob("*.*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (1, 1))  # so that git looks into every file again
    return small_tree


def sprung(root: Path) -> str:
    witness = root.parent / "witness"
    return witness.read_text() if witness.exists() else ""


def sign(root: Path) -> None:
    """The last commit again, with something that looks like a signature."""
    commit = git(root, "cat-file", "commit", "HEAD")
    head, _, message = commit.partition("\n\n")
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----"
    signed = git(root, "hash-object", "-t", "commit", "-w", "--stdin", text=f"{head}\n{signature}\n\n{message}")
    git(root, "-c", "core.hooksPath=/dev/null", "update-ref", "--no-deref", "HEAD", signed.strip())


@pytest.mark.parametrize("command", ["status --porcelain", "log -1", "diff", "show HEAD:PKG-INFO --textconv"])
def test_the_traps_work(trapped, command):
    """Or the next test shows nothing."""
    sign(trapped)
    (trapped.parent / "witness").unlink(missing_ok=True)
    subprocess.run(["git", *command.split()], cwd=trapped, check=False, capture_output=True, timeout=60)
    assert sprung(trapped)


def test_no_command_runs_what_a_repository_names(run, trapped):
    assert run("plan", "internvl", "--vllm", trapped).code == 0
    assert run("new", "internvl", "--vllm", trapped, "--check").code == 1
    assert run("new", "internvl", "--vllm", trapped).code == 0
    assert run("pr", "internvl", "--vllm", trapped, "--no-verify").code == 0
    assert run("new", "internvl", "--vllm", trapped).code == 0
    assert run("revert", trapped).code == 0
    assert run("init", "internvl", "--vllm", trapped).code == 4  # the small tree has not all that it reads
    assert run("recover", trapped).code == 0
    assert not sprung(trapped)


def test_nothing_is_fetched_for_a_partial_clone(run, trapped):
    """git would run the remote's helper for a tree of the last commit that is not there."""
    (small,) = git(trapped, "rev-parse", "HEAD^{tree}").split()
    blob = trapped / ".git/objects" / small[:2] / small[2:]
    assert blob.is_file()
    blob.unlink()
    subprocess.run(["git", "ls-tree", "HEAD"], cwd=trapped, check=False, capture_output=True, timeout=60)
    assert sprung(trapped), "the trap must work, or this test shows nothing"
    (trapped.parent / "witness").unlink()

    done = run("new", "internvl", "--vllm", trapped)

    assert (done.code, "error[VCG508]" in done.err) == (5, True)
    assert not sprung(trapped)


def test_a_signature_is_not_taken_for_a_missing_sign_off(run, trapped):
    """`log.showSignature` puts gpg's words in front of the message, and runs `gpg.program` for them."""
    assert run("new", "internvl", "--vllm", trapped).code == 0
    for name in ("filter.trap.clean", "filter.trap.process", "filter.trap.required", "core.fsmonitor"):
        git(trapped, "config", "--unset", name)
    git(trapped, "-c", "core.hooksPath=/dev/null", "commit", "-qasm", "Port InternVL")
    sign(trapped)
    (trapped.parent / "witness").unlink(missing_ok=True)

    done = run("pr", "internvl", "--vllm", trapped, "--no-verify")

    assert done.code == 0, done.err
    assert "ok  commits carry Signed-off-by" in done.err
    assert not sprung(trapped)
