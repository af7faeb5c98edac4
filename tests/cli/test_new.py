"""`new` on real trees: the patch, the check, the whole way there and back, working copies of releases."""

from __future__ import annotations

import filecmp
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from captured import captured
from cli_scene import DOCS, EXAMPLE, MODEL, PLACES, PROTOCOL, ROOT, TEST, contents

import scaffold.descriptor
from scaffold.descriptor.load import shipped_names, shipped_path
from scaffold.descriptor.port import PORTS
from scaffold.workflow import load_port

SHIPPED = Path(scaffold.descriptor.__file__).parent / "shipped"

pytestmark = pytest.mark.trees


def git(root: Path, *arguments: str, text: str | None = None) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false")
    done = captured(["git", *identity, *arguments], cwd=root, input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_repository(root: Path) -> None:
    git(root, "init", "-q")
    git(root, "add", "-A", "-f")
    git(root, "commit", "-qm", "release")


def test_diff_is_a_patch_and_nothing_else(run, small_tree):
    before = contents(small_tree)

    done = run("new", "internvl", "--vllm", small_tree, "--diff")

    assert done.code == 0
    assert done.out.startswith(f"--- a/{MODEL}\n+++ b/{MODEL}\n")
    assert "would change" not in done.out
    assert done.err.count("would change  ") == 4
    assert contents(small_tree) == before
    # What the patch does is what `new` does.
    make_repository(small_tree)
    git(small_tree, "apply", "--check", text=done.out)
    git(small_tree, "apply", text=done.out)
    patched = contents(small_tree)
    git(small_tree, "checkout", "-q", ".")
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    assert contents(small_tree) == patched != before


def test_diff_keeps_stdout_for_the_patch_in_every_format(run, small_tree):
    plain = run("new", "internvl", "--vllm", small_tree, "--diff").out

    done = run("new", "internvl", "--vllm", small_tree, "--diff", "--format", "json")

    assert done.out == plain
    assert json.loads(done.err[done.err.index("{\n") :])["counts"]["error"] == 0
    assert "\x1b[32m+" in run("new", "internvl", "--vllm", small_tree, "--diff", "--color", "always").out


def test_check_says_what_would_change_and_exits_1(run, small_tree):
    before = contents(small_tree)

    done = run("new", "internvl", "--vllm", small_tree, "--check")

    assert done.code == 1
    assert [line.split()[2] for line in done.out.splitlines()] == list(PLACES)
    assert f"To change them: vitcg-scaffold new internvl --vllm {shlex.quote(str(small_tree))}" in done.err
    assert contents(small_tree) == before


@pytest.mark.parametrize(
    ("there", "edited"),
    [
        ("        # Round down to whole tiles", "        # Round to whole tiles"),
        ("    # -- SupportsEncoderCudaGraph protocol methods --\n\n", ""),
        ('modalities=["image", "video"],', 'modalities=["image"],'),
        ("    def get_encoder_cudagraph_config(", "    mine: int = 1\n\n    def get_encoder_cudagraph_config("),
    ],
    ids=["comment", "heading", "code", "between"],
)
def test_an_edited_port_is_drift(run, ported, there, edited):
    model = ported / MODEL
    generated = model.read_text()
    assert there in generated
    model.write_text(generated.replace(there, edited, 1))
    words = ("new", "internvl", "--vllm", ported)
    before = contents(ported)

    checked, shown, refused = (run(*words, *mode) for mode in (("--check",), ("--diff",), ()))

    assert contents(ported) == before
    assert (checked.code, shown.code, refused.code) == (1, 0, 5)
    assert f"To change them: vitcg-scaffold new internvl --vllm {shlex.quote(str(ported))} --replace" in checked.err
    assert f"+++ b/{MODEL}" in shown.out
    assert "warning[VCG511]" in checked.err
    tree = shlex.quote(str(ported))
    steps = (
        f"`vitcg-scaffold new internvl --vllm {tree} --replace`, then `vitcg-scaffold verify internvl --vllm {tree}`"
    )
    assert run("plan", "internvl", "--vllm", ported).err.endswith(f"Next: {steps}\n")
    assert "error[VCG511]: the port of InternVLChatModel in the tree is not the one that internvl" in refused.err
    assert "note: generated is `" in refused.err
    assert re.search(r"help: `vitcg-scaffold verify internvl .* --as-is` proves the tree's", refused.err)
    assert run(*words, "--replace", "--allow-dirty").code == 0
    assert (model.read_text() == generated) is ("mine" not in edited)  # which is nobody's but the user's
    assert run(*words, "--check").code == 0


def test_an_edit_beside_the_protocols_methods_is_drift(run, ported, release_tree):
    """An entry of the test, which upstream may have had before: what the tree held before the port tells."""
    test = ported / TEST
    generated = test.read_text()
    before, entry, rest = generated.partition('"internvl": VitCudagraphTestConfig(')
    wanted = "num_video_frames=8,"
    assert entry
    test.write_text(before + entry + rest.replace(wanted, "num_video_frames=4,", 1))
    line = (before + entry + rest.partition(wanted)[0]).count("\n") + 1
    words = ("new", "internvl", "--vllm", ported, "--check")
    said = "warning[VCG511]: `MODEL_CONFIGS['internvl']` in the tree is not what internvl.yaml generates"

    with_record = run(*words)
    shutil.rmtree(ported / ".vitcg-scaffold")
    clone, against = run(*words), run(*words, "--base", release_tree("0.22.0").root)

    assert (with_record.code, clone.code, against.code) == (1, 0, 1)
    for done in (with_record, against):
        assert f"{TEST}:{line}:1: {said}" in done.err
        assert "note: generated is `num_video_frames=8,`" in done.err
    test.write_text(generated)
    assert run(*words, "--base", "0.22.0").code == 0
    assert run("new", "internvl", "--base", "0.22.0").code == 2


def test_an_outdated_port_is_drift(run, ported):
    own = Path("internvl.yaml")
    shipped = (SHIPPED / "internvl.yaml").read_text()
    own.write_text(shipped.replace("min: k", "min: 2 * k", 1))

    done = run("new", own, "--vllm", ported, "--check")

    assert done.code == 1
    assert "warning[VCG511]" in done.err


def test_a_look_keeps_no_refused_files(run, small_tree, tmp_path, monkeypatch):
    from scaffold import verify
    from scaffold.diagnostics import Diagnostic

    (tmp_path / "t").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    monkeypatch.setattr(verify, "verify_changes", lambda planned: (Diagnostic("VCG604", "no"),))

    for mode, kept in ((["--check"], 0), (["--diff"], 0), ([], 1)):
        done = run("new", "internvl", "--vllm", small_tree, *mode)
        assert (done.code, "VCG624" in done.err, len(list((tmp_path / "t").glob("vitcg-refused-*")))) == (6, kept, kept)


def test_upstreams_port_is_no_drift(run, release_tree):
    done = run("new", "internvl", "--vllm", release_tree("0.33.0").root, "--check")

    assert done.code == 5
    assert "VCG520" in done.err


def test_what_a_port_lacks_is_said_last(run, small_tree):
    document = shipped_path("internvl").read_text("utf-8")
    Path("bare.yaml").write_text(document.partition("integration:")[0], "utf-8")
    Path("other.yaml").write_text(document.replace("internvl_chat", "of_tomorrow"), "utf-8")

    bare = run("new", "bare.yaml", "--vllm", small_tree, "--diff").err
    other = run("new", "other.yaml", "--vllm", small_tree).err

    for place, way in (
        ("test entry", "add `test: {key: bare, model: "),
        ("docs table", "`integration.docs.models`"),
        ("example's list", "`integration.example`"),
    ):
        assert place in bare.partition("Still missing from this port:")[2]
        assert way in bare.partition("Still missing from this port:")[2]
    assert "of_tomorrow" in other.partition("Still missing from this port:")[2]
    assert "Still missing" not in run("new", "internvl", "--vllm", small_tree, "--allow-dirty", "--replace").err


@pytest.mark.parametrize("name", ["with space", "Größe", "it's", "$HOME"])
def test_commands_to_paste_are_quoted(run, small_tree, name):
    """What a message says to run works as it stands, whatever the tree and the descriptor are called."""
    root = small_tree.rename(small_tree.with_name(name))
    descriptor = Path(name) / "model.yaml"
    descriptor.parent.mkdir()
    descriptor.write_bytes(shipped_path("internvl").read_bytes())
    before = contents(root)

    done = run("new", descriptor, "--vllm", root, "--check")
    again = shlex.split(done.err.splitlines()[-1].removeprefix("To change them: "))
    assert again == ["vitcg-scaffold", "new", str(descriptor), "--vllm", str(root)]
    done = run(*again[1:])
    undo = shlex.split(done.err.splitlines()[-1].removeprefix("Undo with: "))
    assert run(*undo[1:]).code == 0
    assert contents(root) == before


def test_check_repeats_the_options_that_the_change_needs(run, copied_tree):
    root = copied_tree("0.33.0", "pyproject.toml", *PLACES, *PROTOCOL).root

    done = run("new", "internvl", "--vllm", root, "--replace", "--check")

    assert done.err.endswith(f"To change them: vitcg-scaffold new internvl --vllm {shlex.quote(str(root))} --replace\n")


@pytest.mark.parametrize(
    ("arguments", "place", "line"),
    [
        (("new", "internvl", "--vllm", "0.22.0", "--check"), "internvl.yaml:", "class: InternVLChatModel"),
        (("new", "internvl", "--vllm", "0.33.0"), "vllm-0.33.0/vllm/", "    def get_encoder_cudagraph_config(self"),
    ],
)
def test_lines_of_shipped_descriptors_and_releases_are_shown(run, arguments, place, line):
    """Their names in diagnostics are no paths from here; a file here that has such a name is another one."""
    Path("internvl.yaml").write_text("not: it\n" * 99)

    report = run(*arguments).err

    shown = report[report.index(place) :].splitlines()[1]
    assert re.fullmatch(r" +\d+ \| +" + re.escape(line.strip()) + ".*", shown), report


def test_check_as_json_names_each_file(run, small_tree):
    pending = json.loads(run("new", "internvl", "--vllm", small_tree, "--check", "--format", "json").out)
    assert pending["exit_code"] == 1
    changed = [item["message"].split()[0] for item in pending["diagnostics"] if item["code"] == "VCG521"]
    assert changed == list(PLACES)

    run("new", "internvl", "--vllm", small_tree)
    done = run("new", "internvl", "--vllm", small_tree, "--check", "--format", "json")

    document = json.loads(done.out)
    assert (done.code, document["exit_code"], document["diagnostics"]) == (0, 0, [])


@pytest.mark.parametrize(
    ("release", "options", "changed"), [("0.22.0", (), PLACES), ("0.33.0", ("--replace",), (MODEL,))]
)
def test_there_and_back(run, copied_tree, release, options, changed):
    """Apply, again, revert: the second run changes nothing, and revert leaves not a byte."""
    root = copied_tree(release, "pyproject.toml", *PLACES, *PROTOCOL).root
    make_repository(root)
    before = contents(root)

    first = run("new", "internvl", "--vllm", root, *options)

    assert first.code == 0, first.err
    assert [line.split()[1] for line in first.out.splitlines() if "  changed  " in line] == list(changed)
    assert first.err.endswith(f"Undo with: vitcg-scaffold revert {shlex.quote(str(root))}\n")
    assert sorted(line[3:] for line in git(root, "status", "--porcelain").splitlines()) == sorted(changed)
    ported = contents(root)
    assert {path for path in ported if ported[path] != before[path]} == set(changed)

    second = run("new", "internvl", "--vllm", root, *options)
    assert (second.code, second.out.count("unchanged")) == (0, 4)
    assert "nothing to do" in second.err
    assert contents(root) == ported

    back = run("revert", root)
    assert back.code == 0
    assert [line.split() for line in back.out.splitlines()] == [["restored", path] for path in changed]
    assert back.err == "Undid: new internvl\n"
    assert contents(root) == before
    assert git(root, "status", "--porcelain") == ""
    assert run("revert", root).code == 5


def test_working_copy_of_a_whole_release(run, release_tree, tmp_path):
    pristine = release_tree("0.22.0").root
    folder = tmp_path / "here" / "vllm-0.22.0"

    first = run("new", "internvl", "--vllm", "0.22.0", "--static")

    assert first.code == 0, first.err
    assert "Making a working copy of vLLM 0.22.0 in vllm-0.22.0\n" in first.err
    assert first.err.endswith("Undo with: vitcg-scaffold revert vllm-0.22.0\n")
    run_it = "To prove it numerically: vitcg-scaffold verify internvl --vllm vllm-0.22.0\n"
    assert f"Proven statically only: --static was given. {run_it}" in first.err
    assert "Then the text of a pull request: vitcg-scaffold pr internvl --vllm vllm-0.22.0\n" in first.err
    # The same line again uses the copy and finds nothing to do.
    second = run("new", "internvl", "--vllm", "0.22.0")  # which proves nothing anew
    assert (second.code, second.out.count("unchanged")) == (0, 5)
    assert "working copy" not in second.err
    # --check looks at the pristine release, unless the copy is named.
    assert run("new", "internvl", "--vllm", "0.22.0", "--check").code == 1
    assert run("new", "internvl", "--vllm", "0.22.0", "--into", folder, "--check").code == 0

    assert run("revert", folder).code == 0
    names = [path.relative_to(pristine).as_posix() for path in pristine.rglob("*") if path.is_file()]
    assert len(names) > 4000
    assert filecmp.cmpfiles(pristine, folder, names, shallow=False)[0] == names
    assert {path.name for path in folder.iterdir()} == {path.name for path in pristine.iterdir()} | {".vitcg-scaffold"}


def test_working_copy_is_not_made_for_a_port_that_is_refused(run, tmp_path):
    done = run("new", "internvl", "--vllm", "0.33.0")  # hand-written, no --replace

    assert done.code == 5
    assert list((tmp_path / "here").iterdir()) == []


def test_working_copy_of_another_release_is_refused(run, small_tree):
    before = contents(small_tree)

    done = run("new", "internvl", "--vllm", "0.33.0", "--into", small_tree, "--replace")

    assert done.code == 4
    assert "error[VCG409]" in done.err
    assert "holds vLLM 0.22.0, not 0.33.0" in done.err
    assert contents(small_tree) == before


def test_into_goes_with_a_release_only(run, small_tree):
    done = run("new", "internvl", "--vllm", small_tree, "--into", "elsewhere")

    assert done.code == 2
    assert "--into names the working copy of a release" in done.err


def test_installed_package_is_ported_in_place(run, installed_tree):
    """An installed package holds the package folder alone: the model class is all there is to port."""
    for folder in ("tests", "docs", "examples"):
        shutil.rmtree(installed_tree / folder)

    done = run("new", "internvl", "--vllm", "installed", "--static")

    assert done.code == 0, done.err
    assert "VCG426" in done.err
    assert [line.split()[:2] for line in done.out.splitlines()] == [["changed", MODEL]]


@pytest.mark.parametrize("place", ["in the tree", "below it", "above it"])
def test_revert_finds_the_tree(run, ported, monkeypatch, place):
    monkeypatch.chdir({"in the tree": ported, "below it": ported / "vllm", "above it": ported.parent}[place])

    done = run("revert")

    if place == "above it":
        assert done.code == 5
        assert "help: name the tree: `tree`" in done.err
    else:
        assert (done.code, done.err) == (0, "Undid: new internvl\n")


def test_revert_says_which_files_it_removes(run, tmp_path):
    done = run("new", "internvl")
    assert done.code == 0, done.err
    assert "Proven statically only. For the numerical proof: pytest generated/tests\n" in done.err

    back = run("revert", "generated")

    assert back.code == 0
    assert {line.split()[0] for line in back.out.splitlines()} == {"removed"}


def test_adapters_of_a_model_without_a_recipe_are_proven_as_its_port(run):
    Path("mine.yaml").write_bytes(shipped_path("internvl").read_bytes())

    done = run("new", "mine.yaml")

    assert done.code == 0, done.err
    assert "For the numerical proof: vitcg-scaffold verify mine.yaml --vllm RELEASE\n" in done.err
    assert not Path("generated/tests").exists()


def test_plan_shows_each_edit_and_what_was_derived(run, small_tree):
    done = run("plan", "internvl", "--vllm", small_tree, "-v")

    assert done.code == 0
    assert f"internvl on {small_tree}: protocol v0_22\n" in done.out
    for line in (
        "  protocol = v0_22  (",
        f"  model = InternVLChatModel  ({MODEL}:",
        f"\n{MODEL}\n  implement SupportsEncoderCudaGraph in InternVLChatModel\n",
        "  - from .interfaces import SupportsEncoderCudaGraph\n",
        "  - SupportsEncoderCudaGraph becomes a base of InternVLChatModel\n",
        "  - MODEL_CONFIGS gets `internvl`, ",
        " lines\n",
        f"\n{TEST}\n",
        f"\n{DOCS}\n",
        f"\n{EXAMPLE}\n  allow encoder CUDA graphs in the example\n",
    ):
        assert line in done.out
    assert " = " not in run("plan", "internvl", "--vllm", small_tree).out.splitlines()[1]


#: One of each layout: every kind of edit.
LAYOUTS = {"deepseek_ocr", "internvl", "lfm2_vl", "llava_next", "qwen2_5_vl", "step3_vl"}
#: What 0.33 has a port of is planned there in tests/upstream/test_comparison.py.
COMPARED = json.loads((ROOT / "benchmarks/results/upstream_0.33.0.json").read_text("utf-8"))["models"]


def test_each_layout_has_a_model() -> None:
    assert sorted(load_port(model).layout for model in LAYOUTS) == sorted(PORTS)


@pytest.mark.parametrize("model", sorted(LAYOUTS | set(shipped_names()) - COMPARED.keys()))
def test_the_plan_of_a_shipped_model_is_shown(run, model, release_tree):
    done = run("plan", model, "--vllm", release_tree("0.33.0").root, "--replace")

    assert done.code == 0, done.err
    assert "\n  - methods of " in done.out


@pytest.mark.parametrize(("release", "generation"), [("0.20.0", "v0_20"), ("0.33.0", "v0_30")])
def test_protocol(run, release, generation):
    text = run("protocol", "--vllm", release)
    facts = json.loads(run("protocol", "--vllm", release, "--json").out)

    assert text.out.startswith(f"vllm-{release}: protocol {generation} ")
    assert (facts["generation"], facts["release"]) == (generation, release)
    for method in facts["methods"]:
        assert str(method) in text.out


@pytest.mark.parametrize(
    "command",
    [
        ("new", "--vllm", "TREE", "--check"),
        ("new", "--check"),
        ("plan", "--vllm", "TREE"),
        ("new", "--diff"),
    ],
    ids=" ".join,
)
def test_warnings_of_the_descriptor_are_shown_once(run, small_tree, tmp_path, command):
    text = (SHIPPED / "internvl.yaml").read_text("utf-8")
    assert text.count("\nlet:\n") == 1
    (tmp_path / "here/mine.yaml").write_text(text.replace("\nlet:\n", "\nlet:\n  spare: 4\n"), "utf-8")
    name, *options = (str(small_tree) if word == "TREE" else word for word in command)

    done = run(name, "mine.yaml", *options)

    assert done.code in (0, 1)
    assert done.err.count("warning[VCG305]: `spare` is never used") == 1
    assert "mine.yaml:" in done.err
    assert "VCG305" not in run("--quiet", name, "mine.yaml", *options).err
