"""Models of transformers with matrix states, after `replace`: packed sequences are as alone in the plain model."""

import contextlib
import copy
import functools
import itertools

import numpy as np
import pytest

from tests.each import check_each
from varlen_rnn.errors import ProgramError, ShapeError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

import varlen_rnn.torch as vt  # noqa: E402

LENGTHS = [5, 1, 40, 3]
OFFSETS = [0, *np.cumsum(LENGTHS).tolist()]
PARTS = list(itertools.pairwise(OFFSETS))
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]
IDS = torch.randint(3, 50, (1, OFFSETS[-1]), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
QWEN = {
    **SIZES, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
KINDS = {
    "Qwen3Next": ("Qwen3NextConfig", {**QWEN, **EXPERTS, "decoder_sparse_step": 2}),
    "Qwen3_5": ("Qwen3_5TextConfig", QWEN),
    "Qwen3_5Moe": ("Qwen3_5MoeTextConfig", {**QWEN, **EXPERTS}),
    "Mamba2": ("Mamba2Config", {**SIZES, "state_size": 8, "head_dim": 16, "num_heads": 4, "n_groups": 2}),
}


@functools.cache
def pair(kind):
    """Return a plain model and a replaced copy of it."""
    torch.manual_seed(0)
    config, sizes = KINDS[kind]
    plain = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, config)(**sizes)).eval()
    return plain, vt.replace(copy.deepcopy(plain))


def results(model, calls):
    """Return the outputs of all rows, and the gradients of all parameters."""
    outputs = torch.cat([call(model) for call in calls], dim=1)
    return outputs.detach(), torch.autograd.grad(outputs.square().sum(), list(model.parameters()), allow_unused=True)


def alone(start, stop):
    return lambda model: model(input_ids=IDS[:, start:stop], use_cache=False).logits


def in_context(model):
    with vt.packed(OFFSETS):
        return model(input_ids=IDS).logits


def by_positions(model):
    return model(input_ids=IDS, position_ids=POSITIONS).logits


def in_two_entries(model):
    """The first two sequences and another one are an entry of a batch, the last two sequences another entry."""
    first = OFFSETS[2]
    rest = OFFSETS[-1] - 2 * first
    ids = torch.cat([IDS[0, :first], IDS[0, :rest], IDS[0, first:]]).reshape(2, -1)
    positions = torch.cat([POSITIONS[0, :first], torch.arange(rest), POSITIONS[0, first:]]).reshape(2, -1)
    logits = model(input_ids=ids, position_ids=positions).logits
    return torch.cat([logits[:1, :first], logits[1:]], dim=1)


@pytest.mark.slow
def test_each_packed_sequence_is_as_alone():
    ways = {
        "Mamba2": [in_context],
        "Qwen3Next": [in_context, by_positions],
        "Qwen3_5": [in_two_entries],
        "Qwen3_5Moe": [in_context],
    }

    def check(kind):
        plain, ours = pair(kind)
        wanted, of_weights = results(plain, [alone(*part) for part in PARTS])
        for way in ways[kind]:
            found, gradients = results(ours, [way])
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
            for one, other in zip(gradients, of_weights, strict=True):
                assert (one is None) == (other is None)  # None is the gradient of an expert that no row chose
                assert one is None or (one - other).abs().max() < 1e-5 * max(1, other.abs().max())

    check_each(KINDS, check)


@pytest.mark.slow
def test_generation_continues_each_sequence():
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    longest = max(LENGTHS)
    padded, mask = torch.zeros(2, len(LENGTHS), longest, dtype=torch.int64)
    for row, (start, stop) in enumerate(PARTS):
        padded[row, longest - stop + start :], mask[row, longest - stop + start :] = IDS[0, start:stop], 1

    def check(kind):
        plain, ours = pair(kind)
        wanted = torch.cat([plain.generate(input_ids=IDS[:, a:b], **options)[:, b - a :] for a, b in PARTS])
        found = ours.generate(input_ids=padded, attention_mask=mask, **options)[:, longest:]
        assert torch.equal(found, wanted)

    check_each(KINDS, check)


@torch.no_grad()
def test_packed_sequences_leave_their_states_in_a_cache():
    steps, lengths = 3, torch.tensor(LENGTHS)[:, None]
    mask = torch.arange(max(LENGTHS) + steps) >= max(LENGTHS) - lengths  # keys and values are padded on the left

    def check(kind):
        plain, ours = pair(kind)
        with vt.packed(OFFSETS):
            found = ours(input_ids=IDS, use_cache=True)
        logits = [found.logits[0, [stop - 1 for stop in OFFSETS[1:]]]]
        for step in range(steps):
            attended = {"attention_mask": mask[:, : max(LENGTHS) + step + 1].long(), "position_ids": lengths + step}
            named = {} if kind == "Mamba2" else attended
            logits.append(ours(input_ids=logits[-1].argmax(1, keepdim=True), cache=found.cache, **named).logits[:, 0])
        for number, (start, stop) in enumerate(PARTS):
            chosen = [step[number].argmax()[None] for step in logits[:-1]]
            whole = torch.cat([IDS[0, start:stop], *chosen])[None]
            wanted = plain(input_ids=whole, use_cache=False).logits[0, stop - start - 1 :]
            torch.testing.assert_close(torch.stack([step[number] for step in logits]), wanted, rtol=0, atol=1e-5)
        with vt.packed([0, 2, 4]), pytest.raises(ProgramError, match=r"expected (a new cache|None inside of `packed`)"):
            ours(input_ids=IDS[:, :4], cache=found.cache)

    check_each(KINDS, check)


