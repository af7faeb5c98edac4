"""The adapters themselves: on every release of their generation, as files, as a package, and in the lab."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from captured import captured
from proven import assert_right

import scaffold
from scaffold.adapters.outputs import Outputs, Source, render_outputs
from scaffold.adapters.proof import prove_adapter
from scaffold.adapters.source import name_defaults
from scaffold.adapters.towers import encode_records, known_tower, record_towers, unfit_releases
from scaffold.descriptor.load import shipped_names
from scaffold.plan.leftovers import find_leftovers
from scaffold.plan.views import TreeFacts
from scaffold.protocol import SERVED, SourceTree, find_model, known_profile, read_protocol
from scaffold.verify import prove_conformance
from scaffold.verify.numeric.recipes import RECIPES
from scaffold.workflow import load_port

REPOSITORY = Path(scaffold.__file__).parent.parent
#: Models whose methods go into a class whose subclasses vLLM makes: they have no adapter.
WITHOUT = {"minicpmv"}
RELEASES = [f"0.{minor}.0" for minor in range(23, 34)]
CORE = ("internvl", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "step3_vl")
FAMILIES = [(name, generation) for name in shipped_names() for generation in SERVED]


@pytest.fixture(scope="module")
def outputs() -> Outputs:
    return render_outputs([Source(name, load_port(name)) for name in shipped_names()])


@pytest.fixture(scope="module")
def adapters(outputs: Outputs) -> dict[tuple[str, str], str]:
    """(generation, model) -> source."""
    return {
        (output.generation.name, output.descriptor): output.text
        for output in outputs.files
        if output.generation is not None and output.descriptor is not None
    }


@pytest.fixture(scope="module")
def mixins(outputs: Outputs) -> dict[str, str]:
    """`generation.module` -> source, of the classes that adapters share."""
    paths = {Path(output.path): output.text for output in outputs.files}
    return {
        f"{path.parent.name}.{path.stem}": text
        for path, text in paths.items()
        if path.stem.startswith("encoder_cudagraph_")
    }


def mixin_of(mixins: dict[str, str], generation: str, source: str) -> str:
    """The source of an adapter's mixin; empty without one."""
    found = re.findall(r"^from \.(\w+) import ", source, re.MULTILINE)
    return mixins[f"{generation}.{found[0]}"] if found else ""


def methods_of(source: str) -> dict[str, ast.FunctionDef]:
    owner = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}


