"""Blocks and towers that look like those that tunings know, and are others. No tuning may change what they compute.

`CASES` has each of them by name: how to build the tower, and what somebody does to it before and after the tunings.
Most are a plain module with the text of another forward, since tunings read a forward's source.
"""

import functools
import itertools
import linecache
import textwrap

import torch
import torch.nn.functional as F  # noqa: F401
from torch import nn

WIDTH = 8
_numbers = itertools.count()


def written(base, body, head="self, x", decorator="", **more):
    """A subclass of a module with this forward, and further attributes of the class."""
    text = f"{decorator}\ndef forward({head}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n".lstrip()
    file = f"<forward {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found = {}
    exec(compile(text, file, "exec"), globals(), found)
    return type(base.__name__, (base,), {**found, **more})


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.proj(torch.tanh(self.qkv(x)))


class Mlp(nn.Module):
    def __init__(self, **children):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 12), nn.GELU(approximate="tanh"), nn.Linear(12, WIDTH)
        for name, child in children.items():
            setattr(self, name, child)

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


class Negated(nn.GELU):
    def forward(self, x):
        return -super().forward(x)


class LinearTwice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class NamedNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1


class SharedWeightMlp(Mlp):
    """Both layers read one memory."""

    def __init__(self):
        super().__init__()
        self.down.weight = nn.Parameter(self.up.weight.data.t())


def norm_of_another_module(name, home):
    """Makes a norm whose class has the name of one of vLLM's, in another of its modules."""

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
    return Norm


def put(**children):
    """Give each block other children, or other scales."""

    def act(tower):
        for block in tower.blocks:
            for name, make in children.items():
                block._parameters.pop(name, None)
                setattr(block, name, make())

    return act


#: Forwards of attention. A buffer of its own is returned memory whose values live on.
ATTENTIONS = {
    "a buffer of its own": written(
        Attention,
        """
        if self.memory is None:
            self.memory = torch.zeros_like(x)
        self.memory *= 0.5
        self.memory += self.proj(x)
        return self.memory
        """,
        memory=None,
    ),
    "counting": written(Attention, "self.count += 1\nreturn self.count * self.proj(x)", count=0),
    "changes its input": written(Attention, "x *= 0.5\nreturn self.proj(x + self.qkv(x))"),
    "returns its input": written(Attention, "return x"),
    "returns a view of its input": written(Attention, f"return x.view(-1, {WIDTH}).view(x.shape)"),
    "keeps its input": written(
        Attention, "last, self.last = self.last, x\nreturn self.proj(x if last is None else x + last)", last=None
    ),
    "another type": written(Attention, "return self.proj(x).double()"),
    "one row": written(Attention, "return self.proj(x).mean(0, keepdim=True)"),
}
MLPS = {
    "an MLP in place": written(Mlp, "x.add_(1)\nreturn self.down(self.act(self.up(x)))"),
    # It works in place on what it gets: with no layer before it, that is the norm's result.
    "an MLP that begins with its activation": written(Mlp, "return self.down(self.up(F.relu(x, inplace=True)))"),
    "an MLP and more": written(Mlp, "return self.down(self.act(self.up(x)) * 2)"),
    "two activations": written(Mlp, "return self.down(self.act(self.act(self.up(x))))"),
    "exact GELU": lambda: Mlp(act=nn.GELU()),
    "a subclass of GELU": lambda: Mlp(act=Negated(approximate="tanh")),
    "a subclass of a linear layer": lambda: Mlp(up=LinearTwice(WIDTH, 12)),
    "one memory for both layers": SharedWeightMlp,
}
RMS_NORM = norm_of_another_module("RMSNorm", "vllm.models.other.norm")
NORMS = {
    "a subclass of a norm": lambda: NamedNorm(WIDTH),
    "an RMS norm of another module": RMS_NORM,
    "a layer norm of another module": norm_of_another_module("LayerNorm", "vllm.model_executor.models.other"),
}
#: Children of plain blocks, and of those that write into what their branches give.
CHILDREN = {
    **{name: put(attn=make) for name, make in ATTENTIONS.items()},
    **{name: put(mlp=make) for name, make in MLPS.items()},
    **{name: put(norm1=make, norm2=make) for name, make in NORMS.items()},
}


# -- forwards of blocks


def wrapped(function):
    @functools.wraps(function)
    def doubled(*arguments, **keywords):
        return 2 * function(*arguments, **keywords)

    return doubled


class ScaledByProperty(Block):
    """Its scale grows whenever it is read."""

    def __init__(self):
        super().__init__()
        del self.ls1

    @property
    def ls1(self):
        self.count += 1
        return torch.full((WIDTH,), float(self.count))


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


