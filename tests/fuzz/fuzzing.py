"""Hostile inputs made from a seed, and what must hold whatever they are.

    python tests/fuzz/fuzzing.py                            # round and round until Ctrl-C; `make fuzz`
    python tests/fuzz/fuzzing.py port --seed 17             # one failure again
    python tests/fuzz/fuzzing.py descriptor --count 1000
    python tests/fuzz/fuzzing.py port --until 2000 --record FILE      # goes on where FILE ends; `make fuzz-figures`

Six kinds of trial. `descriptor`, `trace`: a diagnostic or a value, and nothing else, in seconds. `port`: also from
files of a real release that were changed at random, and no text of a descriptor becomes code. `store`: our records in
a tree are replaced by what an attacker may put there, and no command leaves a file that is neither old nor new.
`kill`: a run is killed at a random moment, and `recover` brings back a whole state. `call`: a call of names that real
classes have is refused, or it runs on such classes and leaves no file changed.
"""

from __future__ import annotations

import argparse
import ast
import collections
import hashlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "descriptor"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "publish"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from descriptor_documents import DOCUMENTS
from publish_scene import make_tree, run_publish, snapshot
from test_descriptor_mutations import _mutate as mutate

from scaffold.cli.budgets import _diagnose
from scaffold.descriptor import load_descriptor_text
from scaffold.descriptor.expressions import parse_call
from scaffold.descriptor.load import shipped_names, shipped_path
from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.protocol import SourceTree, resolve_target
from scaffold.publish import disk, publish_changes, recover, revert_last
from scaffold.runtime.trace import Trace, TraceError, waste_curve
from scaffold.tower.paths import Answer, ModelPaths
from scaffold.workflow import prepare_port

ROOT = Path(__file__).resolve().parents[2]
#: Seconds of CPU that no trial may take; a port of InternVL takes 2.
LIMIT = {"descriptor": 5, "trace": 5, "port": 120, "store": 20, "kill": 20, "call": 60}
#: What a process that is killed loses of a record.
SECONDS_UNWRITTEN = 10
RELEASES = ("0.22.0", "0.33.0")
PAYLOAD = "vitcg_payload"
#: What would be code if it reached a file without being quoted.
PAYLOADS = (
    f"{PAYLOAD}()",
    f'"); {PAYLOAD}(); ("',
    f"'); {PAYLOAD}(); ('",
    f"x\n{PAYLOAD}()\n",
    f'"""\n{PAYLOAD}()\n"""',
    f"{{{{ {PAYLOAD}() }}}}",
    f"{{% {PAYLOAD} %}}",
    f"\\\n{PAYLOAD}()",
    f"# \r{PAYLOAD}()",
)


def descriptor(rng: random.Random) -> str:
    """A changed descriptor is a value or diagnostics with a place."""
    texts = [*DOCUMENTS.values(), *_shipped().values()]
    return _load(_hostile(rng.choice(texts), rng))[0]


