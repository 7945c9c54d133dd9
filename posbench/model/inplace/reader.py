"""A transformers model for evaluations: hidden states under a plan, and its own output head.

The decoder runs once over the text and the head over the rows that are scored, by the model's own
code: the head's caps, scales and multipliers are what its forward does to hidden states that are
handed to it in place of the decoder's. A fine-tuning trains all weights, without dropout and
without the losses that a mixture of experts has for its router.

Letters: B batch, T tokens, C width, N all rows, R scored rows, V vocabulary.
"""

from contextlib import ExitStack
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
from posbench.model.inplace.attach import attach
from posbench.model.inplace.lengthen import put_table_rows
from posbench.position.plan import Plan

TRIAL_TOKENS = 7  # tokens of the text that shows what the head needs
SCORES_AT_ONCE = 2**25  # scores that a training holds at once


class Head:
    """Output head of a model: hidden states [R, C] to logits [R, V].

    Before it stands the model's `decoder`, whose answers are of class `answer_class`. The reader
    holds the weights of both."""

    def __init__(self, model: nn.Module, decoder: nn.Module, answer_class: type, out_features: int):
        self.model = model
        self.decoder = decoder
        self.answer_class = answer_class
        self.out_features = out_features

    def last_hidden_states(self, ids_BT: Tensor) -> Tensor:
        """Last hidden states of a text: [B, T, C]."""
        return self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state

    def __call__(self, hidden_RC: Tensor) -> Tensor:
        """Logits [R, V], by the model's own forward with these hidden states as its decoder's.

        R may stand for several dimensions."""
        rows_1RC = hidden_RC.reshape(1, -1, hidden_RC.shape[-1])
        # nobody reads them, since the decoder's answer is there already
        ids_1R = rows_1RC.new_zeros(rows_1RC.shape[:2], dtype=torch.long)
        answer = self.answer_class(last_hidden_state=rows_1RC)
        self.decoder.forward = lambda *args, **keywords: answer
        try:
            logits_RV = self.model(input_ids=ids_1R, use_cache=False).logits[0]
        finally:
            del self.decoder.forward
        return logits_RV.unflatten(0, hidden_RC.shape[:-1])


