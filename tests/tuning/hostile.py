"""Blocks and towers that look like those that tunings know, and are others. No tuning may change what they compute.

`CASES` has each of them by name: how to build the tower, and what somebody does to it before and after the tunings.
"""

import functools
import itertools

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.proj(torch.tanh(self.qkv(x)))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 12), nn.GELU(approximate="tanh"), nn.Linear(12, WIDTH)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    """The plain block. Others change one thing."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attn, self.mlp, self.other = Attention(), Mlp(), nn.Linear(WIDTH, WIDTH)
        self.ls1, self.ls2 = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("state", torch.zeros(WIDTH))
        self.count = 0

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Tower(nn.Module):
    """The plain loop. Others change one thing."""

    block = Block

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(self.block() for _ in range(4))
        self.merger = nn.Linear(WIDTH, WIDTH)
        self.state = None
        self.seen = []

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


# -- children with a state, or that change what they get


class Buffered(Attention):
    """It returns memory of its own, whose values live on."""

    def __init__(self):
        super().__init__()
        self.memory = None

    def forward(self, x):
        if self.memory is None:
            self.memory = torch.zeros_like(x)
        self.memory *= 0.5
        self.memory += self.proj(x)
        return self.memory


class Counting(Attention):
    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return self.count * self.proj(x)


class ChangesInput(Attention):
    """It works in place on the rows that it gets."""

    def forward(self, x):
        x *= 0.5
        return self.proj(x + self.qkv(x))


class ReturnsInput(Attention):
    def forward(self, x):
        return x


class ReturnsView(Attention):
    def forward(self, x):
        return x.view(-1, WIDTH).view(x.shape)


class Keeps(Attention):
    """It adds what it got in the call before."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        last, self.last = self.last, x
        return self.proj(x if last is None else x + last)


class InplaceMlp(Mlp):
    def forward(self, x):
        x.add_(1)
        return self.down(self.act(self.up(x)))


class ReluMlp(Mlp):
    """Its activation works in place on what it gets: with no layer before it, that is the norm's result."""

    def forward(self, x):
        return self.down(self.up(F.relu(x, inplace=True)))


class OtherMlp(Mlp):
    def forward(self, x):
        return self.down(self.act(self.up(x)) * 2)


class TwiceMlp(Mlp):
    def forward(self, x):
        return self.down(self.act(self.act(self.up(x))))


class ExactMlp(Mlp):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU()


class Negated(nn.GELU):
    def forward(self, x):
        return -super().forward(x)


class SubclassMlp(Mlp):
    def __init__(self):
        super().__init__()
        self.act = Negated(approximate="tanh")


class LinearTwice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class SubclassedLinearMlp(Mlp):
    def __init__(self):
        super().__init__()
        self.up = LinearTwice(WIDTH, 12)


class SharedWeightMlp(Mlp):
    """Both layers read one memory."""

    def __init__(self):
        super().__init__()
        self.down.weight = nn.Parameter(self.up.weight.data.t())


class NamedNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1


def norm_of_another_module(name, home):
    """A norm whose class has the name of one of vLLM's, in another of its modules."""

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))
            self.variance_epsilon = self.eps = 1e-6
            self.normalized_shape = (WIDTH,)

        def forward(self, x, residual=None):
            x = x if residual is None else x + 2 * residual
            out = x * self.weight + self.bias
            return out if residual is None else (out, x)

    Norm.__name__, Norm.__module__ = name, home
    return Norm()


# -- forwards of blocks


def wrapped(function):
    @functools.wraps(function)
    def doubled(*arguments, **keywords):
        return 2 * function(*arguments, **keywords)

    return doubled


class Wrapped(Block):
    @wrapped
    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Autocast(Block):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class WrappedLater(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


WrappedLater.forward = wrapped(WrappedLater.forward)


class CallsTwice(Block):
    """The attention of the second line is another call, with another state."""

    def forward(self, x):
        h = x + self.attn(self.norm1(x))
        return (x + self.attn(self.norm1(x))) + self.mlp(self.norm2(h))


class CallsForNothing(Block):
    def forward(self, x):
        unused = self.attn(self.norm1(x))  # noqa: F841
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CallsAnother(Block):
    def forward(self, x):
        y = self.other(x)
        y = x + self.attn(self.norm1(x))
        return y + self.mlp(self.norm2(y))


class NormsTwice(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(self.norm3(x)))
        return x + self.mlp(self.norm2(x))


class NormsInput(Block):
    def forward(self, x):
        x = self.norm1(x)
        x = x + self.attn(x)
        return x + self.mlp(self.norm2(x))


class Crossed(Block):
    def forward(self, x):
        h = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(h))


