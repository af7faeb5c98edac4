"""The survey of a release: rows are what runs today, nothing is run twice, and what is of other code is shown so."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from init_draft import RUN, tiles_fit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import measured_reach
import reach

from scaffold.descriptor.load import shipped_path
from scaffold.draft import Draft
from scaffold.verify.numeric import recipes

RELEASE = "0.33.0"
#: What no run is needed for: the beginning of the reason.
REFUSED = {
    "TransformersMultiModalForCausalLM": "VCG483: the model is beyond the layouts: ",
}


def draft_of(class_name: str) -> Draft:
    """Phi-3-V's descriptor, as a draft of a class in its module."""
    path = shipped_path("phi3v")
    assert path is not None
    return Draft("phi3v", path.read_text().replace("class: Phi3VForCausalLM", f"class: {class_name}"), (), (), ())


@pytest.fixture(autouse=True)
def unrun(monkeypatch):
    """No model is run: one that is not refused before shows InternVL's tiles."""
    tiles_fit(monkeypatch.setattr)
    monkeypatch.setattr(reach, "recorded", lambda *_: RUN)


@pytest.mark.trees
def test_a_row_is_what_runs_today(release_tree):
    row, draft = reach.survey(release_tree(RELEASE), "InternVLChatModel")
    assert (row["static"], row["kind"], row["questions"], row["has_port"]) == ("proven", "tiles", 1, True)
    assert draft is not None
    assert row["code"]


@pytest.mark.trees
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_the_kept_one(name, release_tree):
    row, draft = reach.survey(release_tree(RELEASE), name)
    kept = reach.load(RELEASE)[name]
    assert (draft, row["kind"], row["code"]) == (None, None, "")
    assert row["reason"].startswith(REFUSED[name])
    same = ("architecture", "has_port", "kind", "questions", "static", "reason")
    assert {key: kept[key] for key in same} == {key: row[key] for key in same}, "run: make reach"


REPORT = {"checks": [{}, {}], "problems": [], "passed": True, "guessed": ["depth"]}
WRONG = {"checks": [{}], "problems": [{"code": "VCG651", "message": "differs", "notes": []}], "passed": False}
UNMADE = {
    "checks": [{}],
    "problems": [{"code": "VCG657", "message": "video failed (no inputs could be made: x)", "notes": []}],
    "passed": False,
}
#: name -> exit code, stdout, stderr -> numeric, comparisons, reason
SAID = {
    "right": ((0, json.dumps([REPORT]), ""), ("pass", 2, "")),
    "wrong": ((6, json.dumps([REPORT, WRONG]), ""), ("fail", 3, "VCG651: differs")),
    "no recipe": ((6, "", "x\nerror[VCG659]: no recipe\n = help: y\n"), ("none", 0, "VCG659: no recipe")),
    "no time": ((6, "", "error[VCG655]: m: no result\n"), ("none", 0, "VCG655: m: no result")),
    "the pristine model fails": (
        (6, "", "error[VCG656]: m: the pristine model cannot embed the inputs: KeyError\n"),
        ("none", 0, "VCG656: m: the pristine model cannot embed the inputs: KeyError"),
    ),
    "another refusal": ((4, "", "a:1: error[VCG420]: no module\n"), ("fail", 0, "VCG420: no module")),
    "a traceback": ((1, "", "Traceback\nKeyError: 'x'\n"), ("fail", 0, "KeyError: 'x'")),
    "no inputs of one modality": (
        (6, json.dumps([REPORT, UNMADE]), ""),
        ("none", 3, "VCG657: video failed (no inputs could be made: x)"),
    ),
    "nothing compared": ((0, "[]", ""), ("fail", 0, "verify said nothing")),
}


@pytest.mark.parametrize("name", SAID)
def test_what_verify_said(name):
    given, (numeric, checks, reason) = SAID[name]
    guessed = {"guessed": ["depth"]} if numeric == "pass" else {}
    assert reach.judged(*given) == {"numeric": numeric, "checks": checks, "reason": reason, **guessed}