def test_only_replaced_models_change():
    plain, ours = pair("Qwen3Next")
    assert type(ours.model).__name__ == "Qwen3NextModel"
    assert list(ours.state_dict()) == list(plain.state_dict())
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        plain(input_ids=IDS, seq_idx=torch.zeros_like(IDS))
    restored = vt.restore(copy.deepcopy(ours))
    assert all(type(one) is type(other) for one, other in zip(restored.modules(), plain.modules(), strict=True))
    torch.testing.assert_close(alone(0, 5)(copy.deepcopy(ours)), alone(0, 5)(restored))


@torch.no_grad()
def test_packed_wins_over_positions():
    """Rotary positions are relative, so positions that count on change nothing but where sequences seem to begin."""
    _, ours = pair("Qwen3_5")
    theirs = copy.deepcopy(ours)
    vt.restore(theirs.model.layers[1].self_attn)
    for model in (ours, theirs):
        with vt.packed(OFFSETS):
            found = model(input_ids=IDS, position_ids=torch.arange(len(IDS[0]))[None]).logits
        torch.testing.assert_close(found, in_context(ours), rtol=0, atol=1e-5)


@torch.no_grad()
def test_images_among_packed_texts():
    """Positions of a model of images have three axes, and a fourth one for the text where masks are needed."""
    image, begin, end = 47, 48, 49
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
        "temporal_patch_size": 1, "spatial_merge_size": 2, "num_position_embeddings": 16,
    }  # fmt: skip
    tokens = {"image_token_id": image, "video_token_id": 46, "vision_start_token_id": begin, "vision_end_token_id": end}
    config = transformers.Qwen3_5Config(text_config=QWEN, vision_config=vision, **tokens)
    torch.manual_seed(0)
    plain = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    ours, masked = vt.replace(copy.deepcopy(plain)), vt.replace(copy.deepcopy(plain))
    vt.restore(masked.model.language_model.layers[1].self_attn)
    pictures, grid, seen = torch.randn(2, 16, 48), torch.tensor([[1, 4, 4]]), torch.tensor([begin, *[image] * 4, end])
    texts = [torch.cat([IDS[0, :3] % 40, seen, IDS[0, 3:5] % 40]), IDS[0, :5] % 40, torch.cat([seen, IDS[0, 5:9] % 40])]

    def run(model, ids, pixels, grids, **named):
        given = {"pixel_values": pixels, "image_grid_thw": grids, **named} if len(grids) else named
        return model(input_ids=ids[None], mm_token_type_ids=(ids == image).int()[None], **given).logits

    parts = [(texts[0], pictures[0], grid), (texts[1], None, []), (texts[2], pictures[1], grid)]
    wanted = torch.cat([run(plain, *part, use_cache=False) for part in parts], dim=1)
    whole = torch.cat(texts), pictures.flatten(0, 1), grid.repeat(2, 1)
    with vt.packed([0, *np.cumsum([len(text) for text in texts])]):
        for model in (ours, masked):
            torch.testing.assert_close(run(model, *whole), wanted, rtol=0, atol=1e-5)
        with pytest.raises(ProgramError, match="Qwen3_5TextModel, use_cache: expected False"):
            run(ours, *whole, use_cache=True)
    _, model = pair("Qwen3_5")
    found = model(input_ids=IDS, position_ids=POSITIONS.expand(4, 1, -1)).logits
    torch.testing.assert_close(found, in_context(model), rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_nan_spreads_as_in_the_plain_model():
    """Attention multiplies a NaN by a weight of 0, in PyTorch too, so it reaches all rows of its own sequence."""
    plain, ours = pair("Qwen3_5")
    start, stop = PARTS[2]
    rows = plain.model.embed_tokens(IDS).clone()
    rows[0, start + 24] = torch.nan
    with vt.packed(OFFSETS):
        found = ours(inputs_embeds=rows).logits[0].isnan().any(1)
    alone = plain(inputs_embeds=rows[:, start:stop], use_cache=False).logits[0].isnan().any(1)
    assert torch.equal(found[start:stop], alone)
    assert found.sum() == alone.sum()


def test_attention_of_transformers_gets_masks():
    _, ours = pair("Qwen3_5")
    theirs = copy.deepcopy(ours)
    vt.restore(theirs.model.layers[1].self_attn)
    torch.testing.assert_close(in_context(ours), in_context(theirs))


def test_recomputed_activations():
    ours = copy.deepcopy(pair("Qwen3_5")[1]).train()
    wanted = results(ours, [in_context])
    ours.activation_checkpointing_enable()
    for one, other in zip(results(ours, [in_context]), wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@torch.no_grad()
def test_compiled_model():
    _, ours = pair("Qwen3_5")
    compiled = torch.compile(ours, backend="eager")
    for offsets in (None, OFFSETS, [0, 10, OFFSETS[-1]]):
        with contextlib.nullcontext() if offsets is None else vt.packed(offsets):
            found, wanted = (model(input_ids=IDS, use_cache=False).logits for model in (compiled, ours))
        torch.testing.assert_close(found, wanted)


def test_errors():
    _, ours = pair("Qwen3Next")
    with vt.packed(OFFSETS):
        with pytest.raises(ProgramError, match="Qwen3NextModel, attention_mask: expected None inside of `packed`"):
            ours(input_ids=IDS, attention_mask=torch.ones_like(IDS))
        with pytest.raises(ShapeError, match="Qwen3NextModel, input: expected 1 batch with 49 rows"):
            ours(input_ids=IDS[:, :5])