def bound_names(source: str) -> set[str]:
    """Methods, and names that are bound to a default of the protocol."""
    owner = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    assigned = {
        target.id
        for node in owner.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return methods_of(source).keys() | assigned


def test_every_family_has_an_adapter_or_a_reason(outputs: Outputs, adapters: dict[tuple[str, str], str]) -> None:
    refused = {(entry.generation.name, entry.source.name): entry.reason for entry in outputs.refused}

    for name, generation in FAMILIES:
        assert ((generation.name, name) in adapters) != ((generation.name, name) in refused), (name, generation)
    # Pristine towers are split when a model is made: the five core models have all of them.
    assert {(generation.name, name) for name in CORE for generation in SERVED} <= adapters.keys()


def test_nothing_of_the_release_shines_through(adapters: dict[tuple[str, str], str], mixins: dict[str, str]) -> None:
    """Every protocol method that is called is the adapter's own or a default; only `__init__` reaches up by `super`,
    and a method that the mixin has, too, which comes before the release's class."""
    for (generation, name), source in adapters.items():
        profile = known_profile(next(item for item in SERVED if item.name == generation))
        called = {method.name for method in profile.methods} - profile.uncalled
        mixin = mixin_of(mixins, generation, source)
        assert called <= bound_names(source) | (bound_names(mixin) if mixin else set()), (generation, name)
        reaching = {
            method
            for method, node in methods_of(source).items()
            if "super" in {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        }
        shared = {node.name for node in ast.walk(ast.parse(mixin or "")) if isinstance(node, ast.FunctionDef)}
        assert reaching <= {"__init__"} | shared, (generation, name)
        assert source.count("super()") == len(reaching)


ENDS = {release for item in SERVED for release in (item.first, item.last)}


@pytest.mark.trees
@pytest.mark.parametrize(
    "release", [one if one in ENDS else pytest.param(one, marks=pytest.mark.slow) for one in RELEASES]
)
def test_adapters_fit_every_release(
    release_tree, adapters: dict[tuple[str, str], str], mixins: dict[str, str], release: str
) -> None:
    tree: SourceTree = release_tree(release)
    profile = read_protocol(tree)
    checked = 0
    for (generation, name), source in adapters.items():
        if generation != profile.generation.name:
            continue
        checked += 1
        spec = load_port(name)
        mixin = mixin_of(mixins, generation, source)
        assert prove_conformance(source, spec.class_name, profile, name, mixin) == ()
        assert missing_imports(tree, source) + missing_imports(tree, mixin) == []
        # A helper of ours must not replace a method that the release's class uses for something else.
        model = find_model(tree, spec.module, spec.class_name)
        own = {node.name: ast.unparse(node) for node in class_methods(tree, model.path, spec.class_name)}
        helpers = methods_of(source).keys() | (methods_of(mixin).keys() if mixin else set())
        helpers -= {method.name for method in profile.methods}
        users = [
            (helper, method)
            for helper in helpers & own.keys()
            for method, text in own.items()
            if f"self.{helper}(" in text and method not in model.protocol_methods
        ]
        assert not users or {method for _, method in users} <= set(find_leftovers(tree, model, "", ()).methods)
    assert checked >= 2


def class_methods(tree: SourceTree, path: str, name: str) -> Iterator[ast.FunctionDef]:
    owner = next(node for node in tree.parse(path).body if isinstance(node, ast.ClassDef) and node.name == name)
    yield from (node for node in owner.body if isinstance(node, ast.FunctionDef))


def missing_imports(tree: SourceTree, source: str) -> list[str]:
    """Names that an adapter imports from vLLM and that the release has not."""
    missing = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm"):
            base = node.module.replace(".", "/")
            path = next(item for item in (f"{base}.py", f"{base}/__init__.py") if tree.exists(item))
            for alias in node.names:
                named = any(
                    alias.name
                    in (
                        getattr(item, "name", None),
                        getattr(item, "asname", None),
                        getattr(item, "id", None) if isinstance(getattr(item, "ctx", None), ast.Store) else None,
                    )
                    for item in ast.walk(tree.parse(path))
                )
                if not named and not tree.exists(f"{base}/{alias.name}.py"):
                    missing.append(f"{node.module}.{alias.name}")
    return missing


@pytest.mark.trees
def test_recorded_towers_are_those_of_the_releases(release_tree) -> None:
    """First and last release of each generation; the command for maintainers reads all of them."""
    releases = ENDS & set(RELEASES)
    specs = [load_port(name) for name in shipped_names()]
    found = record_towers(specs, {release: release_tree(release) for release in sorted(releases)})
    recorded = json.loads((Path(scaffold.__file__).parent / "adapters/towers.json").read_text("utf-8"))

    assert encode_records(recorded) == (Path(scaffold.__file__).parent / "adapters/towers.json").read_text("utf-8")
    for name, record in found.items():
        assert record["asks"] == recorded[name]["asks"], f"{name} asks something else: record the towers again"
        unfit = recorded[name].get("unfit", {})
        assert record.get("unfit", {}) == {
            generation: kept
            for generation, listed in unfit.items()
            if (kept := [one for one in listed if one in releases])
        }
        for generation, answer in record.get("generations", {}).items():
            known = recorded[name]["generations"][generation]
            # The reasons name releases, of which these are some only.
            assert type(answer) is type(known)
            if isinstance(answer, dict):
                assert answer == known, (name, generation)


def test_a_release_without_graphs_is_no_tick(outputs: Outputs) -> None:
    """Attention of Pixtral's tower gets a mask before 0.29: the page says so, and no test asks for a replay there."""
    texts = {output.path: output.text for output in outputs.files}
    for name in ("mistral3", "pixtral"):
        port = load_port(name)
        found = {one.name: unfit_releases(port, one) for one in SERVED}
        assert {one: releases for one, releases in found.items() if releases} == {
            "v0_23": ("0.23.0",),
            "v0_24": ("0.24.0", "0.25.0", "0.25.1", "0.26.0"),
            "v0_27": ("0.27.0", "0.27.1", "0.28.0"),
        }
        (row,) = re.findall(rf"^.*`{name}`.*$", texts["docs/adapters.md"], re.MULTILINE)
        assert "| ✅︎ (not 0.27.0, 0.27.1, 0.28.0) | ✅︎ |" in row
        assert f'("{name}", "0.27.0")' in texts["tests/test_every_adapter.py"]
    assert texts["docs/adapters.md"].count("(not ") == 2


def test_tower_of_another_descriptor_is_read_when_a_model_is_adapted(tmp_path: Path) -> None:
    """But nothing tells whether a release has what a gate asks about."""
    text = (Path(scaffold.__file__).parent / "descriptor/shipped/qwen3_vl.yaml").read_text("utf-8")
    path = tmp_path / "qwen3_vl.yaml"
    generation = SERVED[-1]
    path.write_text(text.replace("tower: visual", "tower: vision", 1), "utf-8")

    assert known_tower(load_port("qwen3_vl"), generation).reason is None
    port = load_port(str(path))
    assert "known of shipped models only" in (known_tower(port, generation).reason or "")
    found = known_tower(port.replace(gates=None), generation)
    assert (found.facts, found.splits, found.unread) == (TreeFacts(), True, True)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("super().m(a, b)", "SupportsEncoderCudaGraph.m(self, a, b)"),
        ("super().m()", "SupportsEncoderCudaGraph.m(self)"),
        ("super().m(\n        a,\n    )", "SupportsEncoderCudaGraph.m(self, \n        a,\n    )"),
        (
            "x = 'ä'; super().m(a); super().m(b)",
            "x = 'ä'; SupportsEncoderCudaGraph.m(self, a); SupportsEncoderCudaGraph.m(self, b)",
        ),
        ("self.m(a)", "self.m(a)"),
    ],
)
def test_defaults_are_called_by_name(call: str, named: str) -> None:
    assert name_defaults(f"def f(self):\n    {call}\n", {"m"}) == f"def f(self):\n    {named}\n"


