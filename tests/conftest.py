"""Fixtures for all tests: real release trees, fetched by name once and kept in the user's cache."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import release_process
from hypothesis import HealthCheck, settings

import scaffold.edit
import scaffold.plan
import scaffold.publish
import scaffold.render
import scaffold.verify
from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import SourceTree, open_tree, resolve_target, target
from scaffold.protocol.cache import cache_root, cached_tree

# How long an example takes says something of the machine and its other work, and nothing of the code.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

# For torch in this process and its children. Two workers have a core each: threads of one wait busily for the other's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_WARM: pytest.StashKey[Any] = pytest.StashKey()

#: Folders whose tests take every branch that `make unit` asks for. To follow tests line by line doubles their time, so
#: the others run without, and so do those files that take no branch of their own. Where `make unit` misses one that a
#: test of such a file takes, take the file out of the list.
_MEASURED = ("cut", "edit", "plan", "publish", "render", "verify")
_NO_BRANCH_OF_ITS_OWN = (
    "test_corpus.py", "test_dead_code.py", "test_further_models.py", "test_hoist.py", "test_loops.py",
    "test_methods.py", "test_port_forms.py", "test_port_on_releases.py",
)  # fmt: skip

ReleaseTree = Callable[[str], SourceTree]
CopiedTree = Callable[..., SourceTree]


def pytest_configure() -> None:
    """Look for garbage as seldom as the command does: it is a quarter of the time of planning a port, and finds next to
    nothing."""
    gc.set_threshold(100_000, 50, 100)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip `slow` tests unless `VITCG_SLOW=1` is set or `-m` names the marker. Several workers begin with the lab:
    its modules take minutes each and the others seconds, so that at the end no worker waits long for another one.
    What runs scripts (`release_process`) comes after the lab's own processes: both have imported the release, and only
    one of them waits at a time.
    """
    if hasattr(config, "workerinput"):
        long = {item.path for item in items if item.get_closest_marker("lab")}
        items.sort(key=lambda item: (item.path not in long, runs_scripts(item.path)))
    if os.environ.get("VITCG_SLOW") == "1" or "slow" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="exhaustive: set VITCG_SLOW=1")
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _warm_lab(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of a release share the process that imported it, where fewer than three others come in between."""
    if any(item.get_closest_marker("lab") for item in request.session.items):
        from scaffold.verify.numeric import keep_warm

        with keep_warm(trees=3) as warm:
            request.config.stash[_WARM] = warm
            yield
    else:
        yield
    release_process.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the lab where it cannot run, measure coverage where it counts, and give memory back before tests that run
    vLLM in another way."""
    if item.get_closest_marker("lab") is not None:
        pytest.importorskip("torch", reason="needs the `cpu` extra")
    warm = item.config.stash.get(_WARM, None)
    folder = item.path.parent.name
    counts = folder in _MEASURED and item.path.name not in _NO_BRANCH_OF_ITS_OWN
    measure_coverage(item.config, counts and item.get_closest_marker("lab") is None)
    if warm is not None and folder in ("engine", "harm", "plugin", "runtime", "tuning", "upstream"):
        warm.close()
    if not runs_scripts(item.path):
        release_process.close()


def runs_scripts(path: Path) -> bool:
    """Whether a file's tests of a release are scripts, which forks of one process run."""
    folders, files = ("harm", "measure", "runtime", "tuning"), ("test_placement.py", "test_tower_releases.py")
    return path.parent.name in folders or path.name in files


def measure_coverage(config: pytest.Config, wanted: bool) -> None:
    """Go on with the coverage of this process, where `--cov` asks for one, or pause it."""
    controller = getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)
    if controller is None or controller.started == wanted:
        return
    if wanted:
        controller.resume()
    else:
        for package in (scaffold.edit, scaffold.plan, scaffold.publish, scaffold.render, scaffold.verify):
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                if not module.ispkg:
                    importlib.import_module(module.name)  # a module's own lines run but once
        controller.pause()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`--dist loadscope` with the lab's tests by release instead of by module: one worker imports a release once."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByRelease(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid) or str(super()._split_scope(nodeid))

    return ByRelease(config, log)


