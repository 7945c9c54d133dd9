"""A transformers model for evaluations: hidden states of a text under a plan, and its own output
head.

The decoder runs once over the text and the head over the rows that are scored, by the model's own
code: the head's caps, scales and multipliers are what its forward does to hidden states that are
handed to it in place of the decoder's. A fine-tuning trains all weights, without dropout and
without the losses that a mixture of experts has for its router.

Letters: B batch, T tokens, C width, N all rows, R scored rows, V vocabulary.
"""

import contextlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from posbench.common.errors import ConfigError
from posbench.common.files import disk_errors, sha256_file
from posbench.data.task import IGNORED
from posbench.encodings.as_trained import AsTrained
from posbench.model.gpt import GPT
from posbench.model.inplace.extend import put_table, take
from posbench.position.plan import Plan

TRIED = 7  # tokens
BLOCK = 2**25  # scores that a training holds at once


class Head:
    """Output head: hidden states [R, C] to logits [R, V]. Before it stands the model's `decoder`;
    the reader holds the weights of both.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module, kind: type, out_features: int):
        self.model, self.decoder, self.kind, self.out_features = model, decoder, kind, out_features

    def decoded(self, ids_BT: Tensor) -> Tensor:
        """Last hidden states of a text: [B, T, C]."""
        return self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state

    def __call__(self, hidden_RC: Tensor) -> Tensor:
        rows = hidden_RC.reshape(1, -1, hidden_RC.shape[-1])
        self.decoder.forward = lambda *args, **given: self.kind(last_hidden_state=rows)
        try:
            logits_RV = self.model(
                input_ids=rows.new_zeros(rows.shape[:2], dtype=torch.long), use_cache=False
            ).logits[0]
        finally:
            del self.decoder.forward
        return logits_RV.unflatten(0, hidden_RC.shape[:-1])


class Reader(nn.Module):
    """A model of transformers with the interface of posbench's GPT, with an extension trained in by
    `scaling` and `scaling_len`.

    Raises ConfigError as `extend` does, for an unusual head, and for a scaling that its layers
    cannot have."""

    def __init__(
        self,
        model: nn.Module,
        train_len: int,
        scaling: dict | None = None,
        scaling_len: float | None = None,
    ):
        super().__init__()
        self.model, self.scale = model, None
        self.door = take(model, train_len)
        self.lm_head = self._head()
        if scaling is not None:
            self.door.encoding = self.door.encoding.tuned(scaling, scaling_len)

    @property
    def encoding(self) -> AsTrained:
        return self.door.encoding

    @property
    def layers(self) -> nn.Module:
        """All that has weights."""
        return self.model

    def _head(self) -> Head:
        decoder, kind = self.model, None

        def ended(module: nn.Module, args: tuple, answer: object) -> None:
            nonlocal decoder, kind
            if hasattr(answer, "last_hidden_state"):
                decoder, kind = module, type(answer)

        from transformers import PreTrainedModel

        with contextlib.ExitStack() as stack, torch.no_grad():
            for module in self.model.modules():
                if module is not self.model and isinstance(module, PreTrainedModel):
                    stack.callback(module.register_forward_hook(ended).remove)
            ids_BT = torch.arange(TRIED, device=self.model.device)[None]
            expected = self.model(input_ids=ids_BT, use_cache=False).logits[0]
            head = Head(self.model, decoder, kind, expected.shape[-1])
            close = {"rtol": 1e-3, "atol": 1e-3 * float(expected.std())}
            if kind is None or not torch.allclose(head(head.decoded(ids_BT)[0]), expected, **close):
                raise ConfigError(
                    f"{type(self.model).__name__} computes its logits from more than its last"
                    " hidden states, which is not supported."
                )
        return head

    forward = GPT.forward  # by the reader's own `encoding`, `hidden` and `lm_head`

    def hidden(self, tokens_BT: Tensor, plan: Plan, last: int | None = None) -> Tensor:
        """Input of the output head: [B, T, C], or [B, R, C] for the last R = `last` positions."""
        door = self.door
        with contextlib.ExitStack() as stack:
            if (rows_TC := plan.embed()) is not None and not self._holds(rows_TC):
                stack.callback(door.revert)
                put_table(self.model, door, rows_TC)
            door.plan = plan
            stack.callback(setattr, door, "plan", None)
            hidden_BTC = self.lm_head.decoded(tokens_BT)
        return hidden_BTC[:, -(last or hidden_BTC.shape[1]) :]

    def _holds(self, rows_TC: Tensor) -> bool:
        """True if the model's own table has these rows, which is then trained with the rest."""
        table, offset = self.model.get_submodule(self.door.table).weight, self.door.offset
        own_TC = table.detach()[offset : offset + len(rows_TC)]
        return own_TC.shape == rows_TC.shape and torch.equal(own_TC, rows_TC.to(own_TC))

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, plan: Plan) -> Tensor:
        """Mean loss of the targets that are not IGNORED, in nats (scalar, float32). Scores are made
        again for their gradients.
        """

        def summed(hidden_RC: Tensor, target_R: Tensor) -> Tensor:
            return cross_entropy(
                self.lm_head(hidden_RC).float(), target_R, ignore_index=IGNORED, reduction="sum"
            )

        hidden_NC, target_N = self.hidden(tokens_BT, plan).flatten(0, 1), targets_BT.flatten()
        rows, total = (
            max(1, BLOCK // self.lm_head.out_features),
            hidden_NC.new_zeros((), dtype=torch.float32),
        )
        for hidden_RC, target_R in zip(hidden_NC.split(rows), target_N.split(rows), strict=True):
            total = total + checkpoint(summed, hidden_RC, target_R, use_reentrant=False)
        return total / (target_N != IGNORED).sum().clamp(min=1)

    def train(self, mode: bool = True) -> "Reader":
        """No change: a text always has the same loss, also in a training."""
        return super().train(False)

    def save(self, file: Path) -> str:
        """Write weights and configuration by the model's own save_pretrained. Returns the SHA-256
        of the weights, `file`, in hex.
        """
        with disk_errors(file):
            self.model.save_pretrained(file.parent, max_shard_size="100000GB")
        return sha256_file(file)
