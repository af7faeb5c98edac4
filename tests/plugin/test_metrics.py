"""The counters among vLLM's metrics, over processes, and the dashboard that shows them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cpu_wheel
import prometheus_client
import promql_parser
import pytest
from captured import captured
from prometheus_client.parser import text_string_to_metric_families

from scaffold import plugin
from scaffold.runtime import GraphKey, Stats
from scaffold.runtime.vllm import metrics, served
from scaffold.runtime.vllm.served import ServedManager

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "grafana.json"
LABELS = {"model_name": "m", "engine": "0", "rank": "0"}
needs_vllm = pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs the `cpu` extra")


@pytest.fixture(autouse=True)
def no_folders(monkeypatch):
    monkeypatch.delenv(metrics.VLLMS, raising=False)
    monkeypatch.delenv(metrics.OURS, raising=False)
    metrics._file.cache_clear()


def counted() -> Stats:
    stats = Stats()
    stats.hit(GraphKey("default", 8), 2, 6)
    stats.hit(GraphKey("tiles", 16, (2, "image")), 1, 16)
    stats.miss("over-budget", 3)
    stats.keys[GraphKey("default", 8)].sampled_ms, stats.keys[GraphKey("default", 8)].sampled = 5.0, 1
    return stats


def shown(folder: Path) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a server shows of the files in a folder: every sample with its labels."""
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(metrics._Files(folder))
    text = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found, name: str, **labels: str) -> float:
    return found[f"encoder_cudagraph_{name}_total", frozenset({**LABELS, **labels}.items())]


def write_in_a_process(folder: str, engine: str) -> None:
    os.environ[metrics.VLLMS] = folder
    metrics.write(counted(), False, {**LABELS, "engine": engine})


def test_the_files_of_two_engines_add_up_by_their_labels(tmp_path):
    for engine in ("0", "1"):
        process = multiprocessing.get_context("fork").Process(target=write_in_a_process, args=(str(tmp_path), engine))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    found = shown(tmp_path)
    for engine in ("0", "1"):
        assert value(found, "items", engine=engine) == 6
        assert value(found, "hits", engine=engine) == 3
        assert value(found, "misses", reason="over-budget", engine=engine) == 3
        assert value(found, "tokens", engine=engine) == 22
        assert value(found, "computed_tokens", engine=engine) == 24
        assert value(found, "replays", path="tiles", budget="16", axes="2,image", engine=engine) == 1
        assert value(found, "sampled_seconds", engine=engine) == 0.005
        assert value(found, "given_up", engine=engine) == 0


def test_a_later_manager_of_a_process_goes_on_in_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv(metrics.OURS, str(tmp_path / "made"))
    for _ in range(2):
        metrics.write(counted(), True, LABELS)
    (file,) = (tmp_path / "made").iterdir()
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    found = shown(file.parent)
    assert (value(found, "hits"), value(found, "given_up")) == (3, 1)


def test_without_a_server_there_is_nothing_to_write():
    metrics.write(counted(), False, LABELS)


