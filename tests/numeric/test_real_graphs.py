"""Real CUDA graphs: when they can be run, and the process that runs them, with a CPU in place of the GPU."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changed_ports import port_of
from test_recipe_files import MINE

from scaffold.cli import main
from scaffold.protocol import Target, TargetKind
from scaffold.verify import numeric, proofs
from scaffold.verify.numeric import (
    Missing,
    NumericOptions,
    NumericReport,
    NumericRequest,
    check_real_graphs,
    find_installed,
    installed,
    runner,
)
from scaffold.verify.numeric.recipes import AUTOMATIC
from scaffold.workflow import load_port, numeric_requests

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import graphs_gpu
import measured
import measured_graphs

MODEL = "vllm/model_executor/models/a.py"
MANAGER = ("vllm/v1/worker/encoder_cudagraph.py", "vllm/v1/worker/encoder_cudagraph_defs.py")


def make_tree(root: Path) -> Path:
    for path in ("vllm/__init__.py", MODEL, *MANAGER):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"# {path}\n")
    return root


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[NumericRequest, Path]:
    """A request, and the folder of an installed vLLM, on a machine with a GPU."""
    tree, site = make_tree(tmp_path / "tree"), make_tree(tmp_path / "site")
    monkeypatch.setattr(installed, "_gpus", lambda: 1)
    monkeypatch.setattr(installed, "_cuda_of_torch", lambda: "13.0")
    monkeypatch.setattr(installed, "_installed_root", lambda: site)
    return NumericRequest(tree, {MODEL: b"new", "docs/a.md": b"new"}, "internvl"), site


def test_the_installed_release_runs_a_change(machine: tuple[NumericRequest, Path]) -> None:
    request, site = machine
    assert find_installed(request) == site
    assert find_installed(replace(request, overlay={})) == site


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("_gpus", 0, "there is no GPU here"),
        ("_cuda_of_torch", None, "torch is not installed here, or was built without CUDA"),
        ("_installed_root", None, "vLLM is not installed here"),
    ],
)
def test_what_is_missing_is_said(
    name: str, value: Any, reason: str, machine: tuple[NumericRequest, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, name, lambda: value)
    assert find_installed(machine[0]) == Missing(reason)


@pytest.mark.parametrize("overlay", [{MODEL: b"new"}, {}], ids=["a change", "as it is"])
@pytest.mark.parametrize("path", [MODEL, *MANAGER])
def test_another_release_is_not_taken_for_the_tree(
    path: str, overlay: dict[str, bytes], machine: tuple[NumericRequest, Path]
) -> None:
    request, site = machine
    (site / path).write_text("# of another release\n")
    assert find_installed(replace(request, overlay=overlay)) == Missing(
        f"the installed vLLM is not this tree: {path} differs"
    )
    (site / path).unlink()
    assert isinstance(find_installed(replace(request, overlay=overlay)), Missing)


def test_this_machine_is_asked_without_importing_torch() -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    import torch

    assert installed._cuda_of_torch() == torch.version.cuda
    assert (installed._gpus() > 0) is torch.cuda.is_available()


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("recipe") / "short.py"
    file.write_text(MINE)
    return str(file)


@pytest.fixture(scope="module")
def on_cpu() -> Iterator[None]:
    child = Path(__file__).with_name("real_child.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner._RealChild, "command", (sys.executable, str(child)))
        yield


def port(release_tree: Any, recipe: str) -> NumericRequest:
    (request,) = numeric_requests(load_port("internvl"), release_tree("0.33.0"), recipe=recipe)
    return replace(request, options=NumericOptions())


@pytest.fixture(scope="module")
def compared(release_tree: Any, short: str, on_cpu: None) -> tuple[NumericRequest, NumericReport]:
    """A request, and its report."""
    request = port(release_tree, short)
    return request, check_real_graphs(request, request.tree)


@pytest.mark.trees
@pytest.mark.lab
def test_our_manager_is_compared_with_eager_results_of_the_pristine_class(
    compared: tuple[NumericRequest, NumericReport],
) -> None:
    request, report = compared
    assert report.passed, "\n".join(report.lines())
    assert report.machine == "a CPU"
    assert report.hits > 30
    assert report.misses > 5
    names = [found.name for found in report.properties()]
    assert names == [
        "eager on the GPU, changed and pristine",
        "eager on the GPU, changed and pristine",
        "real graphs, our manager",
        "real graphs, our manager",
        "no unwritten memory reaches a result",
    ]
    assert report.verdict.startswith("PASS: 36 of 36 checks")
    assert report.verdict.endswith(" eager, on a CPU")

    path = "vllm/model_executor/models/internvl.py"
    text = request.overlay[path].decode()
    changed = text.replace("output_tokens=n * self.num_image_token", "output_tokens=n * self.num_image_token - 1")
    assert changed != text
    wrong: NumericReport = check_real_graphs(
        replace(request, overlay={**request.overlay, path: changed.encode()}), request.tree
    )
    assert not wrong.passed
    assert "VCG650" in {diagnostic.code for diagnostic in wrong.diagnostics()}, "\n".join(wrong.lines())


def run_command(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """`python -m scaffold.cli ...` in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(words[words.index("scaffold.cli") + 1 :])
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(words, ended.value.code, *texts)


