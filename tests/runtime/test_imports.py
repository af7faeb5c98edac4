"""The runtime stands alone: torch only, and not even that for budgets and traces."""

import sys

import pytest
from captured import captured

CODE = """
import sys
{statement}
loaded = {{name.partition('.')[0] for name in sys.modules}}
own = {{name for name in sys.modules if name.startswith('scaffold.') and not name.startswith('scaffold.runtime')}}
assert not own, own
for name in {forbidden}:
    assert name not in loaded, name
"""


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import scaffold.runtime", ["torch", "vllm", "libcst", "pydantic", "click", "yaml"]),
        ("import scaffold.runtime.budgets, scaffold.runtime.trace", ["torch", "vllm"]),
        (
            "from scaffold.runtime import EncoderGraphManager, PackedAdapter",
            ["vllm", "transformers", "libcst", "click"],
        ),
        ("import scaffold.runtime.vllm", ["vllm", "transformers", "libcst", "click"]),
    ],
)
def test_import(statement, forbidden):
    done = captured([sys.executable, "-c", CODE.format(statement=statement, forbidden=forbidden)])
    assert done.returncode == 0, done.stderr


def test_every_public_name_resolves():
    import scaffold.runtime

    for name in scaffold.runtime.__all__:
        assert getattr(scaffold.runtime, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = scaffold.runtime.nothing
