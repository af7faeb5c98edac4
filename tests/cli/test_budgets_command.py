"""`budgets`: ladders from traces, and what can be wrong with a trace."""

from __future__ import annotations

import json
import os
import threading
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from cli_scene import child
from hypothesis import given, settings

from scaffold.cli.budgets import find_key
from scaffold.runtime.budgets import optimal_ladder, waste
from scaffold.runtime.trace import Trace

SIZES = {64: 10, 216: 3, 256: 7, 1152: 1, 1196: 4, 1732: 2, 2691: 2}


@pytest.fixture
def trace(tmp_path):
    def write(paths, name="sizes.json"):
        file = tmp_path / name
        file.write_text(json.dumps({"version": 1, "paths": paths}, indent=1))
        return file

    return write


def named(sizes):
    return {str(size): count for size, count in sizes.items()}


def test_the_table_shows_what_graphs_buy_and_how_to_use_the_ladder(run, trace):
    file = trace({"default": named(SIZES)})
    done = run("budgets", "--trace", file)

    assert (done.code, done.err) == (0, "")
    rows = [line.split() for line in done.out.splitlines()]
    shares = {int(row[0]): row[1] for row in rows if len(row) > 1 and row[0].isdigit() and row[1].endswith("%")}
    assert shares == {n: f"{waste(SIZES, optimal_ladder(SIZES, n)):.2%}" for n in (1, 2, 3, 4, 6, 7)}
    assert "29 batches of 7 sizes, 64 to 2691 tokens" in done.out
    assert shares[6] == "0.25%", "within half a per cent of the best, so a seventh graph does not pay"
    assert [str(budget) for budget in optimal_ladder(SIZES, 6)] in rows
    settings = json.loads(done.out.split("--additional-config '")[1].split("'")[0])
    assert settings == {"encoder_graphs": {"trace": str(file), "graphs": 6}}
    own = json.loads(done.out.split("--compilation-config '")[2].split("'")[0])
    assert own == {"cudagraph_mm_encoder": True, "encoder_cudagraph_token_budgets": optimal_ladder(SIZES, 6)}


@pytest.mark.parametrize(
    ("options", "ladder"),
    [
        (["--graphs", "2"], optimal_ladder(SIZES, 2)),
        (["--graphs", "3", "--keep", "4096", "--keep", "64"], [64, 1196, 4096]),
        (["--graphs", "99"], sorted(SIZES)),
    ],
)
def test_the_ladder_as_json(run, trace, options, ladder):
    done = run("budgets", "--trace", trace({"default": named(SIZES)}), "--json", *options)

    assert (done.code, done.err) == (0, "")
    path = json.loads(done.out)["paths"]["default"]
    assert path["ladder"] == ladder
    assert path["waste"] == pytest.approx(waste(SIZES, ladder))
    assert path["curve"][-1]["graphs"] == min(len(ladder), 7)


def test_several_traces_are_added_up_and_paths_stay_apart(run, trace):
    first = trace({"global": {"169": 2}, "local": {"81": 1, "162": 1}}, "a.json")
    second = trace({"local": {"81": 4}, "idle": {}, "never": {"7": 0}}, "b.json")
    done = run("budgets", "--trace", first, "--trace", second, "--json")

    paths = json.loads(done.out)["paths"]
    assert {path: (facts["batches"], facts["ladder"]) for path, facts in paths.items()} == {
        "global": (2, [169]),
        "local": (6, [81, 162]),
    }
    text = run("budgets", "--trace", first, "--trace", second).out
    assert json.dumps([str(first), str(second)]) in text
    assert "encoder_cudagraph_token_budgets" not in text  # vLLM's option has one ladder for all paths


def test_the_plot_has_every_path(run, trace, tmp_path):
    plot = tmp_path / "waste.svg"
    done = run("budgets", "--trace", trace({"default": named(SIZES), "local": {"81": 1}}), "--plot", plot)

    assert done.code == 0
    assert f"plot written to {plot}" in done.err
    said = {text.text for text in ElementTree.fromstring(plot.read_text()).findall(".//{*}text")}
    assert {"default", "local", "graphs"} <= said


