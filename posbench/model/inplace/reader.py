"""A model of transformers as evaluations read it: hidden states of a text under a plan, and its own output head.

The decoder runs once over the text and the head over the rows that are scored, by the model's own code: the head's caps, scales and
multipliers are what its forward does to hidden states that are handed to it in place of the decoder's.

Letters: B batch, T tokens, C width, R scored rows, V vocabulary.
"""

import contextlib

import torch
from torch import Tensor, nn

from posbench.common.errors import ConfigError
from posbench.encodings.as_trained import AsTrained
from posbench.extensions.none import NoExtension
from posbench.model.inplace.extend import Extended, put_table, take
from posbench.position.legality import check_extension
from posbench.position.plan import Plan, make_plan

TRIED = 7  # tokens


class Head(nn.Module):
    """Output head: hidden states [R, C] to logits [R, V]. Before it stands the model's `decoder`."""

    def __init__(self, model: nn.Module, decoder: nn.Module, kind: type, out_features: int):
        super().__init__()
        self.__dict__.update(model=model, decoder=decoder)  # parts of the reader, which holds their weights
        self.kind, self.out_features = kind, out_features

    def decoded(self, ids_BT: Tensor) -> Tensor:
        """Last hidden states of a text: [B, T, C]."""
        return self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state

    def forward(self, hidden_RC: Tensor) -> Tensor:
        rows = hidden_RC.reshape(1, -1, hidden_RC.shape[-1])
        self.decoder.forward = lambda *args, **given: self.kind(last_hidden_state=rows)
        try:
            logits_RV = self.model(input_ids=rows.new_zeros(rows.shape[:2], dtype=torch.long), use_cache=False).logits[0]
        finally:
            del self.decoder.forward
        return logits_RV.unflatten(0, hidden_RC.shape[:-1])


class Reader(nn.Module):
    """A model of transformers with the interface of posbench's GPT. Raises ConfigError as `extend` does, and for an unusual head."""

    def __init__(self, model: nn.Module, train_len: int):
        super().__init__()
        self.model, self.scale = model, None
        self.state: Extended = take(model, train_len)
        self.lm_head = self._head()

    @property
    def encoding(self) -> AsTrained:
        return self.state.encoding

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
                raise ConfigError(f"{type(self.model).__name__} makes its logits of more than its last hidden states, which is not read.")
        return head

    def forward(self, tokens_BT: Tensor, plan: Plan | None = None, last: int | None = None) -> Tensor:
        """Logits [B, T, V], or [B, R, V] for the last R = `last` positions only, as those of GPT."""
        tokens_BT = torch.atleast_2d(torch.as_tensor(tokens_BT, device=self.model.device))
        if plan is None:
            check_extension(self.encoding, NoExtension(), [tokens_BT.shape[1]])
            plan = make_plan(self.encoding, length=tokens_BT.shape[1], device=str(tokens_BT.device))
        return self.lm_head(self.hidden(tokens_BT, plan, last))

    def hidden(self, tokens_BT: Tensor, plan: Plan, last: int | None = None) -> Tensor:
        """Input of the output head: [B, T, C], or [B, R, C] for the last R = `last` positions."""
        door = self.state.door
        with contextlib.ExitStack() as stack:
            if (rows_TC := plan.embed()) is not None:
                stack.callback(self.state.revert)
                put_table(self.model, self.state, rows_TC)
            door.plan = plan
            stack.callback(setattr, door, "plan", None)
            hidden_BTC = self.lm_head.decoded(tokens_BT)
        return hidden_BTC[:, -(last or hidden_BTC.shape[1]) :]
