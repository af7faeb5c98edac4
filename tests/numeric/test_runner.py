"""The parent never hangs and never raises for a defect of the change: each way to fail has its own diagnostic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from captured import captured

from scaffold.diagnostics import DiagnosticError, Exit, Severity
from scaffold.verify.numeric import (
    Check,
    NumericOptions,
    NumericReport,
    NumericRequest,
    ObservedHazard,
    check_numerics,
    check_real_graphs,
    cpu_imports,
    runner,
)
from scaffold.verify.numeric import child as child_process
from scaffold.verify.numeric.overlay import build_overlay, changed_modules
from scaffold.verify.numeric.reports import NoteTaker

REPORT = {"checks": [], "hazards": [], "hits": 3, "misses": 1, "negative_lengths": 0}


@pytest.fixture
def request_for(tmp_path: Path) -> NumericRequest:
    tree = tmp_path / "tree"
    for name in ("vllm/__init__.py", "vllm/a/__init__.py", "vllm/a/x.py", "vllm/a/y.py", "vllm/b/z.py", "docs/d.md"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(f"# {name}\n")
    return NumericRequest(tree=tree, overlay={}, recipe="internvl", options=NumericOptions(timeout_s=30))


def child(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let the child be a few lines that know `say(**event)` and `ask()`."""
    script = (
        "import json, sys, os, time, signal\n"
        "def ask(): return json.loads(sys.stdin.readline())\n"
        "def say(**event): print(json.dumps(event), flush=True)\n"
        f"tree = ask()\n{body}"
    )
    monkeypatch.setattr(runner._Child, "command", (sys.executable, "-c", script))


def serving(monkeypatch: pytest.MonkeyPatch, log: Path, failure: str = "sys.exit(1)") -> None:
    """Let the child note its number, and serve one request after the other; it fails so where the tail is fa3."""
    child(
        monkeypatch,
        f"open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "for line in sys.stdin:\n"
        f"    if json.loads(line)['tail'] == 'fa3': {failure}; continue\n"
        "    say(event='progress', text='asked')\n"
        f"    say(event='report', data={json.dumps(REPORT)}); say(event='ended', status=0)\n",
    )


def processes(log: Path) -> list[int]:
    """The numbers of the children so far."""
    return [int(line) for line in log.read_text().split()]


def elsewhere(request: NumericRequest, tree: Path) -> NumericRequest:
    """The same of another tree."""
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm/__init__.py").touch()
    return replace(request, tree=tree)