def test_what_the_mixin_has_is_reached_before_the_release() -> None:
    block = "def f(self):\n    super().m(a)\n    super().n(a)\n"
    named = block.replace("super().n(", "SupportsEncoderCudaGraph.n(self, ")
    assert name_defaults(block, {"m", "n"}, frozenset({"m"})) == named


@pytest.mark.parametrize("call", ["super().other(a)", "super(A, self).m(a)", "parent = super()"])
def test_any_other_super_is_our_own_mistake(call: str) -> None:
    with pytest.raises(AssertionError):
        name_defaults(f"def f(self):\n    {call}\n", {"m"})


def test_outputs_pass_the_rules_of_upstream(outputs: Outputs, tmp_path: Path) -> None:
    """vLLM's line length, its order of imports, no unused or undefined name; and formatting again changes nothing."""
    from ruff.__main__ import find_ruff_bin

    for output in outputs.files:
        path = tmp_path / output.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(output.text.encode())
    first_party = 'lint.isort.known-first-party=["scaffold", "vitcg_adapters"]'
    for command in (
        ("check", "--select", "E,F,W,I,UP,SIM,G", "--config", first_party),
        ("format", "--check"),
    ):
        done = captured(
            [find_ruff_bin(), *command, "--isolated", "--no-cache", "--config", "line-length=88", "."], cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_docs_are_tables_of_markdown(outputs: Outputs) -> None:
    from markdown_it import MarkdownIt

    (page,) = [output.text for output in outputs.files if output.path == "docs/adapters.md"]
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    rows = [token for token in tokens if token.type == "tr_open"]
    adapted = [name for name in shipped_names() if name not in WITHOUT]
    assert len(rows) == 1 + len(adapted) + 1 + len(SERVED)
    assert all(f"| `{load_port(name).architecture}` |" in page for name in adapted)
    assert page.count("\n* ") == len({(entry.source.name, entry.reason) for entry in outputs.refused})


# -- the package ------------------------------------------------------------------------------------------------------


def test_package_imports_neither_vllm_nor_torch() -> None:
    program = """
        import sys
        import vitcg_adapters
        assert vitcg_adapters.adapter_path("v0_30", "InternVLChatModel") == (
            "vitcg_adapters.v0_30.internvl:InternVLChatModel"
        )
        assert vitcg_adapters.adapter_path("v0_30", "Nobody") is None
        assert vitcg_adapters.adapter_path("v9_9", "InternVLChatModel") is None
        assert not {"torch", "vllm", "scaffold"} & set(sys.modules), sorted(sys.modules)
        vitcg_adapters.ADAPTERS["v0_1"] = {"Somebody": "somebody"}
        try:
            vitcg_adapters.adapter_for("v0_1", "Somebody")
        except ImportError as error:
            said = "vitcg_adapters.v0_1 is built by `vitcg-scaffold new --all`: it has not run here"
            assert str(error) == said, error
        vitcg_adapters.ADAPTERS["v0_30"]["Somebody"] = "somebody"
        try:
            vitcg_adapters.adapter_for("v0_30", "Somebody")
        except ModuleNotFoundError as error:
            assert error.name == "vitcg_adapters.v0_30.somebody", error
        try:
            vitcg_adapters.adapter_for("v0_30", "Nobody")
        except KeyError:
            print("ok")
    """
    done = captured([sys.executable, "-c", textwrap.dedent(program)], cwd=REPOSITORY / "generated")
    assert done.stdout == "ok\n", done.stderr


# -- in the lab -------------------------------------------------------------------------------------------------------


@pytest.mark.trees
@pytest.mark.lab
def test_lab_refuses_an_adapter_that_computes_something_else(release_tree, tmp_path: Path, outputs: Outputs) -> None:
    """The subclass is really what runs: a fault in it is found."""
    source = next(o.text for o in outputs.files if o.path == "vitcg_adapters/v0_30/internvl.py")
    features = "self.extract_feature(pixel_values).flatten"
    assert source.count(f"return {features}(0, 1)") == 1
    path = tmp_path / "internvl.py"
    path.write_text(source.replace(features, "(self.extract_feature(pixel_values) * 1.5).flatten"), "utf-8")

    assert not prove_adapter("internvl", path, release_tree("0.33.0")).passed


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    ("name", "generation", "release", "tail"),
    [
        ("qwen3_vl", "v0_30", "0.33.0", "cudnn"),
        # Split when the model is made.
        ("glm4_1v", "v0_23", "0.23.0", "fa2"),
        pytest.param("ernie45_vl", "v0_27", "0.29.0", "fa3", marks=pytest.mark.slow),
    ],
)
def test_adapter_equals_the_release(
    release_tree, tmp_path: Path, outputs: Outputs, name: str, generation: str, release: str, tail: str
) -> None:
    """With kernels and of a form that the sample in `test_generated_tests.py` lacks."""
    path = tmp_path / f"{name}.py"
    path.write_text(next(o.text for o in outputs.files if o.path == f"vitcg_adapters/{generation}/{name}.py"), "utf-8")

    report = prove_adapter(name, path, release_tree(release), tail=tail)

    assert_right(report, 51)
    assert report.misses > 5
    # Images and videos, and eager results of the split tower to the bit.
    assert {check.modality for check in report.checks} >= {"image", "video"}
    unchanged = [check for check in report.checks if check.name.startswith("eager unchanged")]
    assert unchanged
    assert {check.max_abs for check in unchanged} == {0.0}