@pytest.mark.parametrize("name", [metrics.VLLMS, metrics.OURS])
def test_a_process_whose_parent_shows_the_files_shows_none(monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(prometheus_client.REGISTRY, "register", lambda collector: pytest.fail("registered"))
    metrics.show_workers()


def test_graphs_do_not_depend_on_the_metrics(monkeypatch, caplog):
    def refused(collector):
        raise ValueError("a name is taken")

    for name in (metrics.VLLMS, metrics.OURS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(prometheus_client.REGISTRY, "register", refused)
    monkeypatch.setattr(plugin, "_told", set())
    with caplog.at_level("WARNING", logger=plugin.logger.name):
        plugin._show_counters()
    assert "not among vLLM's metrics: a name is taken" in caplog.text
    assert metrics.place() is None  # no worker writes what nobody shows


def test_the_folder_goes_with_the_process_that_named_it(tmp_path):
    script = (
        "import os; from scaffold.runtime import Stats; from scaffold.runtime.vllm import metrics\n"
        "metrics.show_workers(); metrics.show_workers()\n"
        "folder = os.environ[metrics.OURS]; assert not os.path.exists(folder)\n"
        "metrics.write(Stats(), False, {}); assert os.path.exists(folder)\n"
        "pid = os.fork()\n"
        "if not pid: raise SystemExit\n"
        "os.waitpid(pid, 0); assert os.path.exists(folder)\n"
        "import prometheus_client; assert b'encoder_cudagraph_hits_total' in prometheus_client.generate_latest()\n"
        "import atexit; atexit._run_exitfuncs(); metrics.write(Stats(), False, {})\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = captured([sys.executable, "-c", script], env=env)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_start_removes_what_killed_servers_left(tmp_path):
    """And nothing that a worker still writes, that is new, or that is no folder of ours."""
    write = (
        "import os, signal; from scaffold.runtime import Stats; from scaffold.runtime.vllm import metrics\n"
        "metrics.show_workers(); metrics.write(Stats(), False, {}); print(flush=True)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", f"{write}os.kill(os.getpid(), signal.SIGKILL)"], env=env, check=False
    )
    (left,) = tmp_path.iterdir()
    lives = subprocess.Popen(
        [sys.executable, "-c", f"{write}input()"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        lives.stdout.readline()
        metrics.remove_left_over(tmp_path)
        (served,) = set(tmp_path.iterdir()) - {left}
        elsewhere, link = tmp_path / "elsewhere", tmp_path / "vitcg-metrics-link"
        elsewhere.mkdir()
        link.symlink_to(elsewhere)
        for folder in (left, served):
            os.utime(folder, (0, 0))
        os.utime(link, (0, 0), follow_symlinks=False)

        metrics.remove_left_over(tmp_path)
        assert killed.returncode == -signal.SIGKILL
        assert set(tmp_path.iterdir()) == {served, elsewhere, link}
    finally:
        lives.communicate(b"\n")
    assert set(tmp_path.iterdir()) == {elsewhere, link}


# -- the manager


def manager(**values) -> ServedManager:
    made = ServedManager.__new__(ServedManager)
    made.vllm_config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
    made._exports = True
    made.__dict__.update(values)
    return made


def test_a_manager_that_gives_up_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv(metrics.VLLMS, str(tmp_path))
    made = manager(tuned=None)
    made._export()
    assert value(shown(tmp_path), "given_up") == 0
    made._give_up("it failed", RuntimeError("planted"))
    assert value(shown(tmp_path), "given_up") == 1


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(metrics.VLLMS, str(tmp_path / "file"))
    said = []
    monkeypatch.setattr(served.logger, "warning", lambda text, *words: said.append(text % words))
    made = manager()
    made._export()
    made._export()
    assert [text.partition(":")[0] for text in said] == ["the counters of encoder graphs are not among vLLM's metrics"]


@pytest.mark.parametrize(
    ("engine", "rank", "stats"),
    [
        (0, 0, "a/stats.json"),
        (0, 1, "a/stats.rank1.json"),
        (2, 0, "a/stats.dp2.json"),
        (2, 1, "a/stats.dp2.rank1.json"),
    ],
)
def test_engines_and_ranks_write_files_of_their_own(monkeypatch, engine, rank, stats):
    from scaffold.runtime.vllm.settings import Settings

    distributed = SimpleNamespace(get_tensor_model_parallel_rank=lambda: rank)
    monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)
    made = manager(_ranks=2, settings=Settings(stats="a/stats.json", record="sizes"))
    made.vllm_config.parallel_config = SimpleNamespace(data_parallel_index=engine)
    made._name_files()
    assert (made.settings.stats, made._engine, made._rank) == (stats, engine, rank)
    assert made.settings.record == stats.removeprefix("a/").removesuffix(".json").replace("stats", "sizes")


# -- vLLM's own route


@pytest.mark.lab
@needs_vllm
def test_an_engine_counts_its_images_under_its_own_name(faults):
    found = shown(faults.folder / "metrics")
    assert value(found, "hits", model_name=str(faults.folder / "qwen2_vl")) == 5


@pytest.mark.lab
@needs_vllm
@pytest.mark.parametrize("servers", [1, 2])
def test_vllm_serves_the_counters_of_its_worker(tmp_path, servers):
    env = cpu_wheel.environment(tmp_path)
    done = cpu_wheel.run_python(Path(__file__).with_name("metrics_child.py"), str(servers), env=env)
    (found,) = cpu_wheel.results_of(done)
    assert "encoder_cudagraph" not in found["before"]
    assert len(found["said"]) == servers
    for said in found["said"]:
        assert 'encoder_cudagraph_hits_total{engine="0",model_name="m",rank="0"} 2.0\n' in said
        assert "encoder_cudagraph_given_up_total{" in said


# -- the dashboard


def selectors(node) -> list[promql_parser.VectorSelector]:
    """Every vector that an expression reads."""
    if isinstance(node, promql_parser.VectorSelector):
        return [node]
    if isinstance(node, promql_parser.MatrixSelector):
        return [node.vector_selector]
    parts = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "args")]
    flat = [one for part in parts for one in (part if isinstance(part, list) else [part]) if one is not None]
    return [found for part in flat for found in selectors(part)]


def test_the_dashboard_reads_counters_that_there_are(tmp_path, monkeypatch):
    monkeypatch.setenv(metrics.VLLMS, str(tmp_path))
    metrics.write(counted(), False, LABELS)
    labels: dict[str, set[str]] = {}
    for name, own in shown(tmp_path):
        labels.setdefault(name, set()).update(label for label, _ in own)
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 6
    read = set()
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            for vector in selectors(promql_parser.parse(target["expr"].replace("$__rate_interval", "5m"))):
                assert vector.name in labels, target["expr"]
                read.add(vector.name)
                matched = {matcher.name for matcher in vector.matchers.matchers}
                assert matched <= labels[vector.name]
            grouped = re.findall(r"by \((.*?)\)", target["expr"])
            legend = re.findall(r"{{(.*?)}}", target["legendFormat"])
            assert set(legend) <= {name.strip() for part in grouped for name in part.split(",")}
    assert read == set(labels), "a counter is on no panel"
    queries = {one["name"]: one["query"] for one in dashboard["templating"]["list"]}
    assert queries["datasource"] == "prometheus"
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", queries["model"])
    assert asked[2] in labels[asked[1]]


def test_panels_lie_beside_each_other():
    cells = set()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & mine
        cells |= mine
