"""Evaluations as the evaluators write them, made of known curves, for the tests of reporting."""

import contextlib
import hashlib
import itertools
import json
from unittest import mock

import numpy as np
from blank_pictures import blank_pictures

from posbench.evaluation.protocols.by_position import bin_edges
from posbench.report import write_report as folder
from posbench.report.report import collect_report
from posbench.runs.columns import DERIVED_COLUMNS
from posbench.runs.rows import DIGEST_KEY, eval_content, make_row
from posbench.statistics.clustered import clustered_mean

LENGTHS = (64, 128, 256, 512)
FLOORS = {"rope": 3.054, "alibi": 3.121, "sinusoidal": 3.318, "none": 3.41}
GAINS = {"rope": 0.125, "alibi": 0.105, "sinusoidal": 0.004, "none": 0.061}
# loss minus floor at 64, 128, 256, 512
CURVES = {
    ("rope", "none", "none"): (0.004, 0.756, 1.37, 1.71),
    ("rope", "none", "log_n"): (0.004, 0.71, 1.21, 1.52),
    ("rope", "pi", "none"): (0.004, 0.258, 0.759, 1.22),
    ("rope", "pi", "log_n"): (0.004, 0.221, 0.70, 1.15),
    ("rope", "ntk", "none"): (0.004, -0.032, 0.41, 1.34),
    ("rope", "ntk", "log_n"): (0.004, -0.041, 0.33, 1.18),
    ("rope", "rerope", "none"): (0.004, -0.089, -0.041, 0.071),
    ("rope", "rerope", "log_n"): (0.004, -0.100, -0.097, -0.051),
    ("rope", "leaky_rerope", "none"): (0.004, -0.071, -0.01, 0.112),
    ("rope", "leaky_rerope", "log_n"): (0.004, -0.105, -0.099, -0.070),
    ("alibi", "none", "none"): (0.006, 0.012, 0.019, 0.021),
    ("sinusoidal", "none", "none"): (0.005, 1.91, 2.81, 3.32),
}
TARGETS, DOCUMENTS = 240, 20


def write_eval(root, encoding, extension, scale, losses_LN, lengths, seed=0, args=None, **changed):
    """Write one evaluation (json + npz) of losses [n_length, n_targets]; returns the json's
    path.
    """
    document = np.arange(TARGETS) % DOCUMENTS
    n_bytes = np.full(TARGETS, 2)
    run = f"{encoding}-64-s{seed}-0123456789"
    eval_id = hashlib.sha256(f"{run} {extension} {scale} {args}".encode()).hexdigest()[:16]
    row = {
        "run_id": run, "eval_id": eval_id, "encoding": encoding, "encoding_args": {},
        "extension": extension, "extension_args": args or {},
        "scale_attention": scale, "trained_scale": "none", "finetune": None, "untested": False,
        "seed": seed, "data": "pysource", "tokenizer": "bpe-1024", "dtype": "fp32", "train_len": 64,
        "protocol": "fixed_targets", "position": None, "task": None,
        "depth": None, "n_targets": TARGETS, "n_bytes": int(n_bytes.sum()), "n_units": DOCUMENTS,
        "sem_unit": "document", "accuracy": 0.4,
        "max_distance": 63.0, "seconds": 1.5, "peak_mib": 100.0, "commit": None, "step": None,
        **changed,
    }  # fmt: skip
    rows = []
    for length, loss_N in zip(lengths, losses_LN, strict=True):
        mean, sem, _ = clustered_mean(np.asarray(loss_N, dtype=np.float32), document)
        rows.append(
            make_row(
                **{
                    **row,
                    "length": length,
                    "target_len": length,
                    "nll": mean,
                    "nll_sem": sem,
                    **changed,
                }
            )
        )
    path = root / run / "evals" / "fixed_targets" / f"{extension}+{scale}-{eval_id[:8]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, rows, {"seed": seed})
    np.savez(
        path.with_suffix(".npz"), length=np.array(lengths),
        nll=np.asarray(losses_LN, dtype=np.float32),
        correct=np.broadcast_to(np.arange(TARGETS) % 5 < 2, (len(lengths), TARGETS)), bytes=n_bytes,
        document=document,
        offset=np.arange(TARGETS),
    )  # fmt: skip
    return path


def derived(row):
    """A row whose derived columns follow from the others."""
    return make_row(**{name: value for name, value in row.items() if name not in DERIVED_COLUMNS})


def write_json(path, rows, config):
    """Write an eval json as earlier versions did, without a digest of its content, so that a test
    may edit it.
    """
    content = eval_content(rows, config)
    path.write_text(
        json.dumps({name: value for name, value in content.items() if name != DIGEST_KEY})
    )


