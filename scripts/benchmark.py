"""Time of each kernel beside plain attention, and of a training step, as ratios: python scripts/benchmark.py length=4096 repeats=5"""

from __future__ import annotations

import statistics
import sys
import time

import posbench  # noqa: F401  (before torch)


def median_seconds(call, repeats: int) -> float:
    """Median of `repeats` timings after one that warms up."""
    call()
    timings = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        timings.append(time.perf_counter() - began)
    return statistics.median(timings)


def attention_ratios(length: int, repeats: int) -> None:
    """Forward time of one attention layer for each extension, as a ratio to rope with extension=none."""
    import torch

    from posbench import kernels
    from posbench.encodings.alibi import Alibi
    from posbench.encodings.rope import Rope
    from posbench.geometry import Shape
    from posbench.make import make
    from posbench.plan import make_plan

    shape = Shape(128, 1, 4, 4, 64)
    q, k, v = (torch.randn(1, 4, length, 32) for _ in range(3))
    cases = [
        (Rope(shape), "none", "NoExtension"),
        (Rope(shape), "pi", "Pi"),
        (Rope(shape), "ntk", "Ntk"),
        (Alibi(shape), "none", "NoExtension"),
    ]
    cases += [(Rope(shape), "window", "Window"), (Rope(shape), "rerope", "Rerope"), (Rope(shape), "leaky_rerope", "LeakyRerope")]
    base = None
    with torch.inference_mode():
        for encoding, name, cls in cases:
            layer = make_plan(encoding, make({"_target_": f"posbench.extensions.{name}.{cls}"}), length=length).layers[0]
            seconds = median_seconds(lambda layer=layer: kernels.attend(layer, q, k, v), repeats)
            base = base or seconds
            kernel = "fused" if layer.causal else "rows"
            print(f"{type(encoding).__name__.lower():6} {name:13} {kernel:6} {seconds * 1e3:9.1f} ms {seconds / base:6.2f} x")


def training_ratios(repeats: int) -> None:
    """A training step of the default model and text shape for each encoding, as a ratio to rope."""
    import torch

    from posbench import optim
    from posbench.build import make_model
    from posbench.config import TrainConfig
    from posbench.plan import make_plan

    base = None
    for name, cls in (("rope", "Rope"), ("alibi", "Alibi"), ("sinusoidal", "Sinusoidal"), ("learned", "Learned"), ("none", "NoEncoding")):
        cfg = {"encoding": {"_target_": f"posbench.encodings.{name}.{cls}"}, "model": {"d_ff": 320}, "train": {}, "seed": 0}
        model = make_model(cfg, 1024)
        plan, optimizers = make_plan(model.encoding, length=64), optim.build(model, TrainConfig())
        text_BT = torch.randint(0, 1024, (32, 64))

        def step(model=model, plan=plan, optimizers=optimizers, text_BT=text_BT) -> None:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model.loss(text_BT, text_BT, plan)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        seconds = median_seconds(step, repeats)
        base = base or seconds
        print(f"step   {name:20} {seconds * 1e3:9.1f} ms {seconds / base:6.2f} x   {2048 / seconds:,.0f} tokens/s")


if __name__ == "__main__":
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    attention_ratios(int(options.get("length", 4096)), int(options.get("repeats", 5)))
    training_ratios(int(options.get("repeats", 5)) * 4)
