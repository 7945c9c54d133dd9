"""One training between two steps; posbench.training.loop.fit drives it.

Letters: B sequences, T tokens.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posbench.common.errors import RunError, first_line
from posbench.common.machine import check_windows_for_processes
from posbench.config.schema import TrainConfig
from posbench.data import Corpus
from posbench.data.batches import Batches, MixedBatches, batches
from posbench.data.task import IGNORED
from posbench.model import precision as bf16
from posbench.model.kernels.flex import compiled_for_each_shape
from posbench.runs.directory import Run
from posbench.training import checkpoint, graph
from posbench.training import optimizers as optim
from posbench.training.distributed import World

# Added to the seed of the data once for each ancestor, so that no child begins with the text of one
# of them.
SEEDS_BETWEEN_GENERATIONS = 1000
# Consecutive steps with a loss above HOPELESS_FACTOR times that of a uniform guess before a
# training counts as diverged.
HOPELESS_STEPS = 100
HOPELESS_FACTOR = 3.0


class Diverged(RunError):
    """Training has diverged beyond recovery. The last good state is kept."""


class LaunchedStep(NamedTuple):
    """A step whose loss is not known yet, and the seconds that it took to launch."""

    loss: Tensor
    tokens: int
    seconds: float


class FinishedStep(NamedTuple):
    """Loss in nats per token, tokens and seconds of a step."""

    loss: float
    tokens: int
    seconds: float


class Trainer:
    """State of a training: `step` steps are finished, and `advance` makes one more.

    Every process of `world` has one, calls the same methods in the same order, and gets the same
    losses, gradients and weights. `steps_above_loss_limit` counts consecutive steps with a loss
    above `loss_limit` nats per token. It is saved with the state of a training. `losses_by_length`
    measures the model, in evaluation mode, at several lengths. Raises ConfigError if there are more
    processes than windows in a step."""

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        config: TrainConfig,
        seed: int,
        device: torch.device,
        plan_for: Callable,  # from (length, step) to the step's Plan
        world: World | None = None,
        losses_by_length: Callable[[], dict] | None = None,
    ) -> None:
        self.model = model.train()
        self.config = config
        self.device = device
        self.world = world or World()
        self.optimizers = optim.make_optimizers(model, config)
        self.plan_for = plan_for
        self.losses_by_length = losses_by_length
        self.kept_steps = set(config.kept_steps)
        self.batches = _batches(corpus, config, seed)
        check_windows_for_processes(self.world.size, config.tokens_per_step, config.train_len)
        # Made here, so that validation text without a long enough document is refused before
        # training. Seed 0: the same windows for every run, independent of the run's seed.
        self.held_out = batches(
            corpus.validation,
            [config.train_len],
            config.tokens_per_step,
            seed=0,
            bos=corpus.bos,
        )
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.recent_steps: deque[FinishedStep] = deque(maxlen=config.log_every)
        # Loss that no training has after a while: ln V is that of a uniform guess.
        self.loss_limit = HOPELESS_FACTOR * math.log(corpus.vocab_size)
        self.steps_above_loss_limit = 0  # in a row
        self.pending_step: LaunchedStep | None = None
        self.grad_norm: Tensor | float | None = None
        self.graphs = self._step_graphs()
        self.loss = model.loss
        self.compiled = False
        if config.compile:
            self._compile()

    def _step_graphs(self) -> graph.StepGraphs | None:
        """Recorded steps; None where steps stay eager, which a user who may expect more is told."""
        encoding = getattr(self.model, "encoding", None)
        reason = graph.why_eager(self.config, encoding, self.device, self.world)
        if reason is None:
            return graph.StepGraphs(self._step, recover=self.model.zero_grad)
        if self.device.type == "cuda" and self.config.graph is not False and self.world.is_main:
            print(f"train.graph: {reason}: each step is launched anew", file=sys.stderr, flush=True)
        return None

    def advance(self) -> None:
        """Make one step. The previous step's loss is awaited after this one is launched, so that a
        GPU has at most one step queued.
        """
        start = time.perf_counter()
        optim.set_rate(self.optimizers, optim.rate_multiplier(self.step, self.config))
        inputs_BT, targets_BT = self.batches.at(self.step, self.world.share)
        shares = self._target_shares(targets_BT)
        inputs_BT = inputs_BT.to(self.device, non_blocking=True)
        targets_BT = targets_BT.to(self.device, non_blocking=True)
        if self.graphs is None:
            loss, self.grad_norm = self._step(inputs_BT, targets_BT, shares)
        elif isinstance(self.batches, Batches):
            # Of text the shares are the same in each step of a shape.
            loss, self.grad_norm = self.graphs(inputs_BT, targets_BT)
        else:
            shares_M = torch.tensor(shares, device=self.device)
            loss, self.grad_norm = self.graphs(inputs_BT, targets_BT, shares_M)
        seconds = time.perf_counter() - start
        self._finish_pending_step()
        length = inputs_BT.shape[1]
        # A step holds whole sequences, of all processes together.
        tokens = self.config.tokens_per_step // length * length
        self.pending_step = LaunchedStep(loss, tokens, seconds)
        self.step += 1

    def figures_due(self) -> dict:
        """Figures to log after this step; empty after most steps.

        A step whose weights are kept has all of them, as the last one has.
        """
        figures = {}
        keeps_weights = self.step in self.kept_steps
        if keeps_weights or is_due(self.step, self.config.log_every):
            figures |= self.figures()
        if keeps_weights or is_due(self.step, self.config.validate_every):
            figures |= self.validations()
        return figures

    def validations(self) -> dict:
        """`validation_loss`, and `validation`, the losses by length if they are measured."""
        figures: dict[str, object] = {"validation_loss": self.validate()}
        if self.losses_by_length:
            self.model.eval()
            figures["validation"] = self.losses_by_length()
            self.model.train()
        return figures

    def figures(self) -> dict:
        """Mean loss and speed of the last `log_every` steps, learning rate and gradient norm
        (before clipping) of the last one.

        Of a mix the loss is that of the steps on text, and `task_loss` that of the others.
        """
        self._finish_pending_step()
        if not self.recent_steps:
            return {}
        tokens = sum(step.tokens for step in self.recent_steps)
        seconds = sum(step.seconds for step in self.recent_steps)
        return {
            **self._mean_losses(),
            # of the step just made
            "lr": self.config.lr * optim.rate_multiplier(self.step - 1, self.config),
            "grad_norm": self._grad_norm(),
            "tokens": self.tokens,
            "tokens_per_second": tokens / seconds,
        }

    def _grad_norm(self) -> float | None:
        return None if self.grad_norm is None else float(self.grad_norm)

    def _mean_losses(self) -> dict[str, float]:
        """{"loss": mean of the last steps}, of a mix also "task_loss"; without what has no step."""
        losses = {"loss": [], "task_loss": []}
        first = self.step - len(self.recent_steps)
        for number, finished in enumerate(self.recent_steps, first):
            on_task = isinstance(self.batches, MixedBatches) and self.batches.is_task_step(number)
            losses["task_loss" if on_task else "loss"].append(finished.loss)
        return {name: math.fsum(values) / len(values) for name, values in losses.items() if values}

    def progress_figures(self) -> dict:
        """Figures for the progress line: the latest loss that is known without waiting, and the
        speed.
        """
        if not self.recent_steps:
            return {}
        latest = self.recent_steps[-1]
        return {"loss": latest.loss, "tokens/s": latest.tokens / latest.seconds}

    def validate(self) -> float | None:
        """Mean nats per token over the first `validate_windows` windows of train_len tokens; None
        if that is 0.

        Raises Diverged if it is not finite.
        """
        windows = self.config.validate_windows
        if windows == 0:
            return None
        self.model.eval()
        # Not inference_mode: tensors that a plan caches here are used by the next backward pass.
        with torch.no_grad():
            total = self.world.sum_over_processes(self._held_out_loss(windows))
        self.model.train()
        return self._checked_finite(total / windows, "validation loss")

    def _held_out_loss(self, windows: int) -> float:
        """Sum of the mean losses of this process's share of the first windows of held-out text."""
        total = 0.0
        remaining = windows
        step = 0
        while remaining > 0:
            inputs_BT, targets_BT = self.held_out.at(step)
            batch = min(len(inputs_BT), remaining)
            rows = self.world.share(batch)
            inputs_BT = inputs_BT[:batch][rows].to(self.device)
            targets_BT = targets_BT[:batch][rows].to(self.device)
            if len(inputs_BT):
                loss = self._loss(self.model.loss, inputs_BT, targets_BT, step=None)
                total += loss.item() * len(inputs_BT)
            remaining -= batch
            step += 1
        return total

    def save(self, run: Run) -> None:
        """Write the state. Raises Diverged instead if training has diverged, since saving would
        make the failure permanent.

        Raises Busy if the run's directory was moved, and another process trains it anew in its
        place."""
        self._finish_pending_step()
        self.check_weights()
        if not self.world.is_main:
            return
        run.hold_place()
        extra = {
            "tokens": self.tokens,
            "seconds": self.seconds,
            # plain tuples, since the state is read with weights_only
            "recent": [tuple(finished) for finished in self.recent_steps],
            "above": self.steps_above_loss_limit,
            "grad_norm": self._grad_norm(),
        }
        checkpoint.save_state(run.state, self.model, self.optimizers, self.step, extra)

    def resume(self, run: Run) -> None:
        """Go on from the saved state of a run."""
        self.step, extra = checkpoint.load_state(run.state, self.model, self.optimizers)
        optim.place_rates(self.optimizers)  # on the device, where graphs of CUDA read them
        self.tokens = extra["tokens"]
        self.seconds = extra["seconds"]
        self.recent_steps.extend(FinishedStep(*values) for values in extra["recent"])
        # States of earlier versions have neither.
        self.steps_above_loss_limit = extra.get("above", 0)
        self.grad_norm = extra.get("grad_norm")

    def _loss(
        self, loss: Callable, inputs_BT: Tensor, targets_BT: Tensor, step: int | None
    ) -> Tensor:
        with bf16.autocast(self.device, self.config.dtype):
            return loss(inputs_BT, targets_BT, self.plan_for(inputs_BT.shape[1], step))

    def _target_shares(self, targets_BT: Tensor) -> list[float]:
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

        `shares` as from `_target_shares`; None, for text: in proportion to the rows.
        """
        loss = self._backward(inputs_BT, targets_BT, shares)
        loss = self.world.sum_gradients(self.model.parameters(), loss)
        norm = self._clip_gradients()
        for optimizer in self.optimizers:
            with bf16.muon_precision(self.device, self.config.dtype):
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
        if shares is None:
            shares = [len(part_BT) / len(inputs_BT) for part_BT, _ in parts]
        losses = []
        for (part_BT, part_targets_BT), share in zip(parts, shares, strict=True):
            loss = self._loss(self.loss, part_BT, part_targets_BT, self.step) * share
            with bf16.bf16_products(self.device, self.config.dtype):
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _clip_gradients(self) -> Tensor:
        """Clip the gradients. Returns their norm before."""
        gradients = [param.grad for param in self.model.parameters() if param.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.config.clip > 0 and gradients:
            # The arithmetic of clip_grads_with_norm_, its 1e-6 too. That function first asks each
            # gradient for its device.
            factor = (self.config.clip / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        return norm

    def _finish_pending_step(self) -> None:
        """Wait for the pending step's loss and count the step. Raises Diverged if the loss is not
        finite, or too high for long.
        """
        if self.pending_step is None:
            return
        launched = self.pending_step
        self.pending_step = None
        start = time.perf_counter()
        loss = launched.loss.item()
        seconds = launched.seconds + time.perf_counter() - start
        self.seconds += seconds
        self.tokens += launched.tokens
        self._checked_finite(loss, "loss")
        self.steps_above_loss_limit = (
            self.steps_above_loss_limit + 1 if loss > self.loss_limit else 0
        )
        if self.steps_above_loss_limit >= HOPELESS_STEPS:
            raise Diverged(
                f"The loss is {loss:.3g} at step {self.step} and has been above"
                f" {self.loss_limit:.3g} nats/token ({HOPELESS_FACTOR:g} times that of a model that"
                f" knows nothing) for {HOPELESS_STEPS} steps{self._advice_on_divergence()}"
            )
        self.recent_steps.append(FinishedStep(loss, launched.tokens, seconds))

    def check_weights(self) -> None:
        """Check the weights. Raises Diverged if one is not finite: a gradient can overflow in a
        step whose loss is finite.
        """
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise Diverged(
                    f"The weights {name} are not finite after step {self.step}"
                    f"{self._advice_on_divergence()}"
                )

    def _checked_finite(self, value: float, name: str) -> float:
        if math.isfinite(value):
            return value
        raise Diverged(f"The {name} is {value} at step {self.step}{self._advice_on_divergence()}")

    def _advice_on_divergence(self) -> str:
        lr = self.config.lr * optim.rate_multiplier(self.step - 1, self.config)
        rates = "train.lr and train.muon_lr" if self.config.optimizer == "muon" else "train.lr"
        clip = "" if self.config.clip > 0 else ", or train.clip=1"
        return f" with learning rate {lr:.2g}: try a lower {rates}, a longer train.warmup{clip}."

    def _compile(self) -> None:
        """Compile the loss, or print in one line why it stays uncompiled.

        Compilers fail late (at the first call or the first backward) and in many ways. So a trial
        runs on the first batch, and any exception counts as a failure to compile. One with another
        cause is raised again by the first step."""
        try:
            if bf16.lacks_bf16_products(self.device, self.config.dtype):
                raise RuntimeError(
                    "this CPU multiplies bf16 numbers as float32, which cannot be compiled;"
                    " train.dtype=fp32 can"
                )
            self.loss = compiled_for_each_shape(self.model.loss)
            inputs_BT, targets_BT = self.batches.at(self.step, self.world.share)
            shares = self._target_shares(targets_BT)
            self._backward(inputs_BT.to(self.device), targets_BT.to(self.device), shares)
            self.compiled = True
        except Exception as error:
            self.loss = self.model.loss
            print(
                f"train.compile=true failed ({first_line(error)}): training goes on without it",
                file=sys.stderr,
            )
        self.model.zero_grad(set_to_none=True)


def _batches(corpus: Corpus, config: TrainConfig, seed: int) -> Batches | MixedBatches:
    """Batches of the training text, of a mix also those of the task."""
    data_seed = seed if config.seed_data is None else config.seed_data
    # No child begins with the text of its parent.
    data_seed += SEEDS_BETWEEN_GENERATIONS * config.generation
    sizes = (config.lengths, config.tokens_per_step, data_seed)
    text_batches = batches(corpus.train, *sizes, corpus.bos)
    if not corpus.mix:
        return text_batches
    task_batches = batches(corpus.mix.split("train"), *sizes, None)  # which has no BOS to add
    return MixedBatches(text_batches, task_batches, corpus.mix.share)


def is_due(step: int, every: int | None) -> bool:
    """True after every `every` steps; never when `every` is 0 or None.

    >>> [step for step in range(1, 8) if is_due(step, 3)]
    [3, 6]
    """
    return bool(every) and step % every == 0
