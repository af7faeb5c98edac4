"""The questions to a numeric check and its answers: plain values that cross a process boundary as JSON.

Nothing here imports torch: the parent process of the lab must stay as light as `--help`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from scaffold.diagnostics import Diagnostic

Tail = Literal["fa2", "fa3", "cudnn"]
#: For readers: FlashAttention's kernels differ in the rows after a sequence's end.
TAILS: dict[str, str] = {"fa2": "fa2 attention tails", "fa3": "fa3 attention tails", "cudnn": "FlashInfer's attention"}
#: Causes that a failed check names, word for word: `scaffold.fix` asks for them.
ROUND_UP = "the capture must round up"
FROZEN = "but max_seqlen was frozen at"
SECTIONS = "FlashInfer's offsets are two sections in one tensor"
#: A hazard of a model's own tensor (`scaffold.verify.numeric.left`).
LEFT = "left on the host"
#: How the names of variables begin that decide which code Python and the system find.
SEARCHED = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "LD_", "DYLD_")
#: The same of all that reach a tree in the CPU lab: it needs them to find programs, libraries and folders. Others could
#: change a result, and no proof would name them.
ENVIRONMENT = (*SEARCHED, "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_", "TZ", "TMP", "TEMP", "XDG_")
#: Further ones that change what a GPU computes, where all reach the tree.
SETTINGS = ("VLLM_", "TORCH", "PYTORCH_", "VITCG_ENCODER", "NVIDIA_TF32")


@dataclass(frozen=True, slots=True)
class NumericOptions:
    """The checks beyond "a replay equals `embed_multimodal`".

    Five are behaviours that hand-written implementations miss: precomputed embeddings, nested data parallelism, a
    context shorter than one item, a long context, and more video frames than a graph has room for. A long context is
    for ports whose captured grid grows with the budget. `edges` adds calls at the edges of what the release's processor
    makes. `short` serves the calls of one manager and no others. `counts_units` is for explicit ports: a graph holds
    whole units, each with as many rows as the port counts for it; `single`: no more than a batch has items. `in_tree`
    is False for a port that re-enters, which adapters are. `inherited` is for a class that inherits its port, and whose
    processor may offer less. `whole_layers` is for a repair: the check of layers that ranks share is there if none is
    split, too. `refused_embeds` says, by class and modality, why no request brings precomputed ones. `timeout_s` is the
    wall-clock limit of one child process, in seconds.
    """

    image_embeds: bool = False
    data_parallel_switch: bool = False
    min_budget_above_max: bool = False
    long_context: bool = False
    frames_above_capacity: bool = False
    edges: bool = False
    short: bool = False
    counts_units: bool = False
    single: bool = False
    in_tree: bool = True
    inherited: bool = False
    whole_layers: bool = False
    refused_embeds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    timeout_s: float = 240.0


@dataclass(frozen=True, slots=True)
class Automatic:
    """The model of an automatic recipe (`scaffold.verify.numeric.automatic`), and what a user says about it.

    `config` is the checkpoint's `config.json` or its folder, or empty. The folder's code runs only with
    `trust_remote_code`. `set` adds values to the small configuration, `keep` paths that are not made smaller, `images`
    more sizes, `(width, height)`. Other modalities are not looked at, but for sound where the model has none of these.
    """

    module: str
    host_class: str
    config: str = ""
    trust_remote_code: bool = False
    set: Mapping[str, Any] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    images: tuple[tuple[int, int], ...] = ()
    modalities: tuple[str, ...] = ("image", "video")


@dataclass(frozen=True, slots=True)
class NumericRequest:
    """One check: a pristine tree, the files that a change replaces, and the recipe that knows the model.

    `tree` is the root of an unpacked release (it holds `vllm/`) and is never written to. `overlay` maps paths relative
    to it to new content; empty means "check the tree as it is". Where the tree has the new content already, `before`
    maps the same paths to what the pristine tree held. `tail` picks what the attention kernel does with rows after the
    end of a sequence (`scaffold.verify.numeric.attention`). `release` only labels the report. `host` is `module:class`
    of a subclass that takes the place of the model's class in the changed tree: a stand-alone adapter.
    With `automatic`, `recipe` only labels the report. `class_name` is the class that has the port: what the recipe
    builds has to be one of these (empty: whatever it builds). `beside` are packages that import vLLM, with their
    folders: paths of `overlay` that start with such a name are theirs.
    """

    tree: Path
    overlay: Mapping[str, bytes]
    recipe: str
    modalities: tuple[str, ...] = ("image", "video")
    release: str = ""
    tail: Tail = "fa2"
    options: NumericOptions = field(default_factory=NumericOptions)
    host: str | None = None
    automatic: Automatic | None = None
    before: Mapping[str, bytes] = field(default_factory=dict)
    class_name: str = ""
    beside: tuple[tuple[str, Path], ...] = ()

    @property
    def title(self) -> str:
        """The first line of its report in the CPU lab."""
        return f"{self.recipe} on {self.release or 'the tree'}, {TAILS[self.tail]}"


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `max_abs` and `max_rel` are against the oracle; `max_rel` is relative to its largest value.

    Both are None where nothing was compared, and NaN where a result holds NaN. `code` is the diagnostic of a failure.
    `group` is the property that it belongs to, and `source` says where an edge of the processor's range is from.
    """

    name: str
    modality: str
    passed: bool
    max_abs: float | None = None
    max_rel: float | None = None
    detail: str = ""
    code: str = "VCG650"
    group: str = ""
    source: str = ""

    def __str__(self) -> str:
        verdict = "ok  " if self.passed else "FAIL"
        error = "" if self.max_abs is None else f"  max abs {self.max_abs:.3g}, rel {self.max_rel:.3g}"
        detail = f"  ({self.detail})" if self.detail else ""
        return f"{verdict} {self.modality:<5} {self.name}{error}{detail}"


