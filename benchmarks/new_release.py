"""Look for a release of vLLM that the tool does not know, and say what it changes. Made for a weekly job.

    python benchmarks/new_release.py                       # releases newer than those in known_trees.json
    python benchmarks/new_release.py --releases 0.33.0     # this one, as if it were new
    python benchmarks/new_release.py --open                # and open an issue for each, once (needs `gh`)

It reads sources alone: the protocol, the registry, and whether each shipped descriptor still gives a port with its
static proofs, beside the release before. Proofs by numbers are the next step (docs/new-generation.md).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from scaffold.descriptor import shipped_names
from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import SourceTree, read_protocol, resolve_target
from scaffold.protocol.cache import KNOWN_TREES
from scaffold.protocol.registry import multimodal_names
from scaffold.protocol.releases import stable_releases
from scaffold.workflow import load_port, prepare_port

NONE = "none"


def newer_than(known: Sequence[str], offered: Sequence[str]) -> list[str]:
    """The releases on offer that are newer than every known one, oldest first."""
    from packaging.version import Version

    newest = max(map(Version, known))
    return sorted((one for one in offered if Version(one) > newest), key=Version)


def title_of(release: str) -> str:
    """The title by which an issue is found again."""
    return f"vLLM {release}: what it changes for ports"


def changes(tree: SourceTree, before: SourceTree) -> Iterator[str]:
    """Lines of Markdown: what differs in `tree` from the release `before`."""
    yield f"Read from the sources of {tree.label}, beside {before.label}. Nothing was run."
    yield ""
    yield f"* Protocol: {protocol_of(tree)}"
    architectures, earlier = (dict.fromkeys(multimodal_names(one)) for one in (tree, before))
    yield f"* New multimodal architectures: {listed(one for one in architectures if one not in earlier)}"
    yield f"* Gone: {listed(one for one in earlier if one not in architectures)}"
    refused = {name: (refusal(name, tree), refusal(name, before)) for name in shipped_names()}
    lost = {name: now for name, (now, then) in refused.items() if now and now != then}
    yield f"* Descriptors that give no port any more: {NONE if not lost else len(lost)}"
    yield from (f"  * `{name}`: {now}" for name, now in lost.items())
    yield f"* Descriptors that give one now: {listed(one for one, (now, then) in refused.items() if then and not now)}"
    yield ""
    yield "Next: `docs/new-generation.md`, from step 1."


def protocol_of(tree: SourceTree) -> str:
    """The generation, or the difference to the nearest one."""
    try:
        return f"generation {read_protocol(tree).generation}"
    except DiagnosticError as error:
        return "; ".join(
            text for one in error.diagnostics for text in (f"{one.code}: {one.message}", *one.notes) if text
        )


def refusal(name: str, tree: SourceTree) -> str:
    """Why a shipped descriptor gives no port; empty where it gives one."""
    try:
        prepare_port(load_port(name), tree, replace=True)
    except DiagnosticError as error:
        first = error.diagnostics[0]
        return f"{first.code}: {first.message}"
    return ""


def listed(names: Iterator[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or NONE


def open_issue(title: str, text: str) -> None:
    """Open an issue with `gh`, unless one of this title is or was there."""
    search = ["gh", "issue", "list", "--state", "all", "--search", f'in:title "{title}"', "--json", "title"]
    found = json.loads(subprocess.run(search, check=True, capture_output=True, text=True).stdout)
    if title in {one["title"] for one in found}:
        print(f"There is an issue: {title}")
        return
    subprocess.run(["gh", "issue", "create", "--title", title, "--body-file", "-"], check=True, input=text, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", help="these, separated by commas, in the place of new ones")
    parser.add_argument("--open", action="store_true", help="open an issue for each, unless there is one")
    arguments = parser.parse_args()
    offered = stable_releases()
    known = list(json.loads(KNOWN_TREES.read_text("utf-8")))
    wanted = arguments.releases.split(",") if arguments.releases else newer_than(known, offered)
    if not wanted:
        print(f"Nothing is newer than {known[-1]}.")
    for release in wanted:
        older = [one for one in offered if newer_than([one], [release])]
        text = "\n".join(changes(resolve_target(release).tree, resolve_target(older[-1]).tree)) + "\n"
        print(f"# {title_of(release)}\n\n{text}")
        if arguments.open:
            open_issue(title_of(release), text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