@pytest.mark.trees
@pytest.mark.lab
def test_the_benchmark_of_real_graphs_runs_to_its_end(
    compared: tuple[NumericRequest, NumericReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release_tree: Any
) -> None:
    """With the command in this process, the emulated proof of the same short session, and the report from above."""
    request, report = compared
    target = Target(TargetKind.INSTALLED, release_tree("0.33.0"))
    monkeypatch.setattr("scaffold.protocol.resolve_target", lambda text, **_: target if text == "installed" else None)
    monkeypatch.setattr("scaffold.workflow.numeric_requests", lambda *_, **__: (request,))
    monkeypatch.setattr(numeric, "find_installed", lambda asked: asked.tree)
    monkeypatch.setattr(numeric, "check_real_graphs", lambda *_, **__: report)
    monkeypatch.setattr(proofs, "keep_proof", lambda *_: None)
    started = SimpleNamespace(run=run_command, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(graphs_gpu, "subprocess", started)
    # The command takes signals, as only a main thread may.
    monkeypatch.setattr(graphs_gpu, "ThreadPoolExecutor", lambda _: nullcontext(SimpleNamespace(map=map)))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.33.0"))  # type: ignore[misc]
    monkeypatch.setattr(
        sys, "argv", ["graphs_gpu.py", "--out", str(tmp_path / "graphs_cpu.json"), "--models", "internvl"]
    )

    assert graphs_gpu.main() == 0

    [row] = json.loads((tmp_path / "graphs_cpu.json").read_text("utf-8"))["rows"]
    assert (row["outcome"], row["device"], row["exit"]) == ("proven", "a CPU", 0)
    assert row["real"]["checks"] == row["real"]["passed"] == 36
    assert row["emulated"]["checks"] == row["emulated"]["passed"] > 10
    assert (row["real"]["replayed"], row["real"]["eager"]) == (report.hits, report.misses)
    for module in (measured, measured_graphs):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    [page] = measured_graphs.pages()
    assert "| 0.33 | InternVL |" in page.text
    assert "graphs_cpu.json" in page.text


@pytest.mark.trees
@pytest.mark.lab
def test_an_automatic_recipe_has_budgets_in_the_tokens_of_the_port(release_tree: Any, on_cpu: None) -> None:
    """BLIP-2: an image has 32 embeddings, and takes 257 tokens of a budget."""
    (request,) = numeric_requests(port_of("blip2"), release_tree("0.33.0"), recipe=AUTOMATIC)
    report = check_real_graphs(replace(request, options=NumericOptions()), request.tree)

    assert report.passed, "\n".join(report.lines())
    assert (report.hits > 40, report.misses) == (True, 0)
    assert "items replayed, our manager" in [found.name for found in report.properties()]


@pytest.mark.trees
def test_a_vllm_that_does_not_import_is_named(release_tree: Any, short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import json, sys\nsys.stdin.readline()\n"
        "print(json.dumps(dict(event='error', role='tree', stage='import', kind='ImportError', message='no kernels',"
        " traceback=[])), flush=True)"
    )
    monkeypatch.setattr(runner._RealChild, "command", (sys.executable, "-c", script))
    request = NumericRequest(release_tree("0.33.0").root, {}, short)
    report = check_real_graphs(request, request.tree)
    assert not report.passed
    assert report.failure is not None
    assert report.failure.code == "VCG656"
    assert "import vllm" in str(report.failure.help)


@pytest.mark.skipif(installed._gpus() == 0, reason="needs a GPU")
@pytest.mark.parametrize("model", ["internvl", "qwen2_5_vl"])
def test_a_port_of_the_installed_release_on_this_gpu(model: str) -> None:
    from scaffold.protocol import resolve_target

    (request,) = numeric_requests(load_port(model), resolve_target("installed").tree)
    root = find_installed(request)
    assert isinstance(root, Path)
    report = check_real_graphs(request, root)
    assert report.passed, "\n".join(report.lines())
    assert {"real graphs, vLLM's manager", "real graphs, our manager"} < {f.name for f in report.properties()}