@dataclass(frozen=True, slots=True)
class Property:
    """All comparisons of one property, such as a small item after large ones: a line of the report.

    `largest` is the largest relative error, None where nothing was compared. `sources` say where edges are from.
    """

    name: str
    modality: str
    comparisons: int
    failed: int = 0
    largest: float | None = None
    detail: str = ""
    sources: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Property:
        return cls(**{**data, "sources": tuple(data["sources"])})

    def __str__(self) -> str:
        verdict = "FAIL" if self.failed else "ok  "
        parts = [f"{verdict} {self.modality:<5} {self.name:<62}"]
        if self.failed and self.comparisons:
            parts.append(f"{self.failed} of {self.comparisons} differ")
        elif not self.failed:
            parts.append(f"{self.comparisons:>3} compared" if self.comparisons else " " * 12)
        if self.largest is not None and not self.failed:
            parts.append(f"largest error {self.largest:.2g}")
        if self.detail:
            parts.append(self.detail)
        if self.sources:
            parts.append(f"[{', '.join(self.sources)}]")
        return "  ".join(parts).rstrip()


def captured_short(buffer: str) -> str:
    """How the cause of a failed check begins where a graph's buffer is too small for a replay."""
    return f"buffer {buffer!r} was captured with"


def properties_of(checks: Sequence[Check]) -> tuple[Property, ...]:
    """The properties that these checks are of, in the order of their first checks."""
    found: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        found.setdefault((check.modality, check.group or check.name), []).append(check)
    return tuple(_property(name, modality, members) for (modality, name), members in found.items())


def _property(name: str, modality: str, checks: Sequence[Check]) -> Property:
    failed = [check for check in checks if not check.passed]
    errors = [check.max_rel for check in checks if check.max_rel is not None]
    largest = math.nan if any(math.isnan(error) for error in errors) else max(errors, default=None)
    detail = f"{failed[0].name}: {failed[0].detail}" if failed else checks[0].detail if len(checks) == 1 else ""
    sources = tuple(dict.fromkeys(check.source for check in checks if check.source))
    return Property(name, modality, len(checks), len(failed), largest, detail, sources)


@dataclass(frozen=True, slots=True)
class ObservedHazard:
    """Something that a real capture refuses or silently freezes. `where` is `file:line` inside the tree.

    `kind` is `host sync`, `dynamic shape`, `copy in capture`, `placement` or `left on the host`; `stage` is `capture`,
    or `run` for what is wrong outside a capture too.
    """

    kind: str
    operation: str
    where: str
    stage: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind}: {self.operation} at {self.where} during {self.stage} ({self.count}x)"