FIRST, SECOND = "x = x + self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(x))"
PLAIN = f"{FIRST}\n{SECOND}"
SCALED = "x = x + self.attn(self.norm1(x)) * self.ls1\nreturn x + self.ls2 * self.mlp(self.norm2(x))"
RESIDUAL = """
    attended = self.attn(self.norm1(x))
    normed, total = self.norm2(x, residual=attended)
    return total + self.mlp(normed)
"""
IN_PLACE = """
    h = self.attn(self.norm1(x))
    h += x
    y = self.mlp(self.norm2(h))
    y += h
    return y
"""
#: Bodies of forwards whose input is `x`.
BODIES = {
    # The attention of the second line is another call, with another state.
    "calls twice": """
        h = x + self.attn(self.norm1(x))
        return (x + self.attn(self.norm1(x))) + self.mlp(self.norm2(h))
    """,
    "calls for nothing": f"unused = self.attn(self.norm1(x))\n{PLAIN}",
    "calls another child": """
        y = self.other(x)
        y = x + self.attn(self.norm1(x))
        return y + self.mlp(self.norm2(y))
    """,
    "norms twice": f"x = x + self.attn(self.norm1(self.norm3(x)))\n{SECOND}",
    "norms its input": f"x = self.norm1(x)\nx = x + self.attn(x)\n{SECOND}",
    "crossed": "h = x + self.attn(self.norm1(x))\nreturn x + self.mlp(self.norm2(h))",
    "parallel": "return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))",
    "doubled": f"x = x + self.attn(self.norm1(x)) + x\n{SECOND}",
    "subtracted": f"x = x - self.attn(self.norm1(x))\n{SECOND}",
    "returns another tensor than the sum": """
        h = x + self.attn(self.norm1(x))
        y = h + self.mlp(self.norm2(h))
        return h if self.count else y + h
    """,
    "returns early": f"if x.shape[0] > 2:\n    return x + self.attn(self.norm1(x))\n{PLAIN}",
    "counts": f"self.count += 1\nx = x + self.count * self.attn(self.norm1(x))\n{SECOND}",
    "writes into its input": f"x += self.attn(self.norm1(x))\n{SECOND}",
    "writes into what its branches give": IN_PLACE,
    "writes into what its MLP gives": f"{FIRST}\ny = self.mlp(self.norm2(x))\ny += x\nreturn y",
    "two names": """
        h = self.attn(self.norm1(x))
        g = h
        h += x
        x = h + self.mlp(self.norm2(h))
        return x + g
    """,
    "scaled": SCALED,
    "names the argument": """
        x = x + self.attn(self.norm1(input=x))
        return x + self.mlp(self.norm2(input=x))
    """,
    "norms behind the sum": "x = self.norm1(x + self.attn(x))\nreturn self.norm2(x + self.mlp(x))",
    "norms behind the branch": "x = x + self.norm1(self.attn(x))\nreturn x + self.norm2(self.mlp(x))",
    "one norm": f"{FIRST}\nreturn x + self.mlp(self.norm1(x))",
    "a walrus": "return (h := x + self.attn(self.norm1(x))) + self.mlp(self.norm2(h))",
    "reassigns a norm": f"self.norm2 = self.norm1\n{PLAIN}",
}
BLOCKS = {
    **{name: written(Block, body) for name, body in BODIES.items()},
    "wrapped": written(Block, PLAIN, decorator="@wrapped"),
    "autocast": written(Block, PLAIN, decorator="@torch.autocast('cpu', dtype=torch.bfloat16)"),
    "wrapped later": type("Block", (Block,), {"forward": wrapped(written(Block, PLAIN).forward)}),
    "another name of self": written(
        Block, "self = self + this.attn(this.norm1(self))\nreturn self + this.mlp(this.norm2(self))", "this, self"
    ),
    "an argument by position": written(Block, PLAIN, "self, x, /, y=None"),
    "arguments with a star": written(
        Block, "y = x[0] + self.attn(self.norm1(x[0]))\nreturn y + self.mlp(self.norm2(y))", "self, *x"
    ),
    "scaled by a property": written(ScaledByProperty, SCALED),
    "finds": Finds,
    "called": Called,
}


# -- loops

