"""What methods do to position, in numbers and a picture, untrained: python scripts/anatomy.py encoding=rope extension=yarn length=4096"""

from __future__ import annotations

import sys
from pathlib import Path

from posbench.cli import Request, run_script
from posbench.errors import ConfigError


def anatomy(request: Request) -> int:
    for key in ("json", "figure"):
        if len(request.cfgs) > 1 and request.cfgs[0][key]:
            raise ConfigError(f"{key}={request.cfgs[0][key]} is one file for {len(request.cfgs)} combinations: leave {key} out.")
    for cfg in request.cfgs:
        try:
            _one(cfg)
        except ConfigError as error:
            if not request.sweep:
                raise
            print(f"refused: {error}", file=sys.stderr)
    return 0


def _one(cfg: dict) -> None:
    from posbench.anatomy import dissect
    from posbench.compat import check
    from posbench.make import make

    encoding, trained = _parts(cfg)
    extension, scale = make(cfg["extension"]), make(cfg["scale_attention"], encoding.shape)
    length = 16 * encoding.shape.train_len if cfg["length"] is None else cfg["length"]
    if isinstance(length, bool) or not isinstance(length, int) or length < 2:
        raise ConfigError(f"length={length} must be a whole number of at least 2 tokens.")
    verdict = check(encoding, extension, scale, [length], cfg["allow_untested"])
    if verdict.noop:
        print(f"no-op: {verdict.noop}", file=sys.stderr)
    found = dissect(encoding, extension, scale, length, trained)
    found.numbers.update({group: _name(group, cfg[group]) for group in ("extension", "scale_attention")})
    if cfg["run"] is None:
        found.numbers["encoding"] = _name("encoding", cfg["encoding"])
    found.numbers.update({"untested": verdict.untested, "noop": verdict.noop, "run": cfg["run"]})
    _write(found, cfg)


def _name(group: str, chosen: dict) -> str:
    """The yaml a method was chosen by: of those that name its class, the one it has most in common with."""
    from posbench.gallery_tiles import nodes
    from posbench.runs import method_name

    alike = {name: node for name, node in nodes(group).items() if node["_target_"] == chosen["_target_"]}
    own = method_name(chosen)
    return max(alike, key=lambda name: (sum(chosen.get(key) == value for key, value in alike[name].items()), name == own), default=own)


def _parts(cfg: dict):
    """The encoding, and the scale trained in or None: fresh ones, or those of run=DIR."""
    from posbench import hf_import
    from posbench.build import load_model, make_encoding, make_trained_scale
    from posbench.config import resolve
    from posbench.make import trusted_config
    from posbench.runs import Run

    if cfg["run"] is None:
        cfg = resolve(hf_import.adopt(cfg))
        encoding = make_encoding(cfg)
        return encoding, make_trained_scale(cfg, encoding)
    from safetensors import safe_open

    run = Run(cfg["run"])
    if not run.finished:
        raise ConfigError(f"run={cfg['run']} holds no finished training: train it with scripts/run.py first.")
    trained = trusted_config(run)
    with safe_open(run.weights, "pt") as weights:
        vocab_size = weights.get_slice("embed_tokens.weight").get_shape()[0]
    model = load_model(run, trained, vocab_size, "cpu")
    return model.encoding, model.scale


def _write(found, cfg: dict) -> None:
    """The summary on the terminal, and the files: asked for by name, or both in their default place."""
    from posbench.anatomy_figures import draw
    from posbench.anatomy_text import summary
    from posbench.files import write_json

    numbers = found.numbers
    print("\n".join(summary(numbers)))
    name = "+".join(numbers[key] for key in ("encoding", "extension", "scale_attention"))
    default = Path(cfg["results_dir"]).parent / "anatomy" / f"{name}.json"
    if cfg["json"] or not cfg["figure"]:
        path = Path(cfg["json"] or default)
        write_json(path, numbers)
        print(f"json {path}")
    if cfg["figure"] or not cfg["json"]:
        stem = Path(cfg["figure"] or default)
        stem = stem.with_suffix("") if stem.suffix in (".png", ".svg", ".json") else stem
        for path in draw(found, stem):
            print(f"{path.suffix.lstrip('.'):4} {path}")


if __name__ == "__main__":
    run_script(anatomy, "anatomy")