@dataclass(frozen=True, slots=True)
class NumericReport:
    """The verdict of one request.

    `hits` and `misses` are the manager's own counters. `negative_lengths` counts sequences whose end lies before their
    start: the reference skips them, FlashAttention 3 on an H200 gives wrong rows (`benchmarks/results/ports_h200_*`);
    `sequences` counts all that attention served.
    `failure` is set when a child process ended without a report. `machine` names the GPU and the versions of a run on
    real graphs, and is empty for the CPU lab. `guessed` are values of the configuration that nothing says.
    `not_run` are kinds of inputs that were not tried, each with the reason.
    """

    recipe: str
    release: str
    tail: Tail
    checks: tuple[Check, ...] = ()
    hazards: tuple[ObservedHazard, ...] = ()
    hits: int = 0
    misses: int = 0
    negative_lengths: int = 0
    failure: Diagnostic | None = None
    machine: str = ""
    sequences: int = 0
    guessed: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return (
            self.failure is None
            and bool(self.checks)
            and not self.hazards
            and not self.negative_lengths
            and all(c.passed for c in self.checks)
        )

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything that is wrong, as diagnostics."""
        found: list[Diagnostic] = [] if self.failure is None else [self.failure]
        failed: dict[object, list[Check]] = {}
        for check in self.checks:
            if not check.passed:  # what raised the same at the same line is one failure
                raised = check.max_abs is None and check.detail
                failed.setdefault((check.code, check.detail) if raised else check, []).append(check)
        for check, *like in failed.values():
            others = ", ".join([*map(_named, like[:_NAMED]), *(["..."] if len(like) > _NAMED else [])])
            more = (f"{len(like)} more comparisons fail like this: {others}",) if like else ()
            text = _failure_text(self, check)
            found.append(Diagnostic(check.code, text, help=_HELP.get(check.code), notes=more))
        for hazard in self.hazards:
            code = _HAZARD_CODES[hazard.kind]
            found.append(Diagnostic(code, f"{self.recipe}: {hazard}", help=_HELP[code]))
        if self.failure is None and not self.checks:
            found.append(Diagnostic("VCG657", f"{self.recipe}: nothing was compared", help=_HELP["VCG657"]))
        if self.negative_lengths:
            found.append(
                Diagnostic(
                    "VCG665",
                    f"{self.recipe}: {self.negative_lengths} attention sequences of negative length were replayed",
                    help=_HELP["VCG665"],
                )
            )
        return tuple(found)

    @property
    def verdict(self) -> str:
        """One line: passed or not, and what was run."""
        failed = sum(not check.passed for check in self.checks)
        word = ("PASS" if self.passed else "FAIL") + (" (guessed configuration)" if self.guessed else "")
        return (
            f"{word}: {len(self.checks) - failed} of {len(self.checks)} checks, "
            f"{self.hits} replayed, {self.misses} eager, "
            + (f"on {self.machine}" if self.machine else f"{len(self.hazards)} hazards")
        )

    def properties(self) -> tuple[Property, ...]:
        """One line per property, the properties of the whole run last."""
        return (*properties_of(self.checks), *self.run_properties())

    def run_properties(self) -> tuple[Property, ...]:
        """Properties of the run as a whole: unwritten memory, the attention kernel, where metadata are."""
        if not self.checks:
            return ()
        replays = [check for check in self.checks if check.max_abs is not None and check.code != "VCG651"]
        spoiled = [check for check in replays if math.isnan(check.max_abs or 0.0)]
        found = [
            Property(
                "no unwritten memory reaches a result",
                "all",
                len(replays),
                len(spoiled),
                detail=f"{spoiled[0].name}: {spoiled[0].detail}" if spoiled else "all of it is NaN",
            )
        ]
        if self.machine:
            return tuple(found)
        if self.sequences:
            negative = self.negative_lengths
            detail = f"{self.sequences} attention sequences" + (f", {negative} of negative length" if negative else "")
            found.append(Property(TAILS[self.tail], "all", 0, min(negative, 1), detail=detail))
        detail = str(self.hazards[0]) if self.hazards else "no sync, no copy, no shape from data in a capture"
        found.append(Property("metadata on the host", "all", 0, len(self.hazards), detail=detail))
        return tuple(found)

    def lines(self) -> list[str]:
        """The report as text, one line a fact, verdict last."""
        where = "real CUDA graphs" if self.machine else TAILS[self.tail]
        lines = [f"{self.recipe} on {self.release or 'the tree'}, {where}"]
        lines += [*(f"  {check}" for check in self.checks), *(f"  HAZARD {hazard}" for hazard in self.hazards)]
        if self.negative_lengths:
            lines.append(f"  FAIL {self.negative_lengths} attention sequences of negative length")
        if self.failure is not None:
            lines.append(f"  {self.failure.code} {self.failure.message}")
            lines += [f"    {note}" for note in self.failure.notes]
        lines += [f"  not run: {what}" for what in self.not_run]
        return [*lines, self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The fields that a child process measured; `failure` belongs to the parent."""
        return {
            "checks": [asdict(check) for check in self.checks],
            "hazards": [asdict(hazard) for hazard in self.hazards],
            "hits": self.hits,
            "misses": self.misses,
            "negative_lengths": self.negative_lengths,
            "machine": self.machine,
            "sequences": self.sequences,
            "guessed": list(self.guessed),
            "not_run": list(self.not_run),
        }

    def document(self) -> dict[str, Any]:
        """The report for other programs, `verify --json`: what was run, what came of it, and what was measured.

        JSON has no NaN: an error that is not finite is null, as where nothing was measured; the check failed then.
        """
        measured = self.to_json()
        for check in measured["checks"]:
            for name in ("max_abs", "max_rel"):
                if check[name] is not None and not math.isfinite(check[name]):
                    check[name] = None
        return {
            "recipe": self.recipe,
            "release": self.release,
            "tail": "" if self.machine else self.tail,
            "passed": self.passed,
            "problems": [{"code": d.code, "message": d.message, "notes": d.notes} for d in self.diagnostics()],
            **measured,
        }

    @classmethod
    def from_json(cls, request: NumericRequest, data: Mapping[str, Any]) -> NumericReport:
        return cls._read({"recipe": request.recipe, "release": request.release, "tail": request.tail, **data})

    @classmethod
    def from_document(cls, data: Mapping[str, Any]) -> NumericReport:
        """The report that `document` told. It has no `failure`: a report without a check has not passed either."""
        return cls._read({**data, "tail": data["tail"] or "fa2"})

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> NumericReport:
        return cls(
            recipe=data["recipe"],
            release=data["release"],
            tail=data["tail"],
            checks=tuple(Check(**check) for check in data["checks"]),
            hazards=tuple(ObservedHazard(**hazard) for hazard in data["hazards"]),
            hits=data["hits"],
            misses=data["misses"],
            negative_lengths=data["negative_lengths"],
            machine=data.get("machine", ""),
            sequences=data.get("sequences", 0),
            guessed=tuple(data.get("guessed", ())),
            not_run=tuple(data.get("not_run", ())),
        )