ASKED = {
    "windows": 512,
    "targets": 8,
    "max_length": 512,
    "split": "test",
    "dtype": "fp32",
    "seed": 0,
}


def with_settings(path, copy="", **evaluate):
    """State these settings in an evaluation's file, or in a copy of that name with an eval_id of
    its own; returns the path.
    """
    content, arrays = json.loads(path.read_text()), path.with_suffix(".npz").read_bytes()
    rows = [
        {**row, "eval_id": f"{row['eval_id']}-{copy}" if copy else row["eval_id"]}
        for row in content["rows"]
    ]
    path = path.with_name(f"{copy}-{path.name}") if copy else path
    write_json(path, rows, {"evaluate": {**ASKED, **evaluate}})
    path.with_suffix(".npz").write_bytes(arrays)
    return path


def write_run(root, encoding, seed=0, curves=None):
    """Floor, half window and every curve of one encoding and seed; returns the paths."""
    noise = np.random.default_rng([seed, len(encoding)])
    floor_N = (
        FLOORS[encoding]
        + noise.normal(0, 0.5, TARGETS)
        + noise.normal(0, 0.3, DOCUMENTS)[np.arange(TARGETS) % DOCUMENTS]
    )
    floor_N += FLOORS[encoding] - floor_N.mean() + noise.normal(0, 0.01)

    def near(shift):
        return (
            floor_N
            + shift
            + noise.normal(0, 0.02 + 0.03 * abs(shift), TARGETS)
            + noise.normal(0, 0.04 * abs(shift))
        )

    paths = [
        write_eval(
            root,
            encoding,
            "recompute_window",
            "none",
            [floor_N] * 3,
            LENGTHS[1:],
            seed,
            {"window": None},
        ),
        write_eval(
            root,
            encoding,
            "recompute_window",
            "none",
            [near(GAINS[encoding])] * 3,
            LENGTHS[1:],
            seed,
            {"window": 32},
        ),
    ]
    for (name, extension, scale), shifts in (curves or CURVES).items():
        if name == encoding:
            paths.append(
                write_eval(
                    root, name, extension, scale, [near(shift) for shift in shifts], LENGTHS, seed
                )
            )
    return paths


class Built:
    """A report that was collected and written: its own attributes, and the files.

    `pictures` are "drawn" (as svg), "blank" (a fifth of the time) or "none" (a tenth).
    """

    def __init__(self, paths, out_dir, title, command, pictures="none"):
        self.report = collect_report(paths, title, command)
        none = mock.patch.object(
            folder, "draw_sections", lambda sections, *_: [{} for _ in sections]
        )
        blank = {"drawn": ["png"], "blank": ["png", "svg"], "none": []}[pictures]
        with blank_pictures(*blank), none if pictures == "none" else contextlib.nullcontext():
            self.files = folder.write_report(self.report, out_dir)

    def __getattr__(self, name):
        return getattr(self.report, name)


def mean_and_error(losses_NS, document_N):
    """Mean of the losses of windows, as float32 holds them, and its standard error over
    documents.
    """
    mean, sem, _ = clustered_mean(
        losses_NS.astype(np.float32).ravel(), np.repeat(document_N, losses_NS.shape[1])
    )
    return mean, sem


def write_positions(root, extension, losses_NL, document_N=None, shorter=(), **changed):
    """Write one evaluation by position (json + npz) of the losses of whole windows and of `shorter`
    texts; returns the json's path.
    """
    changed |= {"protocol": "by_position"}
    texts, n = [*shorter, losses_NL], len(losses_NL)
    lengths = [text.shape[1] for text in texts]
    document_N = np.arange(n) if document_N is None else document_N
    path = write_eval(
        root, "rope", extension, "none", [np.zeros(TARGETS)], [lengths[-1]], **changed
    )
    content = json.loads(path.read_text())
    values = [
        {
            "length": text.shape[1],
            "position": high,
            "n_targets": n * (high - low),
            "n_bytes": 2 * n * (high - low),
            "n_units": len(set(document_N.tolist())),
            **dict(
                zip(("nll", "nll_sem"), mean_and_error(text[:, low:high], document_N), strict=True)
            ),
            "accuracy": 0.0,
        }
        for text in texts
        for low, high in itertools.pairwise([0, *bin_edges(text.shape[1])])
    ]
    written = [{**content["rows"][0], **value} for value in values]
    write_json(path, [derived(row) for row in written], content["config"])
    arrays = {"length": np.array(lengths), "document": document_N, "offset": np.arange(n)}
    for text in texts:
        nll = text.astype(np.float32)
        arrays |= {
            f"nll_{text.shape[1]}": nll,
            f"correct_{text.shape[1]}": np.zeros_like(nll, bool),
        }
    np.savez(path.with_suffix(".npz"), **arrays)
    return path
