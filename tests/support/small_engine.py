"""A tiny Llama with a tokenizer and YaRN in its config.json, and engines behind a server that obey
it or do something else.

Everything that turns is transformers' own: another config.json for the same weights, a cache filled
in parts, a prompt that lost a part."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

TRAINED, FACTOR, BOS, EOS = 64, 4, "<s>", "</s>"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": float(FACTOR),
    "original_max_position_embeddings": TRAINED,
}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
PLACES = ("caf\u00e9", "sea", "\u6d77")
TEXT = "".join(
    f"Line {n} of the ledger: the {PLACES[n % 3]} was {n * 7 % 11} metres deep.\n"
    for n in range(60)
)


def small_checkpoint(folder: Path, bos: bool = True, merges: int = 42) -> Path:
    """A folder with config.json, weights, and a tokenizer of bytes and `merges`, which writes a BOS
    before a text where `bos`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [BOS, EOS]
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=258 + merges,
            initial_alphabet=letters,
            special_tokens=special,
            show_progress=False,
        ),
    )
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, 0)]
        )
    length = TRAINED * FACTOR
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=length,
        rope_parameters=YARN,
        bos_token_id=0,
        eos_token_id=1,
        **SIZES,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=float("norm" in name), std=0.05 if "norm" in name else 0.12)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def _rope(**changed: object) -> dict:
    return {"rope_parameters": {**YARN, **changed}}


PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "max_position_embeddings": TRAINED,
}
WRONG: dict[str, dict] = {
    "right": {},
    "ignored": {"changed": PLAIN},
    "linear": {
        "changed": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}
    },
    "no amplitude": {"changed": _rope(attention_factor=1.0)},
    "amplitude alone": {
        "changed": _rope(factor=1.0, attention_factor=0.1 * float(np.log(FACTOR)) + 1)
    },
    "half": {"changed": _rope(factor=FACTOR / 2)},
    "double": {"changed": _rope(factor=FACTOR * 2.0)},
    "multiplied length": {"changed": _rope(original_max_position_embeddings=TRAINED * FACTOR)},
    "window": {"changed": {**PLAIN, "model_type": "mistral", "sliding_window": TRAINED}},
    "dynamic": {"changed": DYNAMIC},
    "cached": {"changed": DYNAMIC, "part": 16},
    "truncated": {"keep": TRAINED},
}


class Engine:
    """The weights of a folder under its config.json with changes.

    `part` feeds a text in parts of this many tokens: dynamic frequencies then grow, while earlier
    keys keep the turns of their time. `keep` drops all except the last tokens of a prompt."""

    def __init__(
        self,
        folder: Path,
        changed: dict | None = None,
        part: int | None = None,
        keep: int | None = None,
    ):
        config = {**json.loads((folder / "config.json").read_text()), **(changed or {})}
        kind = config.pop("model_type")
        self.config = transformers.AutoConfig.for_model(kind, **config)
        self.model = transformers.AutoModelForCausalLM.from_config(
            self.config, dtype=torch.float32
        ).eval()
        self.model.load_state_dict(load_file(folder / "model.safetensors"))
        self.part, self.keep, self.lock = part, keep, threading.Lock()

    def read(self, ids: list[int]) -> list[int]:
        """The part of a prompt that the model is given."""
        return ids[-self.keep :] if self.keep else ids

    @torch.no_grad()
    def logprobs(self, ids: list[int]) -> np.ndarray:
        """Log-probabilities [T, V] of the token after each of `ids`."""
        with self.lock:  # frequencies of the dynamic type belong to the text that is read
            self.model.model.rotary_emb = type(self.model.model.rotary_emb)(config=self.config)
            cache = transformers.DynamicCache(config=self.config)
            parts = torch.tensor([ids]).split(self.part or len(ids), dim=1)
            logits = [
                self.model(part, past_key_values=cache, use_cache=True).logits[0] for part in parts
            ]
        return torch.cat(logits).double().log_softmax(-1).numpy()


def engine(folder: Path, wrong: str = "right") -> Engine:
    return Engine(folder, **WRONG[wrong])
