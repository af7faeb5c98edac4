"""Graphs of exactly one call, up to where they need a GPU: the paths that have work, and calls without such a graph."""

import dataclasses
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the `cpu` extra")

from scaffold.measure import exact
from scaffold.runtime.adapter import OtherCall
from scaffold.runtime.vllm.dialect import ManagerDialect

PLAIN = ManagerDialect(**dict.fromkeys((field.name for field in dataclasses.fields(ManagerDialect)), False))
NAMED = dataclasses.replace(PLAIN, named_paths=True, path_argument=True)
DUAL = dataclasses.replace(PLAIN, dual_path=True, path_argument=True)


class Host:
    def __init__(self, specs=(), **config):
        self.config, self.specs = SimpleNamespace(**config), specs

    def get_encoder_cudagraph_config(self):
        return self.config

    def get_encoder_cudagraph_item_specs(self, inputs):
        return self.specs


def spec(**tokens):
    return SimpleNamespace(
        path_output_tokens=tokens, **{f"{path}_output_tokens": count for path, count in tokens.items()}
    )


@pytest.mark.parametrize(
    ("host", "dialect", "paths"),
    [
        (Host(), PLAIN, ["default"]),
        (Host(paths={"default": 1}), NAMED, ["default"]),
        (
            Host([spec(whole=4, crops=0), spec(whole=4, crops=2)], paths={"whole": 1, "crops": 1}),
            NAMED,
            ["whole", "crops"],
        ),
        (Host([spec(whole=4, crops=0)], paths={"whole": 1, "crops": 1}), NAMED, ["whole"]),
        (Host([spec()], paths={"whole": 1, "crops": 1}), NAMED, []),
        (Host([spec(**{"global": 4, "local": 0})], enable_dual_path_graph=True), DUAL, ["global"]),
        (Host([spec(**{"global": 4, "local": 0})], enable_dual_path_graph=False), DUAL, ["default"]),
    ],
)
def test_paths_that_have_work(host, dialect, paths):
    assert list(exact._paths_with_work(host, {}, dialect)) == paths


def test_graphs_of_further_axes_have_no_exact_one():
    assert exact.exact_call(Host(capture_axes=((1, 2),)), {}, 1) is None


class Unit(Host):
    """A port with the mixin of `cut`, as our manager recognises it: its model's code serves every call itself."""

    _encoder_cudagraph_features = None

    def __init__(self, result):
        super().__init__(buffer_keys=["units"])
        self.result = result

    def _record_encoder_units(self):
        raise AssertionError

    def _embed_encoder_units(self, inputs, encode):
        if self.result is OtherCall:
            raise OtherCall
        return self.result


def test_a_call_that_the_models_own_code_serves_has_none():
    assert exact.exact_call(Unit(OtherCall), {}, 1) is None
    assert exact.exact_call(Unit(None), {}, 1) is None
    again = exact.exact_call(Unit([1, 2]), {}, 2)
    assert again is not None
    assert again() == [1, 2]