def error_event(role: str, stage: str, kind: str = "ValueError") -> str:
    return f"ask(); say(event='error', role={role!r}, stage={stage!r}, kind={kind!r}, message='m', traceback=['t\\n'])"


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        pytest.param("ask(); time.sleep(60)", "VCG655", "no result within 1 s", id="hangs"),
        pytest.param("ask(); sys.exit(3)", "VCG654", "status 3", id="exits"),
        pytest.param("ask(); os.kill(os.getpid(), signal.SIGKILL)", "VCG655", "memory runs out", id="killed"),
        pytest.param("ask(); say(event='ended', status=-9)", "VCG655", "memory runs out", id="its fork is killed"),
        pytest.param("sys.exit(3)", "VCG654", "status 3", id="exits before it is asked"),
        pytest.param("ask(); say(event='ended', status=-11)", "VCG654", "status -11", id="its fork crashes"),
        pytest.param(error_event("both", "manager"), "VCG654", "ValueError: m", id="the manager raises"),
        pytest.param(
            error_event("pair", "build"),
            "VCG654",
            "the changed model cannot be built",
            id="the changed model does not build",
        ),
        pytest.param(
            error_event("both", "build"),
            "VCG656",
            "the pristine model cannot be built",
            id="the pristine model does not build",
        ),
        pytest.param(
            error_event("oracle", "build"), "VCG656", "the pristine model cannot be built", id="oracle, build"
        ),
        pytest.param(error_event("tree", "import", "ModuleNotFoundError"), "VCG656", "m", id="nothing is installed"),
        pytest.param(error_event("pair", "weights"), "VCG664", "m", id="parameters were renamed"),
        pytest.param(error_event("both", "protocol"), "VCG667", "m", id="the model is not ported"),
    ],
)
def test_a_child_that_fails_is_a_failed_report(
    body: str, code: str, text: str, request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(monkeypatch, body)
    limit = 1.0 if "sleep" in body else 30.0
    report = check_numerics(replace(request_for, options=NumericOptions(timeout_s=limit)))
    assert not report.passed
    assert report.failure is not None
    assert report.failure.code == code
    assert text in report.failure.message
    assert report.failure.help
    assert report.lines()[-1].startswith("FAIL")


def test_what_was_done_is_said_when_time_runs_out(request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    done = "{'name': 'mixed sizes', 'modality': 'image', 'comparisons': 2, 'sources': []}"
    says = f"say(event='progress', text='makes a model'); say(event='property', data={done})"
    child(monkeypatch, f"ask(); {says}; time.sleep(60)")
    report = check_numerics(replace(request_for, options=NumericOptions(timeout_s=1.0)))
    assert report.failure is not None
    first, second = report.failure.notes
    assert (first, second[:19], second[-10:]) == ("makes a model", "ok   image mixed si", "2 compared")


@pytest.mark.parametrize(("pristine_fails", "blamed"), [(True, "oracle"), (False, "pair")])
def test_a_change_is_not_blamed_for_a_release_that_does_not_run(
    pristine_fails: bool, blamed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models fail at the same import; the changed one is faster."""
    log = tmp_path / "events"

    class Logged:
        def send(self, event: str, **fields: object) -> None:
            with log.open("a") as file:
                file.write(json.dumps({"event": event, **fields}) + "\n")

    def pristine(*given: object) -> None:
        time.sleep(0.2)
        if pristine_fails:
            raise ModuleNotFoundError("No module named 'timm'")

    def changed(*given: object) -> None:
        raise ModuleNotFoundError("No module named 'timm'")

    monkeypatch.setattr(child_process, "_write_oracle", pristine)
    monkeypatch.setattr(child_process, "_check_changed", changed)
    monkeypatch.setattr(cpu_imports, "switch_tree", lambda *roots: None)
    request = {"root": str(tmp_path), "changed_root": str(tmp_path)}
    stages = child_process.Stages("pair", Logged())  # type: ignore[arg-type]
    stages.run(lambda inner: child_process._serve_pair(request, Logged(), inner))  # type: ignore[arg-type]
    assert [json.loads(line)["role"] for line in log.read_text().splitlines()] == [blamed]


def test_what_was_returned_is_looked_at_where_no_changed_file_raised(
    request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(request_for, overlay={"vllm/a/x.py": b"# another\n"})
    said = {}
    for name in ("x", "y"):
        frame = f'  File "/tmp/changed/vllm/a/{name}.py", line 1, in f\n'
        event = {"event": "error", "role": "pair", "stage": "manager", "kind": "E", "message": "", "traceback": [frame]}
        child(monkeypatch, f"ask(); say(**{event!r})")
        failure = check_numerics(request).failure
        assert failure is not None
        assert failure.code == "VCG654"
        said[name] = failure.help or ""
    assert said["x"].startswith("mend the changed file")
    assert said["y"].startswith("the traceback has no line of a changed file")


def raised(status: int | None) -> str:
    """A child says that a request raised, and how the fork that served it ended, if it did."""
    error = {"event": "error", "role": "both", "stage": "manager", "kind": "E", "message": "", "traceback": []}
    return f"say(**{error!r})" + ("" if status is None else f"; say(event='ended', status={status})")


@pytest.mark.parametrize(
    ("failure", "starts"),
    [("sys.exit(1)", 2), (raised(1), 1), (raised(-9), 1), (raised(None), 2), ("say(event='ended', status=-9)", 1)],
    ids=["died", "raised", "killed after it raised", "still runs after it raised", "killed"],
)
def test_one_process_serves_neighbours_and_is_replaced_where_it_may_still_run(
    failure: str, starts: int, request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    serving(monkeypatch, log, failure)
    requests = [
        replace(request_for, tail=tail, options=replace(request_for.options, timeout_s=3))
        for tail in ("fa2", "fa2", "fa3", "fa2")
    ]
    reports = runner.check_numerics_all(requests)
    assert [report.failure is None for report in reports] == [True, True, False, True]
    assert len(processes(log)) == starts


def interrupted(text: str) -> None:
    """Raises while a child runs."""
    raise KeyboardInterrupt(text)


def test_a_process_is_kept_warm_for_its_tree_only(
    request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    serving(monkeypatch, log)
    other = elsewhere(request_for, tmp_path / "other")
    said: list[str] = []
    with runner.keep_warm() as warm:
        assert runner.check_numerics(request_for).failure is None
        with runner.keep_warm():  # an inner one has its own, and ends it
            assert runner.check_numerics(request_for, watch=NoteTaker(said.append)).failure is None
        assert len(processes(log)) == 2
        assert runner.check_numerics(request_for, watch=NoteTaker(said.append)).failure is None
        assert (len(processes(log)), len(said)) == (2, 2), said  # the same process tells who asks now
        runner.check_numerics(other)
        runner.check_numerics(request_for)
        assert len(processes(log)) == 4
        assert runner.check_numerics(replace(request_for, tail="fa3")).failure is not None
        assert runner.check_numerics(request_for).failure is None
        assert len(processes(log)) == 5  # one that died is replaced
        with pytest.raises(DiagnosticError):
            runner.check_numerics(replace(request_for, recipe="resnet"))
        runner.check_numerics(request_for)
        assert len(processes(log)) == 5  # it was asked nothing
        with pytest.raises(KeyboardInterrupt):
            runner.check_numerics(request_for, watch=NoteTaker(interrupted))
        runner.check_numerics(request_for)
        assert len(processes(log)) == 6  # nobody knows what it was doing
        warm.close()
        with pytest.raises(ProcessLookupError):
            os.kill(processes(log)[-1], 0)
        runner.check_numerics(request_for)
        assert len(processes(log)) == 7
    for process in processes(log):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_processes_of_several_trees_are_kept_the_last_asked_ones(
    request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    serving(monkeypatch, log)
    trees = {name: elsewhere(request_for, tmp_path / name) for name in "abc"}
    with runner.keep_warm(trees=2):
        for name in "abacab":  # the third tree ends the process of b, and b then that of c
            assert runner.check_numerics(trees[name]).failure is None
        assert len(processes(log)) == 4
        with pytest.raises(KeyboardInterrupt):
            runner.check_numerics(trees["b"], watch=NoteTaker(interrupted))
        runner.check_numerics(trees["a"])
        assert len(processes(log)) == 4, "another tree's process stays"
        runner.check_numerics(trees["b"])
    assert len(processes(log)) == 5


#: Says which content of a file each process sees: in its own tree, and in the changed one that it is asked about.
SEES = f"""
for line in sys.stdin:
    asked = json.loads(line)
    for root in (tree["root"], asked["changed_root"]):
        if os.path.exists(root): say(event="progress", text=open(root + "/vllm/a/x.py").read())
    if asked["role"] != "oracle": say(event="report", data={json.dumps(REPORT)})
    say(event="ended", status=0)
"""


@pytest.mark.parametrize("before", [{}, {"vllm/a/x.py": b"old"}])
def test_a_change_that_stands_in_the_tree_is_compared_with_what_was_there(
    before: dict[str, bytes], request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(request_for, overlay={"vllm/a/x.py": b"new"}, before=before)
    child(monkeypatch, SEES)
    said: list[str] = []
    for warm in (nullcontext(), runner.keep_warm()):
        with warm:
            for request in (changed, request_for):
                assert check_numerics(request, watch=NoteTaker(said.append)).failure is None
    stands = "# vllm/a/x.py\n"
    assert said == 2 * ["old" if before else stands, "new", stands]


@pytest.mark.parametrize("before", [{}, {"vllm/a/x.py": b"old"}])
def test_real_graphs_of_a_change_that_stands_are_compared_with_what_was_there(
    before: dict[str, bytes], request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(monkeypatch, SEES)
    monkeypatch.setattr(runner._RealChild, "command", runner._Child.command)
    said: list[str] = []
    changed = replace(request_for, overlay={"vllm/a/x.py": b"new"}, before=before)
    report = check_real_graphs(changed, request_for.tree, watch=NoteTaker(said.append))
    assert report.failure is None, report.failure
    # The oracle, with the changed tree beside it; what runs on the graph may be read before or after.
    assert ("old" if before else "# vllm/a/x.py\n") in said
    assert ("# vllm/a/x.py\n" in said) != bool(before)
    assert "new" in said


@pytest.mark.parametrize("used", [True, False])
def test_the_child_uses_the_packages_of_a_user_where_we_do(
    used: bool, request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    monkeypatch.setattr(runner.site, "ENABLE_USER_SITE", used)
    off = "str('PYTHONNOUSERSITE' in os.environ)"
    child(monkeypatch, f"ask(); say(event='progress', text={off}); say(event='report', data={json.dumps(REPORT)})")
    said: list[str] = []
    check_numerics(request_for, watch=NoteTaker(said.append))
    assert (str(used) in said, str(not used) in said) == (False, True)


def test_everything_that_is_kept_lies_in_the_one_cache(
    request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VITCG_CACHE_DIR", str(tmp_path / "cache"))
    body = f"ask(); say(event='progress', text=tree['bytecode_cache']); say(event='report', data={json.dumps(REPORT)})"
    child(monkeypatch, f"{body}; say(event='ended', status=0)")
    said: list[str] = []
    check_numerics(request_for, watch=NoteTaker(said.append))
    (told,) = [text for text in said if "bytecode" in text]
    assert str(tmp_path / "cache" / "lab-bytecode") in told


def test_compiled_functions_of_a_tree_are_not_kept_in_it(
    request_for: NumericRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Numba keeps them beside their source: a release of the cache would not be what was unpacked (VCG407)."""
    source = tmp_path / "compiled.py"
    source.write_text("import numba\n@numba.njit(cache=True)\ndef plus(x):\n    return x + 1\n", "utf-8")
    run = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import compiled; compiled.plus(1)"
    child(monkeypatch, f"{run}; ask(); say(event='report', data={json.dumps(REPORT)}); say(event='ended', status=0)")
    check_numerics(request_for)
    assert not [*tmp_path.rglob("*.nbi")]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"recipe": "resnet"}, "VCG659"),
        ({"overlay": {"vllm/../../x.py": b""}}, "VCG663"),
        ({"overlay": {"/vllm/x.py": b""}}, "VCG663"),
        ({"tree": Path("/nonexistent")}, "VCG656"),
    ],
)
def test_a_request_without_sense_raises(changes: dict[str, object], code: str, request_for: NumericRequest) -> None:
    with pytest.raises(DiagnosticError) as caught:
        check_numerics(replace(request_for, **changes))  # type: ignore[arg-type]
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.exit) == (code, Exit.TARGET if code == "VCG656" else Exit.PROOF)