class Reader(nn.Module):
    """A model of transformers with the interface of posbench's GPT.

    `scaling` and `scaling_len` are an extension that was trained in, as in encodings/rope.py.
    Raises ConfigError as `extend` does, for an unusual head, and for a scaling that its layers
    cannot have."""

    def __init__(
        self,
        model: nn.Module,
        train_len: int,
        scaling: dict | None = None,
        scaling_len: float | None = None,
    ):
        """`scaling`: extension that was trained in, as a configuration of a method; `scaling_len`:
        training length before it. Both None for a checkpoint without one.
        """
        super().__init__()
        self.model = model
        # No factor on the logits was trained, which GPT may have.
        self.scale = None
        self.hook = attach(model, train_len)
        self.lm_head = self._output_head()
        if scaling is not None:
            self.hook.encoding = self.hook.encoding.with_extension_trained_in(scaling, scaling_len)

    @property
    def encoding(self) -> AsTrained:
        return self.hook.encoding

    @property
    def layers(self) -> nn.Module:
        """All that has weights, for those who ask GPT for its layers."""
        return self.model

    def _output_head(self) -> Head:
        """The model's output head. Raises ConfigError if it needs more than last hidden states."""
        from transformers import PreTrainedModel

        answers = []  # (module, class of its answer) of each part, in the order in which they end

        def note_answer(module: nn.Module, args: tuple, answer: object) -> None:
            if hasattr(answer, "last_hidden_state"):
                answers.append((module, type(answer)))

        with ExitStack() as stack, torch.no_grad():
            for module in self.model.modules():
                if module is not self.model and isinstance(module, PreTrainedModel):
                    stack.callback(module.register_forward_hook(note_answer).remove)
            ids_BT = torch.arange(TRIAL_TOKENS, device=self.model.device)[None]
            expected_TV = self.model(input_ids=ids_BT, use_cache=False).logits[0]
        if answers:
            decoder, answer_class = answers[-1]  # the outermost part ends last
            head = Head(self.model, decoder, answer_class, expected_TV.shape[-1])
            if self._gives_logits(head, ids_BT, expected_TV):
                return head
        raise ConfigError(
            f"{type(self.model).__name__} computes its logits from more than its last hidden"
            " states, which is not supported."
        )

    @staticmethod
    @torch.no_grad()
    def _gives_logits(head: Head, ids_BT: Tensor, expected_TV: Tensor) -> bool:
        """True if a head makes the expected logits [T, V] of a text [1, T]."""
        logits_TV = head(head.last_hidden_states(ids_BT)[0])
        tolerance = 1e-3 * float(expected_TV.std())
        return torch.allclose(logits_TV, expected_TV, rtol=1e-3, atol=tolerance)

    forward = GPT.forward  # by the reader's own `encoding`, `hidden` and `lm_head`

    def hidden(self, tokens_BT: Tensor, plan: Plan, last: int | None = None) -> Tensor:
        """Input of the output head: [B, T, C], or [B, R, C] for the last R = `last` positions."""
        hook = self.hook
        with ExitStack() as stack:
            rows_TC = plan.embed()  # of a learned table under the methods; None without one
            if rows_TC is not None and not self._model_table_has(rows_TC):
                stack.callback(hook.revert)
                put_table_rows(self.model, hook, rows_TC)
            hook.plan = plan
            stack.callback(setattr, hook, "plan", None)
            hidden_BTC = self.lm_head.last_hidden_states(tokens_BT)
        if last is None:
            return hidden_BTC
        return hidden_BTC[:, -last:]

    def _model_table_has(self, rows_TC: Tensor) -> bool:
        """True if the model's learned table has these rows, so that it need not be replaced.

        It is then trained with the other weights."""
        table = self.model.get_submodule(self.hook.table_name).weight
        offset = self.hook.row_of_position_0
        model_rows_TC = table.detach()[offset : offset + len(rows_TC)]
        if model_rows_TC.shape != rows_TC.shape:
            return False
        return torch.equal(model_rows_TC, rows_TC.to(model_rows_TC))

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, plan: Plan) -> Tensor:
        """Mean loss of the targets that are not IGNORED, in nats (scalar, float32); 0 if all are.

        Scores are made again for their gradients."""

        def summed_loss(hidden_RC: Tensor, target_R: Tensor) -> Tensor:
            logits_RV = self.lm_head(hidden_RC).float()
            return cross_entropy(logits_RV, target_R, ignore_index=IGNORED, reduction="sum")

        hidden_NC = self.hidden(tokens_BT, plan).flatten(0, 1)
        target_N = targets_BT.flatten()
        rows_at_once = max(1, SCORES_AT_ONCE // self.lm_head.out_features)
        total_loss = hidden_NC.new_zeros((), dtype=torch.float32)
        for hidden_RC, target_R in zip(
            hidden_NC.split(rows_at_once), target_N.split(rows_at_once), strict=True
        ):
            total_loss = total_loss + checkpoint(
                summed_loss, hidden_RC, target_R, use_reentrant=False
            )
        return total_loss / (target_N != IGNORED).sum().clamp(min=1)

    def train(self, mode: bool = True) -> "Reader":
        """No change: a text always has the same loss, also in a training."""
        return super().train(False)

    def save(self, file: Path) -> str:
        """Write weights and configuration by the model's own save_pretrained.

        Returns the SHA-256 of the weights, `file`, in hex."""
        # One file, whatever its size.
        with disk_errors(file):
            self.model.save_pretrained(file.parent, max_shard_size="100000GB")
        return sha256_file(file)
