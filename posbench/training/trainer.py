"""One training between two steps; posbench.training.loop.fit drives it.

Letters: B sequences, T tokens.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from posbench.common.errors import RunError, first_line
from posbench.common.machine import check_share
from posbench.config.schema import TrainConfig
from posbench.data import Corpus
from posbench.data.batches import Batches, MixedBatches, batches
from posbench.data.task import IGNORED
from posbench.model import precision as bf16
from posbench.model.kernels.flex import compiled
from posbench.runs.directory import Run
from posbench.training import checkpoint, graph
from posbench.training import optimizers as optim
from posbench.training.distributed import World

# added to the seed of the data once for each ancestor, so that no child begins with the text of one
# of them
OTHER_ORDER = 1000
# consecutive steps with a loss above HOPELESS times that of a uniform guess before a training
# counts as diverged
PATIENCE = 100
HOPELESS = 3.0


class Diverged(RunError):
    """Training has diverged beyond recovery. The last good state is kept."""


class Trainer:
    """State of a training: `step` steps are finished, and `advance` makes one more.

    Every process of `world` has one, calls the same methods in the same order, and gets the same
    losses, gradients and weights. `above` counts consecutive steps with a loss above `limit` nats
    per token. It is saved with the state of a training. Raises ConfigError if there are more
    processes than windows in a step."""

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        config: TrainConfig,
        seed: int,
        device: torch.device,
        plan_for: Callable,
        world: World | None = None,
    ) -> None:
        self.model, self.config, self.device, self.world = (
            model.train(),
            config,
            device,
            world or World(),
        )
        self.optimizers = optim.build(model, config)
        self.plan_for = plan_for
        data_seed = (
            seed if config.seed_data is None else config.seed_data
        ) + OTHER_ORDER * config.generation
        self.batches = batches(
            corpus.train, config.lengths, config.tokens_per_step, data_seed, corpus.bos
        )
        if corpus.mix:
            asked = batches(
                corpus.mix.split("train"), config.lengths, config.tokens_per_step, data_seed, None
            )
            self.batches = MixedBatches(self.batches, asked, corpus.mix.share)
        check_share(self.world.size, config.tokens_per_step, config.train_len)
        # Made here, so that validation text without a long enough document is refused before
        # training. Seed 0: the same windows for every run, independent of the run's seed.
        self.held_out = batches(
            corpus.validation, [config.train_len], config.tokens_per_step, 0, corpus.bos
        )
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.recent: deque[tuple[float, int, float]] = deque(
            maxlen=config.log_every
        )  # loss, tokens, seconds of the last steps
        self.limit, self.above = HOPELESS * math.log(corpus.vocab_size), 0
        self.pending: tuple[Tensor, int, float] | None = None
        self.grad_norm: Tensor | float | None = None
        eager = graph.why_eager(config, getattr(model, "encoding", None), device, self.world)
        self.graphs = None if eager else graph.StepGraphs(self._step, self.model.zero_grad)
        if eager and device.type == "cuda" and config.graph is not False and self.world.main:
            print(f"train.graph: {eager}: each step is launched anew", file=sys.stderr, flush=True)
        self.loss, self.compiled = model.loss, False
        if config.compile:
            self._compile()

    def advance(self) -> None:
        """Make one step. The previous step's loss is awaited after this one is launched, so that a
        GPU has at most one step queued.
        """
        began = time.perf_counter()
        optim.set_rate(self.optimizers, optim.rate(self.step, self.config))
        inputs_BT, targets_BT = self.batches.at(self.step, self.world.share)
        shares = self._shares(targets_BT)
        inputs_BT, targets_BT = (
            part.to(self.device, non_blocking=True) for part in (inputs_BT, targets_BT)
        )
        if self.graphs is None:
            loss, self.grad_norm = self._step(inputs_BT, targets_BT, shares)
        else:
            # Of text each step of a shape has the same, of a task they are as many as the answers.
            given = (
                ()
                if isinstance(self.batches, Batches)
                else (torch.tensor(shares, device=self.device),)
            )
            loss, self.grad_norm = self.graphs(inputs_BT, targets_BT, *given)
        launched = time.perf_counter() - began
        self._settle()
        length = inputs_BT.shape[1]
        self.pending = (loss, self.config.tokens_per_step // length * length, launched)
        self.step += 1

    def figures_due(self) -> dict:
        """Figures to log after this step; empty after most steps."""
        figures = self.figures() if due(self.step, self.config.log_every) else {}
        return figures | (
            {"validation_loss": self.validate()}
            if due(self.step, self.config.validate_every)
            else {}
        )

    def figures(self) -> dict:
        """Mean loss and speed of the last `log_every` steps, learning rate and gradient norm
        (before clipping) of the last one.

        Of a mix the loss is that of the steps on text, and `task_loss` that of the others.
        """
        self._settle()
        if not self.recent:
            return {}
        losses, tokens, seconds = zip(*self.recent, strict=True)
        return {
            **self._mean_losses(losses),
            "lr": self.config.lr * optim.rate(self.step - 1, self.config),
            "grad_norm": float(self.grad_norm) if self.grad_norm is not None else None,
            "tokens": self.tokens,
            "tokens_per_second": sum(tokens) / sum(seconds),
        }

    def _mean_losses(self, losses: Sequence[float]) -> dict:
        if not isinstance(self.batches, MixedBatches):
            return {"loss": math.fsum(losses) / len(losses)}
        kinds = [
            "task_loss" if self.batches.asks(step) else "loss"
            for step in range(self.step - len(losses), self.step)
        ]
        own = {
            kind: [loss for loss, one in zip(losses, kinds, strict=True) if one == kind]
            for kind in ("loss", "task_loss")
        }
        return {kind: math.fsum(found) / len(found) for kind, found in own.items() if found}

    def shown(self) -> dict:
        """Figures for the progress line: the latest loss that is known without waiting, and the
        speed.
        """
        if not self.recent:
            return {}
        return {"loss": self.recent[-1][0], "tokens/s": self.recent[-1][1] / self.recent[-1][2]}

    def validate(self) -> float | None:
        """Mean nats per token over the first `validate_windows` windows of train_len tokens; None
        if that is 0.

        Raises Diverged if it is not finite.
        """
        left, total = self.config.validate_windows, 0.0
        self.model.eval()
        step = 0
        with (
            torch.no_grad()
        ):  # not inference_mode: tensors that a plan caches here are used by the next backward pass
            while left > 0:
                batch = [part[:left] for part in self.held_out.at(step)]
                inputs_BT, targets_BT = (
                    part[self.world.share(len(part))].to(self.device) for part in batch
                )
                if len(inputs_BT):
                    total += self._loss(self.model.loss, inputs_BT, targets_BT, None).item() * len(
                        inputs_BT
                    )
                left, step = left - len(batch[0]), step + 1
        self.model.train()
        total = self.world.sum(total)
        mean = total / self.config.validate_windows if self.config.validate_windows else None
        return mean if mean is None else self._finite(mean, "validation loss")

    def save(self, run: Run) -> None:
        """Write the state. Raises Diverged instead if training has diverged, since saving would
        make the failure permanent.

        Raises Busy if the run's directory was moved, and another process trains it anew in its
        place."""
        self._settle()
        self.check_weights()
        if not self.world.main:
            return
        run.hold_place()
        extra = {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "recent": list(self.recent),
            "above": self.above,
        }
        extra["grad_norm"] = None if self.grad_norm is None else float(self.grad_norm)
        checkpoint.save_state(run.state, self.model, self.optimizers, self.step, extra)

    def resume(self, run: Run) -> None:
        self.step, extra = checkpoint.load_state(run.state, self.model, self.optimizers)
        optim.place_rates(self.optimizers)
        self.tokens, self.seconds = extra["tokens"], extra["seconds"]
        self.recent.extend(extra["recent"])
        self.above, self.grad_norm = (
            extra.get("above", 0),
            extra.get("grad_norm"),
        )  # states of earlier versions have neither

    def _loss(
        self, loss: Callable, inputs_BT: Tensor, targets_BT: Tensor, step: int | None
    ) -> Tensor:
        with bf16.autocast(self.device, self.config.dtype):
            return loss(inputs_BT, targets_BT, self.plan_for(inputs_BT.shape[1], step))

    def _shares(self, targets_BT: Tensor) -> list[float]:
        """Share of the batch's targets that each micro-batch of the given rows has. The batch is
        that of all processes.
        """
        n_targets = self.batches.n_targets(self.step)
        return [
            int((part_BT != IGNORED).sum()) / n_targets
            for part_BT in targets_BT.chunk(self.config.micro_batches)
        ]

    def _step(
        self, inputs_BT: Tensor, targets_BT: Tensor, shares: Sequence[float] | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Make a step with rows on the device. Returns its loss, and the norm of its gradient
        before clipping.

        `shares` as from `_shares`; None, for text: in proportion to the rows.
        """
        loss = self._backward(inputs_BT, targets_BT, shares)
        loss = self.world.sum_gradients(self.model.parameters(), loss)
        norm = self._clip()
        for optimizer in self.optimizers:
            with bf16.muon(self.device, self.config.dtype):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def _backward(
        self, inputs_BT: Tensor, targets_BT: Tensor, shares: Sequence[float] | Tensor | None
    ) -> Tensor:
        """Add the gradients of the given rows' part of the batch's mean loss, one micro-batch at a
        time. Returns that part.

        The mean is over the targets of the whole batch, over all processes; of a task, over the
        tokens of its answers."""
        n_micro = self.config.micro_batches
        parts = list(zip(inputs_BT.chunk(n_micro), targets_BT.chunk(n_micro), strict=True))
        shares = (
            [len(part_BT) / len(inputs_BT) for part_BT, _ in parts] if shares is None else shares
        )
        losses = []
        for (part_BT, part_targets_BT), share in zip(parts, shares, strict=True):
            loss = self._loss(self.loss, part_BT, part_targets_BT, self.step) * share
            with bf16.products(self.device, self.config.dtype):
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _clip(self) -> Tensor:
        params = [param for param in self.model.parameters() if param.grad is not None]
        norm = nn.utils.get_total_norm([param.grad for param in params])
        if self.config.clip > 0 and params:
            # As clip_grads_with_norm_ does it, which asks each gradient for its device.
            torch._foreach_mul_(
                [param.grad for param in params], (self.config.clip / (norm + 1e-6)).clamp(max=1.0)
            )
        return norm

    def _settle(self) -> None:
        """Wait for the pending step's loss and count the step. Raises Diverged if the loss is not
        finite, or too high for long.
        """
        if self.pending is None:
            return
        (loss, tokens, launched), self.pending = self.pending, None
        began = time.perf_counter()
        value = loss.item()
        seconds = launched + time.perf_counter() - began
        self.seconds += seconds
        self.tokens += tokens
        self._finite(value, "loss")
        self.above = self.above + 1 if value > self.limit else 0
        if self.above >= PATIENCE:
            raise Diverged(
                f"The loss is {value:.3g} at step {self.step} and has been above {self.limit:.3g}"
                f" nats/token ({HOPELESS:g} times that of a model that knows nothing) for"
                f" {PATIENCE} steps{self._remedy()}"
            )
        self.recent.append((value, tokens, seconds))

    def check_weights(self) -> None:
        """Check the weights. Raises Diverged if one is not finite: a gradient can overflow in a
        step whose loss is finite.
        """
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise Diverged(
                    f"The weights {name} are not finite after step {self.step}{self._remedy()}"
                )

    def _finite(self, value: float, name: str) -> float:
        if math.isfinite(value):
            return value
        raise Diverged(f"The {name} is {value} at step {self.step}{self._remedy()}")

    def _remedy(self) -> str:
        lr = self.config.lr * optim.rate(self.step - 1, self.config)
        rates = "train.lr and train.muon_lr" if self.config.optimizer == "muon" else "train.lr"
        clip = "" if self.config.clip > 0 else ", or train.clip=1"
        return f" with learning rate {lr:.2g}: try a lower {rates}, a longer train.warmup{clip}."

    def _compile(self) -> None:
        """Compile the loss, or print in one line why it stays uncompiled.

        Compilers fail late (at the first call or the first backward) and in many ways. So a trial
        runs on the first batch, and any exception counts as a failure to compile. One with another
        cause is raised again by the first step."""
        try:
            if bf16.slow(self.device, self.config.dtype):
                raise RuntimeError(
                    "this CPU multiplies bf16 numbers as float32, which cannot be compiled;"
                    " train.dtype=fp32 can"
                )
            self.loss = compiled(self.model.loss)
            inputs_BT, targets_BT = self.batches.at(self.step, self.world.share)
            self._backward(
                inputs_BT.to(self.device), targets_BT.to(self.device), self._shares(targets_BT)
            )
            self.compiled = True
        except Exception as error:
            self.loss = self.model.loss
            print(
                f"train.compile=true failed ({first_line(error)}): training goes on without it",
                file=sys.stderr,
            )
        self.model.zero_grad(set_to_none=True)


def due(step: int, every: int) -> bool:
    """True after every `every` steps; never when `every` is 0."""
    return every > 0 and step % every == 0