class Parallel(Block):
    def forward(self, x):
        return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))


class Doubled(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(x)) + x
        return x + self.mlp(self.norm2(x))


class Subtracted(Block):
    def forward(self, x):
        x = x - self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Returns(Block):
    """Another tensor than the sum."""

    def forward(self, x):
        h = x + self.attn(self.norm1(x))
        y = h + self.mlp(self.norm2(h))
        return h if self.count else y + h


class Early(Block):
    def forward(self, x):
        if x.shape[0] > 2:
            return x + self.attn(self.norm1(x))
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Counts(Block):
    def forward(self, x):
        self.count += 1
        x = x + self.count * self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class InPlaceInput(Block):
    """It writes into what it was given."""

    def forward(self, x):
        x += self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class InPlaceBranch(Block):
    """It writes into what its attention returned."""

    def forward(self, x):
        h = self.attn(self.norm1(x))
        h += x
        y = self.mlp(self.norm2(h))
        y += h
        return y


class InPlaceMlp(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        y = self.mlp(self.norm2(x))
        y += x
        return y


class TwoNames(Block):
    def forward(self, x):
        h = self.attn(self.norm1(x))
        g = h
        h += x
        x = h + self.mlp(self.norm2(h))
        return x + g


class Swapped(Block):
    """`a, a = ...` keeps the second entry."""

    def forward(self, x):
        a, a = self.attn(self.norm1(x))  # noqa: PLW0128
        x = x + a
        return x + self.mlp(self.norm2(x))


class Pair(Attention):
    def forward(self, x):
        return self.proj(x), self.qkv(x)


class NotSelf(Block):
    def forward(this, self):
        self = self + this.attn(this.norm1(self))
        return self + this.mlp(this.norm2(self))


class PositionOnly(Block):
    def forward(self, x, /, y=None):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Starred(Block):
    def forward(self, *x):
        y = x[0] + self.attn(self.norm1(x[0]))
        return y + self.mlp(self.norm2(y))


class Scaled(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(x)) * self.ls1
        return x + self.ls2 * self.mlp(self.norm2(x))


class ScaledByNumber(Scaled):
    def __init__(self):
        super().__init__()
        del self.ls1
        self.ls1 = 0.5


class ScaledByColumn(Scaled):
    """A scale of each row, not of each column."""

    def __init__(self):
        super().__init__()
        self.ls1 = nn.Parameter(torch.rand(3, 1))


class ScaledByWideType(Scaled):
    def __init__(self):
        super().__init__()
        self.ls1 = nn.Parameter(torch.rand(WIDTH, dtype=torch.float64))


class ScaledByProperty(Scaled):
    """Its scale grows whenever it is read."""

    def __init__(self):
        super().__init__()
        del self.ls1

    @property
    def ls1(self):
        self.count += 1
        return torch.full((WIDTH,), float(self.count))


class Widening(Attention):
    """Its result has another type."""

    def forward(self, x):
        return self.proj(x).double()


class Broadcasting(Attention):
    """Its result has one row."""

    def forward(self, x):
        return self.proj(x).mean(0, keepdim=True)


class Residual(Block):
    """vLLM's RMS norms add: another child with such an argument does something else."""

    def forward(self, x):
        attended = self.attn(self.norm1(x))
        normed, total = self.norm2(x, residual=attended)
        return total + self.mlp(normed)


class Dropped(Block):
    def __init__(self):
        super().__init__()
        self.norm2 = nn.Dropout(0.0)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class NamedArgument(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(input=x))
        return x + self.mlp(self.norm2(input=x))


class PostNorm(Block):
    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class Behind(Block):
    def forward(self, x):
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


class Finds(Block):
    """Its children depend on how often it was asked."""

    def __getattr__(self, name):
        found = super().__getattr__(name)
        if name == "attn":
            self.__dict__["count"] += 1
            return found if self.count % 2 else self.other
        return found


class Called(Block):
    """Its call does more than its forward."""

    def __call__(self, x):
        return 2 * super().__call__(x)


class Wide(Block):
    """Norms over other dimensions."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm((3, WIDTH))


class OneNorm(Block):
    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm1(x))


class Walrus(Block):
    def forward(self, x):
        return (h := x + self.attn(self.norm1(x))) + self.mlp(self.norm2(h))


class Reassigns(Block):
    def forward(self, x):
        self.norm2 = self.norm1
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


# -- loops


class Reversed(Tower):
    def forward(self, x):
        for block in reversed(self.blocks):
            x = block(x)
        return x


class Stepped(Tower):
    def forward(self, x):
        for block in self.blocks[::2]:
            x = block(x)
        return x


class Tail(Tower):
    def forward(self, x):
        for block in self.blocks[2:]:
            x = block(x)
        return x


class Permuted(Tower):
    def forward(self, x):
        for number in (2, 0, 3, 1):
            x = self.blocks[number](x)
        return x


class Sorted(Tower):
    def forward(self, x):
        for block in sorted(self.blocks, key=lambda block: float(block.ls1[0])):
            x = block(x)
        return x


class Again(Tower):
    def forward(self, x):
        for block in self.blocks:
            for _ in range(2):
                x = block(x)
        return x


class Twice(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(block(x))
        return x


class Skips(Tower):
    def forward(self, x):
        for number, block in enumerate(self.blocks):
            if number == 1:
                continue
            x = block(x)
        return x


class Chained(Tower):
    def forward(self, x):
        for block in itertools.chain(self.blocks[1:], self.blocks[:1]):
            x = block(x)
        return x


class AddsBetween(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            torch.add(x, 1, out=x)
        return x


class AliasBetween(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            y = x
            y *= 0.5
        return x


class ViewBetween(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x.view(-1)[::3] = 0
        return x


class ReluBetween(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            F.relu(x, inplace=True)
        return x


class HelperBetween(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            self.damp(x)
        return x

    def damp(self, x):
        x.mul_(0.5)


class DataBetween(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x.data = x.data * 0.5
        return x


class SetBetween(Tower):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x.set_(x * 0.5)
        return x


class ListBetween(Tower):
    """Somebody else changes what was kept."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            self.seen.append(x)
            self.seen[-1] -= 1
        return x


class MergerBetween(Tower):
    def __init__(self):
        super().__init__()
        self.merger = nn.ReLU(inplace=True)

    def forward(self, x):
        kept = []
        for block in self.blocks:
            x = block(x)
            kept.append(self.merger(x))
        return x + sum(kept)


class BeforeTheBlock(Tower):
    def forward(self, x):
        for block in self.blocks:
            x.mul_(1.5)
            x = block(x)
        return x


class Collects(Tower):
    """The sum of each block stays: no block may write into it."""

    def forward(self, x):
        kept = []
        for block in self.blocks:
            x = block(x)
            kept.append(x)
        return torch.cat(kept)


class SameRows(Tower):
    """Every block gets the same rows."""

    def forward(self, x):
        return sum(block(x) for block in self.blocks)


class KeepsTheSum(Tower):
    """A block's result of the last call comes again, changed."""

    def forward(self, x):
        first = self.blocks[0](x)
        if self.state is not None:
            self.state.mul_(2)
            first = self.blocks[1](self.state)
        self.state = first
        return self.blocks[1](first)


class InPlaceTower(Tower):
    block = InPlaceBranch


# -- what somebody does to a tower


def each(tower, act):
    for block in tower.blocks:
        act(block)


def put(**children):
    """Give each block other children."""

    def act(tower):
        for block in tower.blocks:
            for name, make in children.items():
                setattr(block, name, make())

    return act


def instance_forward(name):
    def act(tower):
        for block in tower.blocks:
            module = block.get_submodule(name)
            own = module.forward
            module.forward = lambda x, own=own: 2 * own(x)

    return act


def hook(name):
    def act(tower):
        for block in tower.blocks:
            block.get_submodule(name).register_forward_hook(lambda module, given, out: 2 * out)

    return act


def pre_hook(name):
    def act(tower):
        for block in tower.blocks:
            block.get_submodule(name).register_forward_pre_hook(lambda module, given: (given[0] + 1,))

    return act


def global_hook(tower):
    kinds = (nn.LayerNorm, nn.GELU)
    return nn.modules.module.register_module_forward_hook(
        lambda module, given, out: 2 * out if isinstance(module, kinds) else None
    )


def global_pre_hook(tower):
    return nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: (given[0] + 1,) if isinstance(module, nn.LayerNorm) else None
    )