@pytest.mark.trees
@pytest.mark.lab
def test_lab_refuses_an_adapter_that_splits_nothing(release_tree, tmp_path: Path, outputs: Outputs) -> None:
    """The split tower is really what runs: without it, the tower of 0.23 has no metadata."""
    source = next(o.text for o in outputs.files if o.path == "vitcg_adapters/v0_23/glm4_1v.py")
    start = source.index("        split_at_load(\n")
    path = tmp_path / "glm4_1v.py"
    rest = source[source.index("\n        )\n", start) + len("\n        )\n") :]
    path.write_text(f"{source[:start]}        pass\n{rest}", "utf-8")

    report = prove_adapter("glm4_1v", path, release_tree("0.23.0"))

    assert not report.passed
    assert any("prepare_encoder_metadata" in check.detail for check in report.checks)


def test_generated_tests_are_those_of_the_repository() -> None:
    """They are collected by path: `pytest generated/tests`."""
    path = REPOSITORY / "generated/tests/test_every_adapter.py"
    loaded = importlib.util.spec_from_file_location("generated_tests", path)
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    assert {name for name, _, _ in module.CASES} == set(shipped_names()) & set(RECIPES) - WITHOUT
    for name, generation, release in module.CASES:
        assert (module.ADAPTERS / generation / f"{name}.py").is_file()
        assert release.startswith("0.")