def _hostile(text: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        at = rng.choice([number for number, line in enumerate(text.split("\n")) if ": " in line])
        lines = text.split("\n")
        key = lines[at].partition(": ")[0]
        lines[at] = f"{key}: {json.dumps(rng.choice(PAYLOADS))}"
        return "\n".join(lines)
    return mutate(text, rng)


def _load(text: str) -> tuple[str, object]:
    try:
        return "accepted", load_descriptor_text(text, "model.yaml")
    except DiagnosticError as error:
        for problem in error.diagnostics:
            assert problem.span is not None, problem
            assert problem.exit in (Exit.OK, Exit.DESCRIPTOR), problem
            assert problem.message.strip(), problem
            assert "\n" not in problem.message, problem
        return "refused", None


@cache
def _shipped() -> dict[str, str]:
    return {name: (shipped_path(name) or Path()).read_text(encoding="utf-8") for name in shipped_names()}


@cache
def _release(version: str) -> SourceTree:
    return resolve_target(version).tree


def port(rng: random.Random) -> str:
    """A port of a changed descriptor into a changed release, published and undone."""
    name = rng.choice(list(_shipped()))
    release = _release(rng.choice(RELEASES))
    text = _shipped()[name]
    if rng.random() < 0.7:
        text = _hostile(text, rng)
    state, spec = _load(text)
    if spec is None:
        return f"descriptor {state}"
    tree = release.reread()
    try:
        planned = prepare_port(spec, release.reread(), replace=True).plan.files
        paths = [file.path for file in planned if release.exists(file.path)]
    except DiagnosticError:
        paths = []
    if paths and rng.random() < 0.7:
        path = rng.choice(paths)
        tree._cache["bytes", path] = mutate(release.read(path), rng).encode("utf-8", "replace")
    try:
        made = prepare_port(spec, tree, replace=True)
    except DiagnosticError as error:
        return f"refused with {int(error.exit)}"
    for change in made.changed:
        if change.path.endswith(".py"):
            nodes = ast.walk(ast.parse(change.after or b""))
            assert not [node for node in nodes if PAYLOAD in (getattr(node, "id", ""), getattr(node, "attr", ""))]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for change in made.changed:
            (root / change.path).parent.mkdir(parents=True, exist_ok=True)
            if change.before is not None:
                (root / change.path).write_bytes(change.before)
        before = snapshot(root)
        publish_changes(root, made.changed, label="fuzz")
        if made.changed:
            assert snapshot(root) != before
            revert_last(root)
        assert snapshot(root) == before
    return "ported"


_SCRAPS = ["[" * 9000, "{", "}", '"', "9" * 5000, "1" + "0" * 400, "-1", "1e999", "NaN", "true", "null", '"\\ud800"',
           '"\\u001b[2J"', ',"5": 1', '"version"', '"paths"', "\x00", "é", " ", "0", "٣"]  # fmt: skip


def trace(rng: random.Random) -> str:
    """A changed trace is counts that can be computed with and printed, or an error with a place."""
    paths = {p: {str(rng.randint(1, 10**rng.randint(1, 12))): rng.randint(0, 10**rng.randint(0, 14)) for _ in range(8)}
             for p in rng.sample(["default", "local", "a b", "ü"], 2)}  # fmt: skip
    text = json.dumps({"version": 1, "paths": paths})
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_SCRAPS) + text[at + rng.randint(0, 6) :]
    try:
        read = Trace.from_json(text)
    except TraceError as error:
        problem = _diagnose(error, "trace.json", text)
        told = (problem.span is not None, problem.message.isprintable(), len(problem.message) < 600)
        if told != (True, True, True):
            raise AssertionError(problem.message[:600]) from None
        return "refused"
    for path, sizes in read.paths.items():
        assert path.isprintable()
        if any(sizes.values()):
            assert all(0 <= point.waste < 1 for point in waste_curve(sizes, range(1, 9)))
    return "accepted"


#: Shipped models, and the call of each that another one takes the place of, with the data that it gets.
_CALLING = {
    "gemma3_mm": ("self.multi_modal_projector(self.vision_tower(pixels))", "pixels"),
    "internvl": ("self.extract_feature(pixels)", "pixels"),
    "llava": ("self._process_image_input(self._parse_and_validate_image_input(**inputs))", "**inputs"),
    "qwen2_5_vl": ('"self.visual(pixels, sizes)"', "pixels"),
    "minicpmv": ("self.embed_multimodal(**inputs)", "**inputs"),
}


#: Methods that write files, by their names.
_WRITING = ("to_json_file", "save_pretrained", "tofile", "dump")


@cache
def _paths(name: str) -> ModelPaths:
    port = load_descriptor_text(_shipped()[name], f"{name}.yaml")
    return ModelPaths(_release("0.33.0"), port.module.replace(".", "/") + ".py", port.class_name)


@cache
def _names(name: str) -> tuple[tuple[str, ...], ...]:
    """What the model's class has in the tree; what its base class, its configuration and tensors bring along."""
    import torch
    from transformers import PretrainedConfig

    brought = (torch.nn.Module, PretrainedConfig, torch.Tensor)
    return (tuple(sorted(_paths(name).names)), *(tuple(dir(cls)) for cls in brought))


def _path(rng: random.Random, name: str) -> str:
    own, module, configuration, tensor = _names(name)
    part = rng.choice(("", f".{rng.choice(own)}", f".{rng.choice(own)}.{rng.choice(own)}"))
    ends = (
        rng.choice(own),
        rng.choice(module),
        f"config.{rng.choice(configuration)}",
        f"config.{rng.choice(_WRITING)}",
        f"weight.{rng.choice(tensor)}",
        f"weight.{rng.choice(_WRITING)}",
    )
    return f"self.{rng.choice(own)}" if rng.random() < 0.5 else f"self{part}.{rng.choice(ends)}"


@cache
def _real_model(name: str) -> object:
    """A module with the names of the model's class: parts are modules that hold a configuration, methods give it."""
    import torch
    from transformers import PretrainedConfig

    class Part(torch.nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2, 2))
            self.config = PretrainedConfig(problem_type="single_label_classification")
            for entry in _paths(name).names if depth else ():
                if not hasattr(self, entry):
                    setattr(self, entry, Part(depth - 1))

        def forward(self, *given: object, **named: object) -> object:
            for value in given:  # what a model does with what it is given is not known: it may call it
                if callable(value) and not isinstance(value, torch.nn.Module):
                    value()
            return given[0] if given else None

    return Part(2)