def other_norms(tower):
    torch.manual_seed(7)
    for block in tower.blocks:
        block.norm1, block.norm2 = (nn.LayerNorm(WIDTH, eps=0.1) for _ in range(2))


def with_block(block):
    class Made(Tower):
        pass

    Made.block = block
    return Made


def nothing(tower):
    return None


BLOCKS = (
    Wrapped, Autocast, WrappedLater, CallsTwice, CallsForNothing, CallsAnother, NormsTwice, NormsInput, Crossed,
    Parallel, Doubled, Subtracted, Returns, Early, Counts, InPlaceInput, InPlaceBranch, InPlaceMlp, TwoNames,
    NotSelf, PositionOnly, Starred, Scaled, ScaledByNumber, ScaledByColumn, ScaledByWideType, ScaledByProperty,
    Dropped, NamedArgument, PostNorm, Behind, Finds, Called, Wide, OneNorm, Walrus, Reassigns,
)  # fmt: skip
TOWERS = (
    Reversed, Stepped, Tail, Permuted, Sorted, Again, Twice, Skips, Chained, AddsBetween, AliasBetween,
    ViewBetween, ReluBetween, HelperBetween, DataBetween, SetBetween, ListBetween, MergerBetween,
    BeforeTheBlock, Collects, SameRows, KeepsTheSum, InPlaceTower,
)  # fmt: skip
#: Children of plain blocks, and of those that write into what their branches give.
CHILDREN = {
    "a buffer of its own": put(attn=Buffered),
    "counting": put(attn=Counting),
    "changes its input": put(attn=ChangesInput),
    "returns its input": put(attn=ReturnsInput),
    "returns a view of its input": put(attn=ReturnsView),
    "keeps its input": put(attn=Keeps),
    "another type": put(attn=Widening),
    "one row": put(attn=Broadcasting),
    "an MLP in place": put(mlp=InplaceMlp),
    "an MLP that begins with its activation": put(mlp=ReluMlp),
    "an MLP and more": put(mlp=OtherMlp),
    "two activations": put(mlp=TwiceMlp),
    "exact GELU": put(mlp=ExactMlp),
    "a subclass of GELU": put(mlp=SubclassMlp),
    "a subclass of a linear layer": put(mlp=SubclassedLinearMlp),
    "one memory for both layers": put(mlp=SharedWeightMlp),
    "a subclass of a norm": put(norm1=lambda: NamedNorm(WIDTH), norm2=lambda: NamedNorm(WIDTH)),
    "an RMS norm of another module": put(
        norm1=lambda: norm_of_another_module("RMSNorm", "vllm.models.other.norm"),
        norm2=lambda: norm_of_another_module("RMSNorm", "vllm.models.other.norm"),
    ),
    "a layer norm of another module": put(
        norm1=lambda: norm_of_another_module("LayerNorm", "vllm.model_executor.models.other"),
        norm2=lambda: norm_of_another_module("LayerNorm", "vllm.model_executor.models.other"),
    ),
}
ACTS = {
    **{f"a forward on the instance of {name}": instance_forward(name) for name in ("norm1", "norm2", "attn", "mlp")},
    "a forward on the instance of an activation": instance_forward("mlp.act"),
    "a forward on the instance of a linear layer": instance_forward("mlp.up"),
    **{f"a hook on {name}": hook(name) for name in ("norm1", "norm2", "attn", "mlp", "mlp.act", "mlp.up", "mlp.down")},
    **{f"a hook before {name}": pre_hook(name) for name in ("norm1", "norm2", "mlp.act", "mlp.up")},
    "a hook on all modules": global_hook,
    "a hook before all modules": global_pre_hook,
    "other norms": other_norms,
}

#: By name: the tower's class, what happens before the tunings, and after them.
CASES = {
    **{block.__name__: (with_block(block), nothing, nothing) for block in BLOCKS},
    **{tower.__name__: (tower, nothing, nothing) for tower in TOWERS},
    **{f"{name}": (Tower, act, nothing) for name, act in CHILDREN.items()},
    **{f"{name}, and sums in place": (InPlaceTower, act, nothing) for name, act in CHILDREN.items()},
    "a pair": (with_block(Swapped), put(attn=Pair), nothing),
    "adds by another norm": (
        with_block(Residual), put(norm2=lambda: norm_of_another_module("RMSNorm", "vllm.models.other.norm")), nothing
    ),
    "adds by a norm named so": (
        with_block(Residual), put(norm2=lambda: norm_of_another_module("LayerNorm", "vllm.models.other")), nothing
    ),
    **{f"{name} before": (Tower, act, nothing) for name, act in ACTS.items()},
    **{f"{name} after": (Tower, nothing, act) for name, act in ACTS.items()},
}  # fmt: skip