#: What a tower goes through in place of `self.blocks`.
LOOPS = {
    "reversed": "reversed(self.blocks)",
    "stepped": "self.blocks[::2]",
    "tail": "self.blocks[2:]",
    "permuted": "(self.blocks[number] for number in (2, 0, 3, 1))",
    "sorted": "sorted(self.blocks, key=lambda block: float(block.ls1[0]))",
    "again": "(block for block in self.blocks for _ in range(2))",
    "skips": "(block for number, block in enumerate(self.blocks) if number != 1)",
    "chained": "itertools.chain(self.blocks[1:], self.blocks[:1])",
}
#: What a tower does with a block's result before the next block gets it.
BETWEEN = {
    "adds between": "torch.add(x, 1, out=x)",
    "an alias between": "y = x; y *= 0.5",
    "a view between": "x.view(-1)[::3] = 0",
    "ReLU between": "F.relu(x, inplace=True)",
    "a helper between": "self.damp(x)",
    "data between": "x.data = x.data * 0.5",
    "set between": "x.set_(x * 0.5)",
    # Somebody else changes what was kept.
    "a list between": "self.seen.append(x); self.seen[-1] -= 1",
}
LOOP = "for block in self.blocks:\n    x = block(x)\n    {}\nreturn x"
TOWERS = {
    **{name: written(Tower, f"for block in {what}:\n    x = block(x)\nreturn x") for name, what in LOOPS.items()},
    **{name: written(Tower, LOOP.format(what), damp=lambda self, x: x.mul_(0.5)) for name, what in BETWEEN.items()},
    "each block twice": written(Tower, "for block in self.blocks:\n    x = block(block(x))\nreturn x"),
    "before the block": written(Tower, "for block in self.blocks:\n    x.mul_(1.5)\n    x = block(x)\nreturn x"),
    # The sum of each block stays: no block may write into it.
    "collects": written(
        Tower, "kept = []\nfor block in self.blocks:\n    x = block(x)\n    kept.append(x)\nreturn torch.cat(kept)"
    ),
    "the same rows": written(Tower, "return sum(block(x) for block in self.blocks)"),
    # A block's result of the last call comes again, changed.
    "keeps the sum": written(
        Tower,
        """
        first = self.blocks[0](x)
        if self.state is not None:
            self.state.mul_(2)
            first = self.blocks[1](self.state)
        self.state = first
        return self.blocks[1](first)
        """,
    ),
}
MERGES = written(
    Tower,
    """
    kept = []
    for block in self.blocks:
        x = block(x)
        kept.append(self.merger(x))
    return x + sum(kept)
    """,
)


def with_block(block):
    return type("Tower", (Tower,), {"block": block})


InPlaceTower = with_block(BLOCKS["writes into what its branches give"])


# -- what somebody does to a tower


def nothing(tower):
    return None


def on_each(name, change):
    """Change this module of every block."""

    def act(tower):
        for block in tower.blocks:
            change(block.get_submodule(name))

    return act


def instance_forward(module):
    own = module.forward
    module.forward = lambda x: 2 * own(x)


def hook(module):
    module.register_forward_hook(lambda module, given, out: 2 * out)


def pre_hook(module):
    module.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


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
    put(norm1=lambda: nn.LayerNorm(WIDTH, eps=0.1), norm2=lambda: nn.LayerNorm(WIDTH, eps=0.1))(tower)


ACTS = {
    **{f"a forward on the instance of {name}": on_each(name, instance_forward)
       for name in ("norm1", "norm2", "attn", "mlp", "mlp.act", "mlp.up")},
    **{f"a hook on {name}": on_each(name, hook)
       for name in ("norm1", "norm2", "attn", "mlp", "mlp.act", "mlp.up", "mlp.down")},
    **{f"a hook before {name}": on_each(name, pre_hook) for name in ("norm1", "norm2", "mlp.act", "mlp.up")},
    "a hook on all modules": global_hook,
    "a hook before all modules": global_pre_hook,
    "other norms": other_norms,
}  # fmt: skip

#: By name: the tower's class, what happens before the tunings, and after them.
CASES = {
    **{name: (with_block(block), nothing, nothing) for name, block in BLOCKS.items()},
    **{name: (tower, nothing, nothing) for name, tower in TOWERS.items()},
    **{name: (Tower, act, nothing) for name, act in CHILDREN.items()},
    **{f"{name}, and sums in place": (InPlaceTower, act, nothing) for name, act in CHILDREN.items()},
    "sums in place": (InPlaceTower, nothing, nothing),
    "a merger between": (MERGES, lambda tower: setattr(tower, "merger", nn.ReLU(inplace=True)), nothing),
    "a dropout for a norm": (Tower, put(norm2=lambda: nn.Dropout(0.0)), nothing),
    "norms over other dimensions": (Tower, put(norm1=lambda: nn.LayerNorm((3, WIDTH))), nothing),
    **{
        f"scaled by {name}": (with_block(BLOCKS["scaled"]), put(ls1=scale), nothing)
        for name, scale in {
            "a number": lambda: 0.5,
            "each row": lambda: nn.Parameter(torch.rand(3, 1)),
            "a wider type": lambda: nn.Parameter(torch.rand(WIDTH, dtype=torch.float64)),
        }.items()
    },
    # `a, a = ...` keeps the second entry.
    "a pair": (
        with_block(written(Block, f"a, a = self.attn(self.norm1(x))\nx = x + a\n{SECOND}")),
        put(attn=written(Attention, "return self.proj(x), self.qkv(x)")),
        nothing,
    ),
    # vLLM's RMS norms add: another child with such an argument does something else.
    "adds by another norm": (with_block(written(Block, RESIDUAL)), put(norm2=RMS_NORM), nothing),
    "adds by a norm named so": (
        with_block(written(Block, RESIDUAL)),
        put(norm2=norm_of_another_module("LayerNorm", "vllm.models.other")),
        nothing,
    ),
    **{f"{name} before": (Tower, act, nothing) for name, act in ACTS.items()},
    **{f"{name} after": (Tower, nothing, act) for name, act in ACTS.items()},
}
