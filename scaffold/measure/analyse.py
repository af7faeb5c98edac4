"""Turns kernel records into classes, floors and findings. It knows names of kernels and modules, and needs no torch.

The floor counts matrix products and attention only: operations at the measured matrix rate, or bytes at the measured
copy bandwidth, whichever takes longer. Fused kernels could do everything else along with them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from scaffold.measure.profiles import (
    AvoidableCost,
    Ceilings,
    ClassTotal,
    KernelClass,
    KernelRecord,
    Profile,
    Recording,
    pattern_of,
)

_PRODUCT_KERNEL = re.compile(r"gemm|nvjet|cublas|xmma|splitk|cutlass.*(mma|gemm)|wgmma", re.IGNORECASE)
_PRODUCT_OPS = ("aten::addmm", "aten::mm", "aten::bmm", "aten::linear", "aten::matmul", "aten::_addmm_activation")
_CONVOLUTION = re.compile(r"conv|fprop|implicit", re.IGNORECASE)
_ATTENTION_KERNEL = re.compile(r"flash|fmha|attention|cudnn.*sdpa", re.IGNORECASE)
_COPY_KERNEL = re.compile(r"copy|Memcpy|Memset|FillFunctor|CatArray|index|gather|scatter", re.IGNORECASE)
_CAST_KERNEL = re.compile(r"(to|_)(b?float16|float32|half)\w*_copy", re.IGNORECASE)
_NORM_MODULE = re.compile(r"Norm")
_NORM_KERNEL = re.compile(r"(layer|rms)_norm|^norm_kernel")
_ACTIVATION_MODULE = re.compile(r"GELU|SiLU|Silu|Swish|AndMul|Act\b|ReLU|Sigmoid", re.IGNORECASE)
_ROTARY_MODULE = re.compile(r"Rotary")
_ACTIVATION_KERNEL = re.compile(r"gelu|silu|sigmoid", re.IGNORECASE)


#: Numbers of bf16 in 16 bytes, which the fast kernels load at a time.
ALIGNMENT = 8


def classify(record: KernelRecord) -> KernelClass:
    """The class of one kernel, by its own name, then by its operator and the module around it."""
    name, module = record.name, record.module_class
    if _NORM_MODULE.search(module) or _NORM_KERNEL.search(name) or record.op.endswith("layer_norm"):
        return KernelClass.NORM
    if _ROTARY_MODULE.search(module) or "rotary" in name:
        return KernelClass.ROTARY
    if _ATTENTION_KERNEL.search(name):
        return KernelClass.ATTENTION
    if _PRODUCT_KERNEL.search(name) or (record.op.split("/")[0] in _PRODUCT_OPS and not _COPY_KERNEL.search(name)):
        return KernelClass.PRODUCT
    if _CONVOLUTION.search(name) and "conv" in record.op:
        return KernelClass.PRODUCT
    if _ACTIVATION_MODULE.search(module) or _ACTIVATION_KERNEL.search(name):
        return KernelClass.ACTIVATION
    if _CAST_KERNEL.search(name):
        return KernelClass.CAST
    if _COPY_KERNEL.search(name):
        return KernelClass.COPY
    if "elementwise" in name or "triton_poi" in name:
        return KernelClass.ELEMENTWISE
    return KernelClass.OTHER


def product_size(record: KernelRecord) -> tuple[int, int, int] | None:
    """Rows, columns and inner size of a matrix product, from its operator's arguments; None if they do not tell."""
    op = record.op.split("/")[0]
    shapes = record.shapes
    if op in ("aten::addmm", "aten::_addmm_activation") and len(shapes) >= 3:
        left, right = shapes[1], shapes[2]
    elif op in ("aten::mm", "aten::matmul") and len(shapes) >= 2:
        left, right = shapes[0], shapes[1]
    elif op == "aten::linear" and len(shapes) >= 2:
        left, right = shapes[0], shapes[1][::-1]
    elif op == "aten::bmm" and len(shapes) >= 2:
        (batch, rows, inner), columns = shapes[0], shapes[1][-1]
        return batch * rows, columns, inner
    elif "conv" in op and len(shapes) >= 2 and len(shapes[1]) >= 3:
        columns, inner = shapes[1][0], _count(shapes[1][1:])
        return max(_count(shapes[0]) // inner, 1), columns, inner
    else:
        return None
    return _count(left[:-1]), right[-1], left[-1]


def _count(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _product_floor(size: tuple[int, int, int], ceilings: Ceilings) -> float:
    rows, columns, inner = size
    return ceilings.ms(2 * rows * columns * inner, 2 * (rows * inner + inner * columns + rows * columns))


def analyse(recording: Recording) -> Profile:
    """Classes with their floors, and findings, the largest gain first."""
    ceilings = recording.ceilings
    by_class: dict[KernelClass, list[KernelRecord]] = defaultdict(list)
    for record in recording.kernels:
        by_class[classify(record)].append(record)
    totals = []
    for kind, records in by_class.items():
        floor = None
        if kind is KernelClass.PRODUCT:
            floor = sum(_product_floor(size, ceilings) for size in map(product_size, records) if size)
        elif kind is KernelClass.ATTENTION:
            floor = sum(ceilings.ms(call.operations, call.bytes(2)) for call in recording.attention)
        totals.append(ClassTotal(kind, sum(r.us for r in records) / 1e3, len(records), floor))
    totals.sort(key=lambda total: -total.ms)
    findings = [
        *_misaligned(by_class[KernelClass.PRODUCT], ceilings),
        *_unfused(
            [r for r in by_class[KernelClass.NORM] if _NORM_MODULE.search(r.module_class)],
            "norm",
            ceilings,
            "a fused norm (`fused-norms`, `fused-residuals`)",
        ),
        *_unfused(
            [r for r in by_class[KernelClass.ACTIVATION] if _ACTIVATION_MODULE.search(r.module_class)],
            "activation",
            ceilings,
            "one kernel (`fused-activations`)",
        ),
        *_whole(by_class[KernelClass.CAST], "cast"),
        *_whole(by_class[KernelClass.COPY], "copy"),
        # A fused norm does the work of kernels beside it and saves half of their time, their reading.
        *_whole(
            by_class[KernelClass.ELEMENTWISE], "element-wise", 0.5, "fuse with the norm behind it (`fused-residuals`)"
        ),
        *_attention(recording, by_class[KernelClass.ATTENTION]),
    ]
    findings = [f for f in findings if f.gain_ms >= 0.005]
    findings.sort(key=lambda f: -f.gain_ms)
    return Profile(recording, tuple(totals), tuple(findings))


def _by_place(records: Iterable[KernelRecord]) -> dict[str, list[KernelRecord]]:
    places: dict[str, list[KernelRecord]] = defaultdict(list)
    for record in records:
        places[pattern_of(record.module) or "(outside of modules)"].append(record)
    return places


def _ms(records: Iterable[KernelRecord]) -> float:
    return sum(record.us for record in records) / 1e3


def _misaligned(records: list[KernelRecord], ceilings: Ceilings) -> list[AvoidableCost]:
    """Products whose inner or outer size breaks 16-byte loads, compared with the rate of the aligned ones."""
    sized = [(record, size) for record in records if (size := product_size(record)) is not None]
    speeds = [
        _product_floor(size, ceilings) / (record.us / 1e3)
        for record, size in sized
        if not any(n % ALIGNMENT for n in size[1:]) and record.us > 0
    ]
    usual = median(speeds) if speeds else 1.0
    groups: dict[tuple[str, tuple[int, int]], list[tuple[KernelRecord, tuple[int, int, int]]]] = defaultdict(list)
    for record, size in sized:
        if any(n % ALIGNMENT for n in size[1:]):
            groups[pattern_of(record.module), size[1:]].append((record, size))
    found = []
    for (place, (columns, inner)), members in groups.items():
        spent = _ms(record for record, _ in members)
        possible = sum(_product_floor(size, ceilings) for _, size in members) / usual
        wrong = f"inner size {inner}" if inner % ALIGNMENT else f"{columns} columns"
        detail = f"{wrong} is not a multiple of {ALIGNMENT}: {members[0][0].name}"
        remedy = "pad with zeros (`pad-mlp`)" if inner % ALIGNMENT else "pad the columns with zeros"
        found.append(AvoidableCost("misaligned product", place, detail, spent, max(spent - possible, 0.0), remedy))
    return found


def _unfused(records: list[KernelRecord], what: str, ceilings: Ceilings, remedy: str) -> list[AvoidableCost]:
    """Calls of a module that take several kernels where one pass over the rows would do."""
    found = []
    for place, members in _by_place(records).items():
        calls: dict[int, list[KernelRecord]] = defaultdict(list)
        for record in members:
            calls[record.call].append(record)
        several = [call for number, call in calls.items() if number >= 0 and len(call) > 1]
        if not several:
            continue
        spent = sum(_ms(call) for call in several)
        one_pass = sum(ceilings.ms(0, 2 * _largest(call)) for call in several)
        detail = f"{len(several[0])} kernels a call"
        found.append(AvoidableCost(f"unfused {what}", place, detail, spent, max(spent - one_pass, 0.0), remedy))
    return found


def _largest(records: Iterable[KernelRecord]) -> int:
    """Bytes of the rows: the largest bf16 argument, or the largest one at two bytes per number."""
    return max((2 * _count(shape) for r in records for shape in r.shapes), default=0)


def _whole(records: list[KernelRecord], what: str, part: float = 1.0, remedy: str = "") -> list[AvoidableCost]:
    """All kernels of a class, of whose time this part is to be had back."""
    found = []
    for place, members in _by_place(records).items():
        spent = _ms(members)
        kernels = ", ".join(sorted({record.op or record.name.split("<")[0] for record in members})[:3])
        detail = f"{len(members)} launches: {kernels}"
        found.append(AvoidableCost(what, place, detail, spent, part * spent, remedy or _remedy(members)))
    return found


def _remedy(copies: list[KernelRecord]) -> str:
    """The way to avoid these copies, if their operators and modules tell one."""
    operators = {record.op.split("/")[-1] for record in copies}
    if operators & set(_PRODUCT_OPS):
        return "none: workspace of a split product"
    if "aten::fill_" in operators or "aten::zeros" in operators:
        return "none while padded rows may be read: attention writes into zeros"
    if any("conv" in record.op for record in copies):
        return "weights in cuDNN's layout (`channels-last`)"
    if any("Attention" in record.module_class for record in copies) and operators & {"aten::copy_", "aten::cat"}:
        return "strided views in place (`inplace-rotary`)"
    return "avoid it"


def _attention(recording: Recording, records: list[KernelRecord]) -> list[AvoidableCost]:
    """Attention at short sequences: tiles of 128 rows compute mostly padding."""
    found = []
    by_module: dict[str, float] = defaultdict(float)
    for record in records:
        by_module[record.module] += record.us / 1e3
    groups: dict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
    for call in recording.attention:
        short = bool(call.lengths) and max(call.lengths) <= 64
        floor = recording.ceilings.ms(call.operations, call.bytes(2))
        groups[pattern_of(call.module), short].append((by_module.get(call.module, 0.0), floor))
    for (place, short), members in groups.items():
        spent, floor = sum(m[0] for m in members), sum(m[1] for m in members)
        if not spent or not short:
            continue
        detail = f"{len(members)} calls on sequences of at most 64 rows"
        remedy = "one program a window (`small-windows`)"
        found.append(AvoidableCost("short sequences", place, detail, spent, max(spent - 2 * floor, 0.0), remedy))
    return found
