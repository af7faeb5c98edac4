"""What tells two calls apart, and which calls take the short way, in the binding to vLLM."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scaffold.runtime import Limits
from scaffold.runtime.adapter import Item
from scaffold.runtime.vllm import model as binding
from scaffold.runtime.vllm.dialect import ManagerDialect

PLAIN = ManagerDialect(path_argument=False, dual_path=False, named_paths=False, axes=False)


@pytest.fixture(autouse=True)
def plain_results(monkeypatch):
    """The models here have no hook for results, and without one vLLM's own is asked for, which imports vLLM."""
    monkeypatch.setattr(binding.VllmAdapter, "_has_plain_post", lambda self: True)


class Model:
    """Items are rows of a grid; metadata are the grid's."""

    looks_at_pixels = False

    def prepare_encoder_cudagraph_replay_buffers(self, inputs, items, frames):
        marks = inputs["pixels"].float().sum() if self.looks_at_pixels else torch.as_tensor(inputs["grid"]).sum()
        return SimpleNamespace(values={"pixels": inputs["pixels"], "marks": marks})


class Owner:
    use_dp = False
    axes = ()

    def __init__(self, model=None, keeps_all=True):
        self.model, self.config, self.keeps_all = model or Model(), SimpleNamespace(padding_logics={}), keeps_all

    def _get_item_specs(self, inputs):
        rows = [h * w for h, w in torch.as_tensor(inputs["grid"]).tolist()]
        return [SimpleNamespace(input_size=number, output_tokens=number) for number in rows]

    def _limits(self):
        return Limits(4)

    def _ladders(self):
        return {"default": [4, 8]}

    def _select_items(self, inputs, indices):
        pixels = inputs["pixels"] if self.keeps_all else inputs["pixels"] + 1
        return {"pixels": pixels, "grid": inputs["grid"]}, ()