GOOD = '{"version": 1, "paths": {"default": {"64": 1}}}'


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("", "VCG801", "1:1"),
        ('{"version": 1,\n "paths": }', "VCG801", "2:11"),
        ("[]", "VCG802", "1:1"),
        ('{"version": 1, "paths": {"a": {"5": 1},\n  "b": [1]}}', "VCG802", "2:3"),
        ('{"version": 1, "paths": {"a": {"5": 1,\n    "5": 2}}}', "VCG802", "2:5"),
        ('{"paths": {},\n  "version": 9}', "VCG803", "2:3"),
        ('{"version": 1, "paths": {"a": {\n"5": 1, "x": 1}}}', "VCG804", "2:9"),
        ('{"version": 1, "paths": {"x": {"5": 1},\n "a": {"5": [{"a": 5}]}}}', "VCG804", "2:8"),
        (b'{"version": 1,\n "\xff": 1}', "VCG800", "2:3"),
        ('{"version": 1, "paths": {"a": {\n "5": ' + "9" * 5000 + "}}}", "VCG804", "2:2"),
        ('{"version": 1, "paths": {"a": {\n "5": 1' + "0" * 4000 + "}}}", "VCG804", "2:2"),
        ('{"version": 1, "paths": {"a": {\n "' + "9" * 5000 + '": 1}}}', "VCG804", "2:2"),
        ('{"version": ' + "9" * 5000 + ', "paths": {}}', "VCG803", "1:2"),
        ('{"version": 1, "paths": {\n "\\ud800": {"5": 1}}}', "VCG802", "2:2"),
        ('{"version": 1, "paths": {\n "\\u001b[2J": {"5": 1}}}', "VCG802", "2:2"),
        ('{"version": 1, "paths": {\n "a": {"\\u001b": 1}}}', "VCG804", "2:8"),
        ('{"version": 1, "paths": {"a": {\n"5": ' + "[" * 500 + "]" * 500 + "}}}", "VCG804", "2:1"),
        ("[" * 100_000, "VCG802", "1:1"),
        ("[" * 100_000 + '"\x00"', "VCG802", "1:1"),
        ('{"version": 1, "paths": {"' + "a" * 5000 + '": {\n "x": 1}}}', "VCG804", "2:2"),
        ('{"version": 1, "paths": {"default": {"64": 0}}}', "VCG805", ""),
    ],
)
def test_what_is_wrong_with_a_trace(run, tmp_path, text, code, place):
    file = tmp_path / "bad.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run("budgets", "--trace", file)

    assert (done.code, done.out) == (3, "")
    assert f"error[{code}]" in done.err
    assert f"{file}:{place}: " in done.err or not place
    assert "\x1b" not in done.err
    assert len(done.err) < 1500
    assert run("budgets", "--trace", file, "--format", "json").code == 3


def test_a_draft_follows_no_link(tmp_path, monkeypatch):
    """Whoever may write to the folder may plant a link under the draft's name, if there is one to know before."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("scaffold.runtime.trace.secrets.token_hex", lambda _: "known")
    (tmp_path / ".sizes.json.known").symlink_to(victim)
    trace = Trace()
    trace.add("default", 5)

    with pytest.raises(FileExistsError):
        trace.save(tmp_path / "sizes.json")
    assert victim.read_text() == "precious"

    monkeypatch.undo()
    for name in (".sizes.json", "sizes.json"):
        (tmp_path / f"{name}.{os.getpid()}").symlink_to(victim)  # what the names once were
        (tmp_path / f"{name}.{os.getpid()}.{threading.get_ident()}").symlink_to(victim)
    trace.save(tmp_path / "sizes.json")
    assert Trace.from_json((tmp_path / "sizes.json").read_text()).paths == trace.paths
    assert victim.read_text() == "precious"


def test_every_bad_trace_is_reported_and_nothing_is_written(run, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("[]")
    plot = tmp_path / "plot.svg"
    done = run("budgets", "--trace", bad, "--trace", tmp_path / "missing.json", "--trace", tmp_path, "--plot", plot)

    assert done.code == 3
    assert [done.err.count(code) for code in ("VCG802]", "VCG800]")] == [1, 2]
    assert not plot.exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--graphs", "0"], 2, "--graphs"),
        (["--graphs", "1", "--keep", "3", "--keep", "4"], 2, "3 budgets are to be kept"),
        (["--plot", "no/such/folder.svg"], 7, "VCG709"),
    ],
)
def test_options_that_make_no_sense(run, trace, options, code, words):
    done = run("budgets", "--trace", trace({"default": named(SIZES)}), *options)

    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_a_trace_is_needed(run):
    done = run("budgets")
    assert done.code == 2
    assert "--trace" in done.err


def test_torch_is_not_imported(trace):
    before = "import atexit\natexit.register(lambda: print('loaded', 'torch' in sys.modules, 'libcst' in sys.modules))"
    done = child("budgets", "--trace", trace({"default": named(SIZES)}), before=before)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "loaded False False"


values = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=12,
)


def ways(value, above=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*above, key)
            yield from ways(inner, (*above, key))


@given(value=values, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
@settings(deadline=None)
def test_a_key_is_found_by_its_way(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert find_key(text, ()) == (0, 1)
    found = [find_key(text, way) for way in ways(value)]
    assert found == sorted(set(found))  # text order, each at a place of its own
    assert [json.loads(text[start:end]) for start, end in found] == [way[-1] for way in ways(value)]