def call(rng: random.Random) -> str:
    """A call of real names is refused, or it changes no file when it runs on real classes."""
    name = rng.choice(list(_CALLING))
    old, data = _CALLING[name]
    text = _call(rng, name, data, 2)
    assert old in _shipped()[name], old
    if _load(_shipped()[name].replace(old, json.dumps(text)))[1] is None:
        return "refused by validate"
    if any(_paths(name).call(inner.path).answer is not Answer.KNOWN for inner in parse_call(text).calls()):
        return "refused in the tree"
    import torch

    values = {"self": _real_model(name), "pixels": torch.zeros(2, 2), "inputs": {}, "sizes": [1]}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("witness").write_text("mine")
        before = snapshot(Path(folder))
        # What a call does to tensors is not looked at.
        with suppress(Exception):
            eval(text, values)
        assert snapshot(Path(folder)) == before, text
    return "ran"


def _call(rng: random.Random, name: str, data: str, depth: int) -> str:
    given = [_call(rng, name, data, depth - 1) if depth and rng.random() < 0.4 else data]
    for _ in range(rng.choice((0, 0, 1, 2))):
        more = ('"witness"', "'./new'", "None", "True", "3", "[]", _path(rng, name),
                _call(rng, name, rng.choice((data, '"witness"', "")), 0))  # fmt: skip
        keyword = rng.choice(("", "", f"{rng.choice(_names(name)[0])}="))
        given.insert(rng.randrange(len(given) + 1), keyword + rng.choice(more))
    return f"{_path(rng, name)}({', '.join(given)})"


def _replace(path: Path, rng: random.Random) -> None:
    """Something else in the place of one of our records."""
    data = path.read_bytes()
    path.unlink()
    kind = rng.randrange(10)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(rng.choice(["nowhere", "/etc/passwd", "/dev/zero", "."]))
    elif kind == 3:
        path.write_bytes(b"[" * 100_000)
    elif kind == 4:
        path.write_bytes(b"")
    elif kind < 9:
        text = data.decode("utf-8", "surrogateescape")
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text) + 1)
            text = (
                text[:at]
                + rng.choice([*_SCRAPS, '"../x"', '"/etc/x"', '"model.py"', '""'])
                + text[at + rng.randint(0, 9) :]
            )
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


def store(rng: random.Random) -> str:
    """Records of a finished or of a killed run, damaged; then every command."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "tree")
        root.mkdir()
        old = snapshot(make_tree(root))
        if rng.random() < 0.5:
            run_publish(root)
        else:
            _killed(root, rng.random())
        new = {**old, **_new()}
        files = sorted(path for path in (root / ".vitcg-scaffold").rglob("*") if path.is_file())
        for path in rng.sample(files, min(len(files), rng.randint(1, 2))):
            _replace(path, rng)
        ended = []
        for command in (recover, run_publish, revert_last, recover):
            try:
                command(root)
                ended.append("done")
            except (DiagnosticError, OSError) as error:  # an OSError is VCG710 on the command line
                ended.append(error.diagnostics[0].code if isinstance(error, DiagnosticError) else "VCG710")
        for name, entry in snapshot(root).items():
            assert entry[0] is None or entry[0] in {state[name][0] for state in (old, new) if name in state}, name
        assert not (Path(folder) / "x").exists()
        return "all done" if set(ended) == {"done"} else "refused"


@cache
def _new() -> dict[str, tuple[bytes | None, int]]:
    with tempfile.TemporaryDirectory() as folder:
        run_publish(make_tree(Path(folder)))
        return snapshot(Path(folder))


#: Seconds that a run takes, about: more after a kill that came before its end, less after one that came too late, so
#: that kills hit all of it however busy the machine is.
_TAKES = [0.01]


def _killed(root: Path, share: float) -> int:
    """Publish in a process that is killed after a share of the time that a run takes. Its exit code."""
    process = os.fork()
    if process == 0:
        try:
            signal.alarm(0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run_publish(root)
        finally:
            os._exit(0)
    time.sleep(share * _TAKES[-1])
    os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    _TAKES.append(_TAKES.pop() * (1.1 if code else 0.9))
    return code


def kill(rng: random.Random) -> str:
    """All old or all new after `recover`, wherever the kill hit."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        old = snapshot(make_tree(root))
        code = _killed(root, rng.random())
        mixed = snapshot(root) not in (old, _new())
        recover(root)
        state = snapshot(root)
        assert state in (old, _new())
        if state == _new():
            revert_last(root)
            assert snapshot(root) == old
        return "before its end, a mix" if mixed else "before its end" if code else "too late"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "descriptor": descriptor, "port": port, "trace": trace, "store": store, "kill": kill,
    "call": call,
}  # fmt: skip
#: How many of each in one round of `make fuzz`: each kind takes about as long.
ROUND = {"descriptor": 50, "port": 1, "trace": 50, "store": 10, "kill": 10, "call": 50}