class Kernels(TorchDispatchMode):
    """The operators that run, each with the types of its tensors: a device loads a kernel for each."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add((func, *(value.dtype for value in args if isinstance(value, torch.Tensor))))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_call_makes_noise_whose_kernel_the_start_has_not_loaded(dtype):
    speaker = adapter()
    speaker.owner.device, speaker.owner.dtype = torch.device("cpu"), dtype
    with Kernels() as start:
        speaker.warm_up(alone=False)
    with Kernels() as first:
        assert known(speaker, call(dtype=dtype)) is not None
    noise = {one for one in first.seen if one[0]._schema.name == "aten::rand_like"}
    assert noise == {one for one in start.seen if one[0]._schema.name == "aten::rand_like"} != set()


def call(grid=((1, 2), (2, 3)), seed=0, dtype=torch.float32, **more):
    rows = sum(h * w for h, w in grid)
    pixels = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return {"pixels": pixels, "grid": torch.tensor(grid), **more}


def adapter(**owner):
    return binding.VllmAdapter(Owner(**owner), PLAIN)


def known(speaker, inputs):
    """The signature of a call that comes again: pixels are asked about before."""
    speaker.signature(inputs)
    return speaker.signature(inputs)


class Mapped(Model):
    """Metadata follow a map of whole numbers."""

    def prepare_encoder_cudagraph_replay_buffers(self, inputs, items, frames):
        return SimpleNamespace(values={"pixels": inputs["pixels"], "rope": inputs["map"].float()})


def test_what_holds_for_a_small_map_is_measured_anew_for_a_large_one():
    class Picking(Owner):
        def _select_items(self, inputs, indices):
            return {**inputs, "picked": torch.tensor(indices)}, ()

    speaker = binding.VllmAdapter(Picking(model=Mapped()), PLAIN)

    def mapped(rows, seed):
        positions = torch.randint(0, 50, (rows, 2), generator=torch.Generator().manual_seed(seed))
        return {**call(((rows, 1),)), "map": positions}

    small = binding.SIZE_NUMEL // 2
    assert speaker.signature(mapped(small, 0)) != speaker.signature(mapped(small, 1))  # values are in the key
    assert speaker.signature(mapped(small, 0)) == speaker.signature(mapped(small, 0)) is not None
    assert known(speaker, mapped(small + 1, 0)) is None  # they are not: no plan is kept
    assert known(speaker, mapped(small, 0)) is not None


def test_the_short_signature_is_the_signature_once_the_names_are_known():
    speaker = adapter()
    assert speaker.quick_signature(call()) is None
    first = speaker.signature(call())
    assert speaker.quick_signature(call()) is None
    assert speaker.signature(call()) == first
    assert speaker.quick_signature(call(seed=1)) == speaker.signature(call(seed=2)) == first
    assert hash(first) == hash(speaker.quick_signature(call()))
    assert speaker.passes_through(call())


@pytest.mark.parametrize(
    ("other", "short"),
    [
        (call(((2, 1), (2, 3))), True),  # as many rows
        (call(((1, 2),)), True),
        ({**call(), "pixels": torch.zeros(8, 4)}, True),
        ({**call(), "grid": torch.tensor([[[1, 2]], [[2, 3]]])}, True),
        ({**call(), "grid": [[1, 2], [2, 3]]}, False),
        ({**call(), "pixels": torch.zeros(8)}, False),  # may be sizes, whose values matter
        (call(dtype=torch.float64), False),
        ({name: call()[name] for name in ("grid", "pixels")}, False),
    ],
    ids=["order", "fewer", "wider", "deeper", "list", "flat", "type", "names"],
)
def test_what_differs_in_more_than_pixels_has_another_signature_or_the_long_way(other, short):
    speaker = adapter()
    first = known(speaker, call())
    found = speaker.quick_signature(other)
    assert (found is not None) == short
    assert found != first
    hash(found)


@pytest.mark.parametrize("given", [[[1, 2], [2, 3]], ((1, 2), (2, 3))], ids=["list", "tuple"])
def test_what_is_no_tensor_takes_the_long_way(given):
    speaker = adapter()
    long = {**call(), "grid": given}
    first = known(speaker, long)
    assert first is not None
    assert speaker.quick_signature(long) is None
    known(speaker, call())
    assert speaker.quick_signature(call()) is not None
    assert speaker.quick_signature(long) is None  # the same names
    assert speaker.signature(long) == first


@pytest.mark.parametrize("changed", [False, True])
def test_the_parts_of_a_tensor_are_the_tensor(changed, monkeypatch):
    """LLaVA-NeXT's port takes images as views. To compare pixels number by number took 0.2 s of a first call."""

    class Views(Owner):
        def _select_items(self, inputs, indices):
            parts = list(inputs["pixels"])
            return {"pixels": [*parts[:-1], parts[-1] + 1] if changed else parts, "grid": inputs["grid"]}, ()

    class Joined(Model):
        def prepare_encoder_cudagraph_replay_buffers(self, inputs, items, frames):
            return super().prepare_encoder_cudagraph_replay_buffers(
                {**inputs, "pixels": torch.stack(list(inputs["pixels"]))}, items, frames
            )

    given, speaker = call(), binding.VllmAdapter(Views(model=Joined()), PLAIN)
    numbers = torch.Tensor.tolist

    def few(tensor):
        assert not tensor.is_floating_point()
        return numbers(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", few)
    speaker.signature(given)
    assert speaker.passes_through(given) is not changed


def test_no_short_way_where_selecting_changes_inputs():
    speaker = adapter(keeps_all=False)
    assert known(speaker, call()) is not None
    assert speaker.quick_signature(call()) is None
    assert not speaker.passes_through(call())


def test_no_signature_where_metadata_depend_on_pixels():
    model = Model()
    model.looks_at_pixels = True
    speaker = adapter(model=model)
    assert speaker.signature(call()) is not None  # a plan serves its own call
    assert speaker.signature(call()) is None
    assert speaker.quick_signature(call()) is None


def test_the_first_call_of_some_sizes_computes_no_metadata_to_compare():
    """Kimi-VL's first image waited 90 ms of the GPU for them, and needs none: its plan is its own."""
    asked = []

    class Counting(Model):
        def prepare_encoder_cudagraph_replay_buffers(self, inputs, items, frames):
            asked.append(len(inputs["grid"]))
            return super().prepare_encoder_cudagraph_replay_buffers(inputs, items, frames)

    speaker = adapter(model=Counting())
    first, second = call(), call(((1, 2),))
    signatures = [speaker.signature(first), speaker.signature(second)]
    assert not asked
    assert [speaker.signature(first), speaker.signature(second)] == signatures
    assert len(asked) == 3  # its own pixels, noise and zeros, once
    assert [speaker.quick_signature(first), speaker.quick_signature(second)] == signatures


def test_many_calls_of_new_sizes_are_asked_about_pixels_once(monkeypatch):
    monkeypatch.setattr(binding, "MOST_UNPROVEN", 2)
    speaker = adapter()
    sizes = [call(((1, side),)) for side in range(1, 5)]
    assert [speaker.signature(one) is not None for one in sizes] == [True] * 4
    assert [speaker.quick_signature(one) is not None for one in sizes] == [True] * 4


def test_the_smallest_item_tells_whether_metadata_depend_on_pixels(monkeypatch):
    chosen = []
    speaker = adapter()
    select = speaker.owner._select_items
    monkeypatch.setattr(
        type(speaker.owner), "_select_items", lambda self, *given: (chosen.append(given[1]), select(*given))[1]
    )
    several = call(((2, 2), (1, 2), (3, 3)))
    for _ in range(2):
        assert speaker.signature(several) is not None
    assert chosen == [[0, 1, 2], [1]]


@pytest.mark.parametrize("refused", ["raises", "no values"])
def test_no_signature_where_the_model_refuses_pixels_of_zeros(refused):
    """Idefics3 of 0.26 drops images of zeros, and its next statement fails without any."""

    class Refusing(Model):
        def prepare_encoder_cudagraph_replay_buffers(self, inputs, items, frames):
            if inputs["pixels"].any():
                return super().prepare_encoder_cudagraph_replay_buffers(inputs, items, frames)
            if refused == "raises":
                raise RuntimeError("cannot reshape tensor of 0 elements")
            return SimpleNamespace(values={})

    takes, refuses = adapter(), adapter(model=Refusing())
    assert [one.signature(call()) is not None for one in (takes, refuses)] == [True, True]
    assert [one.signature(call()) is not None for one in (takes, refuses)] == [True, False]


def test_many_numbers_are_not_read_in_every_call():
    speaker = adapter()
    large = call(more=torch.arange(binding.SIZE_NUMEL + 1))
    assert known(speaker, large) is not None
    assert speaker.quick_signature(large) is None


def test_sizes_on_a_device_are_read_with_vllms_permission(monkeypatch):
    entered = []

    class Permission:
        def __enter__(self):
            entered.append(True)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(binding, "_sync_permission", lambda: Permission)
    speaker = adapter()
    first = known(speaker, call())
    assert speaker.quick_signature(call()) == first  # on the host: no permission is needed
    on_device = {**call(), "grid": torch.tensor([[1, 2], [2, 3]], device="meta")}
    assert speaker.quick_signature(on_device) is None


def test_a_recorded_buffer_holds_pixels_whatever_its_name():
    """Phi-4-multimodal's pixels are `input_image_embeds`."""
    ready, found = {"input_image_embeds": torch.zeros(1)}, adapter()
    assert not found.is_raw(ready)
    found.owner.config.buffer_keys = ["input_image_embeds"]
    named = binding.VllmAdapter(found.owner, PLAIN)
    assert named.is_raw(ready)
    assert not named.is_raw({**ready, "image_embeds": torch.zeros(1)})


def test_an_eager_result_without_rows_is_embedded_by_the_model():
    """Before 0.27 a cut has none to give: features are no embeddings, and by tokens they would be cut like them."""
    found = adapter()
    found.plain_post = False
    found.model.postprocess_encoder_output = None
    found.model.embed_multimodal = lambda **inputs: [pixels[:1] for pixels in inputs["pixels"]]
    items, results = [Item(2, 8), Item(3, 8)], {}
    inputs = {"pixels": [torch.full((3,), 1.0), torch.full((3,), 2.0)]}
    found.finish({"default": torch.empty(0, 3)}, [1, 0], items, results, inputs, ("default",))
    assert {index: float(embeds) for index, embeds in results.items()} == {1: 1.0, 0: 2.0}