@pytest.mark.parametrize("name", ["with a file", "without"])
def test_a_configuration_that_is_there_is_given_and_said(name, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "KNOWN", tmp_path)
    if name == "with a file":
        (tmp_path / "Model.json").write_text("{}")
    asked = []

    def run(command, **options):
        asked.extend(command)
        return subprocess.CompletedProcess(command, 0, json.dumps([REPORT]), "")

    monkeypatch.setattr(reach.subprocess, "run", run)
    row = reach.verify(draft_of("Phi3VForCausalLM"), "Model", RELEASE)
    assert asked[asked.index("--recipe") + 1] == "automatic"
    assert (row["numeric"], row["config"], row["guessed"]) == (
        "pass",
        "given" if asked[-2] == "--config" else "found",
        ["depth"],
    )
    assert ("--config" in asked) == (name == "with a file")


@pytest.mark.parametrize(("class_name", "recipe"), [("Phi3VForCausalLM", True), ("AnotherOfTheModule", False)])
def test_a_shipped_recipe_serves_where_the_automatic_one_cannot(class_name, recipe, monkeypatch):
    asked = []

    def run(command, **options):
        asked.append("--recipe" in command)
        automatic = (6, "", "error[VCG668]: no model could be made\n")
        return subprocess.CompletedProcess(command, *(automatic if asked[-1] else (0, json.dumps([REPORT]), "")))

    monkeypatch.setattr(reach.subprocess, "run", run)
    row = reach.verify(draft_of(class_name), "Model", RELEASE)
    assert asked == [True, False][: 1 + recipe]
    assert (row["numeric"], row["config"]) == (("pass", "recipe") if recipe else ("none", "found"))
    row |= {"code": "a", "verified": "a"}
    assert not measured_reach.alone(row)


def test_every_given_configuration_is_of_a_row():
    names = {path.stem for path in recipes.KNOWN.glob("*.json")}
    assert names <= reach.load(RELEASE).keys()
    assert all(len(path.read_text()) < 2000 for path in recipes.KNOWN.glob("*.json"))


@pytest.fixture
def run(tmp_path, monkeypatch, release_tree):
    """`run(*options)`: the rows after a run in an empty folder, and the drafts that were verified in it.

    The tree stays as it is, so it is read once, and each architecture is drafted and planned once.
    """
    tree = release_tree(RELEASE)
    survey = cache(partial(reach.survey, tree))
    monkeypatch.setattr(reach, "survey", lambda _, name, __: deepcopy(survey(name)))
    monkeypatch.setattr("scaffold.protocol.resolve_target", lambda _: SimpleNamespace(tree=tree))
    monkeypatch.setattr(reach, "RESULTS", tmp_path)
    monkeypatch.setattr(reach.os, "nice", lambda _: 0)
    verified = []

    def verify(draft, name, release):
        verified.append(draft.name)
        return {"numeric": "pass", "checks": 7, "reason": ""}

    monkeypatch.setattr(reach, "verify", verify)

    def call(*options):
        verified.clear()
        monkeypatch.setattr(sys, "argv", ["reach.py", *options])
        assert reach.main() == 0
        return reach.load(RELEASE), list(verified)

    return call


@pytest.mark.trees
def test_nothing_runs_twice_and_other_code_is_outdated(run, tmp_path):
    only = ("--only", "InternVLChatModel", "--only", "TransformersMultiModalForCausalLM")
    rows, verified = run(*only, "--static")
    assert verified == []
    assert {name: measured_reach.numeric(row) for name, row in rows.items()} == dict.fromkeys(rows, "not run")
    rows, verified = run(*only)
    assert verified == ["internvl"]
    assert measured_reach.numeric(rows["InternVLChatModel"]) == "pass"
    assert run(*only)[1] == []
    assert run(*only, "--again")[1] == ["internvl"]
    path = reach.path_of(RELEASE)
    path.write_text(path.read_text().replace(rows["InternVLChatModel"]["code"], "other"))
    rows, verified = run(*only, "--static")
    assert verified == []
    assert measured_reach.numeric(rows["InternVLChatModel"]) == "outdated (pass)"
    assert run(*only)[1] == ["internvl"]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.trees
def test_an_unknown_architecture_is_refused(run, capsys):
    with pytest.raises(SystemExit) as stop:
        run("--only", "Zebra")
    assert stop.value.code == 2
    assert "has no multimodal architecture Zebra" in capsys.readouterr().err