def scope_of(nodeid: str) -> str | None:
    """What tests of several modules share: a release of the lab, where their names say so, or the engine of faults."""
    if re.match(r"tests/plugin/test_(faults|metrics|operators)\.py", nodeid):
        return "faults"
    found = re.fullmatch(
        r"tests/(?:harm/|lab/|numeric/|regen/test_generated|runtime/|tower/test_tower_releases|tuning/)"
        r".*\[.*?\b(0\.\d\d)\.0\b.*\]",
        nodeid,
    )
    # Names without a release, in files of the newest one.
    files = r"measure/|tuning/test_(?:fp8|others)\.py|runtime/test_vllm_(?:binding|encoders)\.py"
    newest = re.match(f"tests/(?:{files})", nodeid)
    return f"lab {found[1]}" if found else "lab 0.33" if newest else None


@pytest.fixture(scope="session", autouse=True)
def _one_tree_a_release() -> Iterator[None]:
    """Commands and tests of this process share what they read of a release. To read one again takes as long as to plan
    three ports; its seal is looked at each time all the same, and nobody writes into it."""
    cache, trees = cache_root(), {}

    def make(root: Path, *names: str | None, **options: bool) -> SourceTree:
        tree = SourceTree(root, *names, **options)
        return trees.setdefault(str(tree), tree) if root.is_relative_to(cache) else tree

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "SourceTree", make)
        yield


@pytest.fixture(scope="session")
def release_tree() -> ReleaseTree:
    """`release_tree("0.33.0")`: the release's source tree, read-only, one `SourceTree` a session.

    A release that cannot be fetched fails the test; with `VITCG_OFFLINE=1` it skips it, and says so.
    """
    trees: dict[str, SourceTree] = {}

    def get(version: str) -> SourceTree:
        if version not in trees:
            if os.environ.get("VITCG_OFFLINE") == "1" and cached_tree(version) is None:
                pytest.skip(f"vLLM {version} is not in the cache and VITCG_OFFLINE=1")
            try:
                trees[version] = resolve_target(version).tree
            except DiagnosticError as error:
                pytest.fail(f"vLLM {version} cannot be fetched (VITCG_OFFLINE=1 skips): {error}", pytrace=False)
        return trees[version]

    return get


@pytest.fixture(scope="session")
def record(release_tree: ReleaseTree) -> Callable[[str], Any]:
    """`record(architecture)`: the recording of a run in 0.33.0, made once a session. It needs the `cpu` extra."""
    made: dict[str, Any] = {}

    def get(architecture: str) -> Any:
        from scaffold.verify.numeric import record_run
        from scaffold.workflow import recording_request

        if architecture not in made:
            made[architecture] = record_run(recording_request(release_tree("0.33.0"), architecture))
        return made[architecture]

    return get


@pytest.fixture
def copied_tree(release_tree: ReleaseTree, tmp_path: Path) -> CopiedTree:
    """`copied_tree("0.33.0", "vllm/a.py", ...)`: a writable tree under `tmp_path` with these files of a release.

    The landmarks of a tree are always there. The copy is labelled `tree`, so that spans read `tree/vllm/a.py:1:1`.
    """

    def copy(version: str, *relpaths: str) -> SourceTree:
        source = release_tree(version)
        root = tmp_path / "tree"
        (root / "vllm/model_executor/models").mkdir(parents=True, exist_ok=True)
        for relpath in ("PKG-INFO", "vllm/__init__.py", *relpaths):
            target = root / relpath
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path(relpath), target)
        return open_tree(root, label="tree")

    return copy


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> list[Any]:
    """The planted mistakes (`port_mutants`) that tests of this file look at in this session: no other one is run."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    run = [item for item in items if hasattr(item, "callspec") and item.get_closest_marker("skip") is None]
    return [item.callspec.params["mutant"] for item in run if "mutant" in item.callspec.params]