@contextmanager
def _limited(kind: str) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {LIMIT[kind]} s of CPU, or a wait")

    previous = {number: signal.signal(number, stop) for number in (signal.SIGVTALRM, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT[kind])
    signal.alarm(LIMIT[kind] * 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.alarm(0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def trial(kind: str, seed: int) -> str:
    """How one trial ended, in a word or two. Raises what a trial must not raise."""
    with _limited(kind):
        return KINDS[kind](random.Random(seed))


def run(kind: str, seeds: range, ends: collections.Counter[str]) -> int:
    """Trials with these seeds; the number of failures, each printed with its seed."""
    failures = 0
    for seed in seeds:
        try:
            ends[trial(kind, seed)] += 1
        except Exception:
            failures += 1
            traceback.print_exc()
            print(f"FAILED: python tests/fuzz/fuzzing.py {kind} --seed {seed}", flush=True)
    return failures


def code_version() -> str:
    """What was tried: a hash of the tool and its templates."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("scaffold", "templates") for path in (ROOT / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def resume(kind: str, until: int, path: Path) -> int:
    """Trials with the seeds behind those of the record, up to `until`. The number of all seeds of it that failed.

    The record has an entry for each version of the code, with its range of seeds. It is written while trials are made,
    so that one that is stopped goes on.
    """
    results = json.loads(path.read_text()) if path.exists() else {}
    runs = results.setdefault(kind, [])
    first = runs[-1]["seeds"][1] if runs else 0
    code = code_version()
    if first < until and not (runs and runs[-1]["code"] == code):
        runs.append({"code": code, "date": "", "ends": {}, "failed_seeds": [], "seeds": [first, first]})
    written = time.monotonic()
    try:
        for seed in range(first, until):
            ends = collections.Counter(runs[-1]["ends"])
            failed = run(kind, range(seed, seed + 1), ends)
            runs[-1]["ends"] = ends
            runs[-1]["failed_seeds"] += [seed] * failed
            runs[-1]["seeds"][1] = seed + 1
            runs[-1]["date"] = time.strftime("%Y-%m-%d", time.gmtime())
            if time.monotonic() - written > SECONDS_UNWRITTEN:
                _write(results, path)
                written = time.monotonic()
    finally:
        _write(results, path)
    return sum(len(run["failed_seeds"]) for run in runs)


def _write(results: object, path: Path) -> None:
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    draft.replace(path)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("kind", nargs="?", choices=list(KINDS), help="default: all of them in turn, until Ctrl-C")
    options.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    options.add_argument("--count", type=int, default=1, help="how many trials of one kind [1]")
    options.add_argument("--until", type=int, help="all seeds below that one which the record lacks")
    options.add_argument("--record", type=Path, help="the file in which finished seeds are kept, with --until")
    given = options.parse_args()
    if (given.until is None) != (given.record is None):
        options.error("--until and --record go together")
    if not os.environ.get("VITCG_FSYNC"):
        disk.fsync = lambda _: None  # a kill of a process loses nothing that the kernel has
    if given.kind and given.until is not None:
        failures = resume(given.kind, given.until, given.record)
        print(f"{given.kind}: all seeds below {given.until} done, {failures} failed")
        return int(failures > 0)
    if given.kind:
        ends: collections.Counter[str] = collections.Counter()
        begin = time.time()
        failures = run(given.kind, range(given.seed, given.seed + given.count), ends)
        print(f"{given.kind}: {given.count} trials, {failures} failed, {time.time() - begin:.0f} s: {dict(ends)}")
        return int(failures > 0)
    all_ends: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in KINDS}
    failed = 0
    start = random.SystemRandom().randrange(10**9) if not given.seed else given.seed
    try:
        for turn in itertools.count():
            for kind, count in ROUND.items():
                first = start + turn * count
                failed += run(kind, range(first, first + count), all_ends[kind])
            print({kind: sum(ends.values()) for kind, ends in all_ends.items()}, f"{failed} failed", flush=True)
    except KeyboardInterrupt:
        for kind, ends in all_ends.items():
            print(f"{kind}: {dict(ends)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