def test_an_overlay_is_links_except_for_what_it_replaces(request_for: NumericRequest, tmp_path: Path) -> None:
    root = tmp_path / "overlay"
    build_overlay(request_for.tree, {"vllm/a/x.py": b"new", "vllm/c/n.py": b"added", "docs/d.md": b"no"}, root)
    assert (root / "vllm/a/x.py").read_bytes() == b"new"
    assert (root / "vllm/c/n.py").read_bytes() == b"added"
    assert (root / "vllm/a/y.py").read_text() == "# vllm/a/y.py\n"
    assert (root / "vllm/a/y.py").is_symlink()
    assert (root / "vllm/b").is_symlink()
    assert not (root / "docs").exists()
    assert (request_for.tree / "vllm/a/x.py").read_text() == "# vllm/a/x.py\n"


def test_a_package_beside_the_tree_is_links_too(request_for: NumericRequest, tmp_path: Path, monkeypatch) -> None:
    for name in ("__init__.py", "models/m.py"):
        (tmp_path / "home/acme" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home/acme" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    beside = [("acme", Path("home/acme"))]  # a folder as a user may name it
    overlay = {"acme/models/m.py": b"new", "tests/t.py": b"no"}
    build_overlay(request_for.tree, overlay, tmp_path / "changed", beside)
    build_overlay(request_for.tree, {}, tmp_path / "pristine", beside)
    assert changed_modules(overlay) == ["acme.models.m"]
    assert (tmp_path / "changed/acme/models/m.py").read_bytes() == b"new"
    assert (tmp_path / "changed/acme/__init__.py").read_text() == "__init__.py"
    assert (tmp_path / "pristine/acme/models/m.py").read_text() == "models/m.py"
    assert (tmp_path / "changed/vllm/a/x.py").read_text() == "# vllm/a/x.py\n"
    assert (tmp_path / "home/acme/models/m.py").read_text() == "models/m.py"


OK = Check("c", "image", True, 0.0, 0.0)
BAD = Check("c", "video", False, 2.0, 0.5, "item 1")
SYNC = ObservedHazard("host sync", "aten::_local_scalar_dense", "vllm/a.py:3", "capture", 2)


@pytest.mark.parametrize(
    ("report", "passed", "codes"),
    [
        (NumericReport("m", "r", "fa2", (OK,)), True, []),
        (NumericReport("m", "r", "fa2", (OK, BAD)), False, ["VCG650"]),
        (NumericReport("m", "r", "fa2", (OK,), (SYNC,)), False, ["VCG652"]),
        (NumericReport("m", "r", "fa2"), False, ["VCG657"]),
        (NumericReport("m", "r", "fa2", (OK,), negative_lengths=3), False, ["VCG665"]),
    ],
)
def test_the_verdict(report: NumericReport, passed: bool, codes: list[str]) -> None:
    assert report.passed is passed
    assert [diagnostic.code for diagnostic in report.diagnostics()] == codes
    assert all(d.help for d in report.diagnostics())
    assert any(d.severity is Severity.ERROR for d in report.diagnostics()) is not passed
    request = NumericRequest(Path(), {}, "m", release="r")
    assert NumericReport.from_json(request, json.loads(json.dumps(report.to_json()))) == report


def test_the_parent_imports_no_torch() -> None:

    code = "import sys, scaffold.verify.numeric; sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.lab
def test_torchaudio_runs_without_its_compiled_part(tmp_path: Path) -> None:
    """`pip install '.[cpu]'` brings one for CUDA, which does not load beside a CPU torch."""
    package = tmp_path / "torchaudio"
    for name, text in {
        "__init__.py": "from . import _extension, functional\n",
        "_extension/__init__.py": "raise OSError('Could not load this library: _torchaudio.so')\n",
        "functional.py": """from torchaudio._extension import _IS_TORCHAUDIO_EXT_AVAILABLE, fail_if_no_align
@fail_if_no_align
def features(): return 80
""",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    code = f"""
        from pathlib import Path
        from scaffold.verify.numeric.cpu_imports import prepare
        prepare(Path({str(tmp_path)!r}), None)
        from importlib.util import find_spec
        import torchaudio
        assert torchaudio.functional.features() == 80 and not torchaudio.functional._IS_TORCHAUDIO_EXT_AVAILABLE
        assert find_spec("torchcodec") is None
    """
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = captured(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