def _named(check: Check) -> str:
    return f"{check.modality} {check.name}"


def _failure_text(report: NumericReport, check: Check) -> str:
    error = "" if check.max_abs is None else f": max abs {check.max_abs:.3g}, rel {check.max_rel:.3g}"
    return f"{report.recipe}, {check.modality}: {check.name} failed{error}" + (
        f" ({check.detail})" if check.detail else ""
    )


_HAZARD_CODES = {
    "host sync": "VCG652",
    "dynamic shape": "VCG652",
    "copy in capture": "VCG653",
    "placement": "VCG653",
    LEFT: "VCG671",
}

#: So many of the comparisons that fail like another one are named.
_NAMED = 4

_HELP = {
    "VCG650": "compare the method that served these items: the graph's buffers where they were replayed, "
    "`encoder_eager_forward` where they ran eagerly",
    "VCG651": "compare the moved statements with the pristine tower: one of them reads a value before it is ready",
    "VCG652": "move the statement out of the captured forward, into the metadata that is computed before a replay",
    "VCG653": "create the tensor on the model's device before the capture and pass it as a buffer",
    "VCG657": "mend what the message quotes; else check `modalities` in the descriptor and the items' token counts: no "
    "item reached a captured graph",
    "VCG658": "clone what is cut out of the graph's output buffer, wherever `clone` asks for it",
    "VCG660": "route inputs without a pixel key to `embed_multimodal`",
    "VCG668": "nothing was compared, so the port may be right: write a recipe that makes these inputs "
    "(docs/verify.md), and name it with --recipe",
    "VCG661": "call the encoder inside the tower, not the data-parallel wrapper: the manager shards items itself",
    "VCG670": "add `gates: {modalities: not self.use_data_parallel}` to the descriptor, or what the class calls it",
    "VCG671": "let the graph hold a call that ends before that line (without `explicit` that is `forward.call`), or "
    "let the model make the tensor with `torch.as_tensor`: it follows the loader's device",
    "VCG662": "clamp the minimum token budget to the maximum",
    "VCG654": "mend the line that is named last; it ran while the manager captured, selected items or filled buffers",
    "VCG666": "send a batch eagerly when its frames exceed the captured number of attention sequences",
    "VCG669": "normalise pixels in the port as the model's own methods do before they call the tower",
    "VCG665": "pad cumulative offsets by repeating the last value",
}


#: Failures that show nothing of a port: the lab had no time, the release does not run, no recipe fits the model.
UNDECIDED = frozenset({"VCG655", "VCG656", "VCG659", "VCG668"})


class Watch(Protocol):
    """Sees a run while it happens."""

    def started(self, request: NumericRequest) -> None:
        """A request is about to be served."""

    def note(self, text: str) -> None:
        """A step is done."""

    def basis(self, text: str) -> None:
        """A line about the basis of an automatic recipe."""

    def case(self, text: str, total: int) -> None:
        """One of `total` calls was compared; `text` names its property."""

    def settled(self, found: Property) -> None:
        """The last comparison of a property is done."""

    def ended(self, report: NumericReport) -> None:
        """The request was served."""


class NoteTaker:
    """A `Watch` that hands on the steps, and nothing else."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell

    def started(self, request: NumericRequest) -> None:
        return None

    def note(self, text: str) -> None:
        if self._tell is not None:
            self._tell(text)

    def basis(self, text: str) -> None:
        return None

    def case(self, text: str, total: int) -> None:
        return None

    def settled(self, found: Property) -> None:
        return None

    def ended(self, report: NumericReport) -> None:
        return None
