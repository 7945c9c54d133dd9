"""Fabricated evaluations of known truth, for the tests of claims, and the committed ledger."""

import functools
import math

import numpy as np
import yaml
from conftest import CONFIGS
from synthetic import DOCUMENTS, TARGETS, write_eval

from posbench.tools.claims.find import Pool
from posbench.tools.claims.judge import judge
from posbench.tools.claims.language import Claim, load_claim, load_claims

NATS = 2 * math.log(
    2
)  # nats/token in one bit/byte, at the two bytes per token of tests/support/synthetic.py
GRID = (64, 72, 80, 96, 128, 256, 512)


@functools.cache
def committed_ledger() -> list[Claim]:
    """The claims in results/claims, read once: their yamls take most of a second."""
    return load_claims(CONFIGS.parent / "results" / "claims")


class World:
    """Trainings whose losses are a floor of each target, plus a shift that is known, plus noise of
    seeds and documents.
    """

    def __init__(self, root, spread=0.01):
        self.root, self.spread, self.rng, self.floors = root, spread, np.random.default_rng(0), {}

    def train(self, encoding, seed, gain=0.1, at=(128, 256), **config):
        """The references of one training at the lengths `at`; `config`: dotted keys of its
        config.yaml.
        """
        self.floors[encoding, seed] = floor_N = 3 + self.rng.normal(0, 0.5, TARGETS)
        write_eval(
            self.root,
            encoding,
            "recompute_window",
            "none",
            [floor_N] * len(at),
            at,
            seed,
            {"window": None},
        )
        half_N = floor_N + gain + self.noise(0.01)
        path = write_eval(
            self.root,
            encoding,
            "recompute_window",
            "none",
            [half_N] * len(at),
            at,
            seed,
            {"window": 32},
        )
        (path.parents[2] / "config.yaml").write_text(
            yaml.safe_dump({"train": {"length": 64}, "model": {"qk_norm": "none"}, **config})
        )

    def noise(self, size):
        document = np.arange(TARGETS) % DOCUMENTS
        return (
            self.rng.normal(0, size, TARGETS)
            + self.rng.normal(0, size, DOCUMENTS)[document]
            + self.rng.normal(0, size)
        )

    def evaluate(
        self, encoding, seed, extension, shifts, scale="none", args=None, lengths=GRID, **changed
    ):
        """Losses `shifts` (nats/token, one for each length or one for all) above the floor."""
        shifts = np.broadcast_to(shifts, len(lengths))
        losses = [self.floors[encoding, seed] + shift + self.noise(self.spread) for shift in shifts]
        return write_eval(
            self.root, encoding, extension, scale, losses, lengths, seed, args, **changed
        )

    def finding(self, **primary):
        """Finding of a claim with one primary, by default on plain RoPE at four times the training
        length.
        """
        edges = {} if "confirm" in primary else {"confirm": "above 0", "refute": "below 0"}
        return self.judge(claim(self.root, primary={"of": ROPE, "at": 4, **edges, **primary}))[0]

    def judge(self, *claims):
        pool = Pool.read(sorted(self.root.glob("*/evals/*/*.json")), {})
        return judge(claims, lambda claim: (pool, "make it"))


def claim(tmp_path, **text):
    """A claim as its yaml would be read."""
    written = {
        "id": "X",
        "statement": "s",
        "source": "arXiv 1",
        "rule": "r",
        "experiment": "e",
        **text,
    }
    path = tmp_path / "claim.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_claim(path)


ROPE = {"encoding": "rope"}


def make_ladder(world):
    """RoPE, 3 seeds: plain rises by 0, 0.004, 0.03, 0.2, 0.8, 1.2, 1.6 nats; pi by 0.5; rerope
    gains 0.05. ALiBi stays at its floor.
    """
    for seed in range(3):
        for encoding in ("rope", "alibi"):
            world.train(encoding, seed)
        world.evaluate("rope", seed, "none", (0, 0.004, 0.03, 0.2, 0.8, 1.2, 1.6))
        world.evaluate("rope", seed, "pi", 0.5)
        world.evaluate("rope", seed, "rerope", -0.05)
        world.evaluate("alibi", seed, "none", 0.0)
    return world
