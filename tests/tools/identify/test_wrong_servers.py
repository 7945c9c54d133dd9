"""posbench identify on servers that do each wrong thing on purpose, by transformers' own configs
(small_engine.py).
"""

import json

import pytest
from script_calls import call
from small_engine import TRAINED, small_checkpoint
from small_server import serving
from spoils import write_text

FOUND = {
    "right": "own", "ignored": "none", "linear": "pi", "no amplitude": "yarn_no_amplitude",
    "amplitude alone": "yarn_amplitude",
    "half": "yarn_half", "double": "yarn_double", "multiplied length": "yarn_long_original",
    "window": "window", "dynamic": "dynamic_ntk",
    "cached": "dynamic_ntk_pieces",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    small_checkpoint(folder / "model")
    write_text(folder / "text", train=1, validation=1, test=3)
    return folder


@pytest.mark.parametrize("wrong", FOUND)
def test_a_wrong_server_is_found_out(world, capfd, wrong):
    results = f"results_dir={wrong.replace(' ', '_')}/runs"
    setting = (
        "evaluate.lengths=[64,192]",
        "evaluate.windows=4",
        "evaluate.targets=16",
        "evaluate.floor=false",
        "evaluate.max_length=192",
    )
    with serving(world / "model", "vllm", wrong=wrong) as server:
        served = (
            f"model.url={server.url}",
            "data=local",
            "data.path=text",
            "data.tokenizer=model",
            f"train.length={TRAINED}",
        )
        done = call(
            capfd, world, "run", "model=server", *served, *setting, results, "log.mode=disabled"
        )
    assert done.returncode == 0, done.stderr
    (run,) = (world / wrong.replace(" ", "_") / "runs").glob("server-*")
    done = call(
        capfd,
        world,
        "identify",
        str(run),
        "model.path=model",
        "fed=16",
        "evaluate.dtype=fp32",  # as the server computes
        "log.mode=disabled",
        "out=told",
    )
    assert done.returncode == 0, done.stderr
    identified = json.loads((world / "told" / "identify.json").read_text())
    assert (identified["kind"], identified["best"]) == ("is", FOUND[wrong]), identified["verdict"]
    best, second = identified["candidates"][:2]
    # A prompt that is echoed holds its last target too, and a factor by length follows that.
    assert best["rms"] < (0.02 if wrong == "dynamic" else 1e-4) and second["rms"] > 5 * best["rms"]
