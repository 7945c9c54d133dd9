"""Alterations of a folder of evidence, as somebody may make who wants another result, or by
accident.

ALTERATIONS is {name: function of the folder}.
"""

import csv
import io
import json
import math
import os

import numpy as np

ALTERATIONS = {}


def edit_rows(folder, change):
    """Rewrite rows.csv after `change(rows)`, which edits a list of {column: text} in place."""
    with open(folder / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    change(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / "rows.csv").write_text(text.getvalue())


def follow(row):
    """Let ppl and bpb follow from nll, as a careful hand would."""
    nll = float(row["nll"])
    row["ppl"] = repr(math.exp(nll))
    row["bpb"] = repr(nll * int(row["n_targets"]) / math.log(2) / int(row["n_bytes"]))


def edit_sums(folder, change):
    with np.load(folder / "sums.npz") as stored:
        arrays = {name: array.copy() for name, array in stored.items()}
    changed = change(arrays)
    np.savez_compressed(folder / "sums.npz", **(arrays if changed is None else changed))


def edit_lines(folder, name, change):
    """Rewrite a text file after `change(lines)`, which edits its lines in place or returns
    others.
    """
    lines = (folder / name).read_text().splitlines()
    changed = change(lines)
    (folder / name).write_text("\n".join(lines if changed is None else changed) + "\n")


def edit_configs(folder, change):
    """Rewrite configs.jsonl after `change(lines)`, which edits a list of parsed lines in place."""
    lines = [json.loads(line) for line in (folder / "configs.jsonl").read_text().splitlines()]
    change(lines)
    (folder / "configs.jsonl").write_text(
        "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    )


def add(name, editor, change):
    assert name not in ALTERATIONS
    ALTERATIONS[name] = lambda folder: editor(folder, change)


def cell(column, value):
    def change(rows):
        assert rows[4][column] != value
        rows[4][column] = value

    return change


def scaled(rows, factor=0.9):
    for row in rows:
        row["nll"] = repr(float(row["nll"]) * factor)
        follow(row)


# rows.csv: each column of one row, by itself and with all that follows from it
for column, value in {
    "nll": "2.5", "ppl": "20.5", "bpb": "1.5", "nll_sem": "0.001", "accuracy": "0.9",
    "n_bytes": "999", "n_targets": "1024", "n_units": "17", "sem_unit": "window", "dtype": "fp32",
    "commit": "0123456789ab", "setting": "32 windows asked for", "max_distance": "7.0",
    "target_len": "99", "length": "96", "train_len": "32", "seed": "7", "data": "pg19",
    "tokenizer": "bytes",
    "encoding": "alibi", "encoding_args": '{"base":5000.0}', "extension": "yarn",
    "extension_args": '{"factor":2}',
    "scale_attention": "log_n", "trained_scale": "log_n", "finetune": "rope-64-s0-0123456789",
    "untested": "true", "protocol": "disjoint", "position": "64", "task": "passkey", "depth": "0.5",
    "run_id": "rope-64-s0-0123456789", "eval_id": "0123456789abcdef", "seconds": "0.5",
    "peak_mib": "1.0", "schema": "3",
}.items():  # fmt: skip
    add(f"rows: {column}", edit_rows, cell(column, value))


def better_loss(rows):
    scaled(rows[4:5])


def better_method(rows):
    scaled([row for row in rows if row["extension"] == "pi"])


def better_method_with_error(rows):
    better_method(rows)
    for row in rows:
        if row["extension"] == "pi":
            row["nll_sem"] = repr(float(row["nll_sem"]) * 0.9)


def fewer_bytes(rows):
    rows[4]["n_bytes"] = str(int(rows[4]["n_bytes"]) + 100)
    follow(rows[4])


def another_row(rows):
    rows.append({**rows[4]})
    scaled(rows[-1:])


def swapped_methods(rows):
    names = {"pi": "ntk", "ntk": "pi"}
    for row in rows:
        row["extension"] = names.get(row["extension"], row["extension"])


def swapped_losses(rows):
    names = ("nll", "ppl", "bpb", "nll_sem", "accuracy")
    first, second = ({name: rows[number][name] for name in names} for number in (3, 4))
    rows[3] |= second
    rows[4] |= first


def other_training(rows):
    for row in rows:
        row["train_len"] = "32"


def no_settings(rows):
    for row in rows:
        row.pop("setting")


def small_step(rows):
    scaled(rows[4:5], 1 + 1e-6)


def other_setting(rows):
    for row in rows:
        row["setting"] = row["setting"].replace("256 windows", "512 windows")


for name, change in {
    "nll with all that follows": better_loss,
    "nll of a method": better_method,
    "nll of a method, with its error": better_method_with_error,
    "nll by a millionth": small_step,
    "all losses": scaled,
    "n_bytes with all that follows": fewer_bytes,
    "a second row with another nll": another_row,
    "a row twice": lambda rows: rows.append({**rows[4]}),
    "a row removed": lambda rows: rows.pop(4),
    "the last row removed": lambda rows: rows.pop(),
    "two rows in another order": lambda rows: rows.insert(3, rows.pop(4)),
    "losses of two rows exchanged": swapped_losses,
    "names of two methods exchanged": swapped_methods,
    "another training length everywhere": other_training,
    "other settings everywhere": other_setting,
    "no settings": no_settings,
    "cut": lambda rows: rows.__delitem__(slice(10, None)),
}.items():
    add(f"rows: {name}", edit_rows, change)


# sums.npz
def times(name, factor, part=slice(None)):
    def change(arrays):
        arrays[name][part] = (arrays[name][part] * factor).astype(arrays[name].dtype)

    return change


def moved_loss(arrays):
    arrays["nll"][0] -= 1.0
    arrays["nll"][1] += 1.0


def moved_target(arrays):
    arrays["n_targets"][0] -= 1
    arrays["n_targets"][1] += 1


def moved_right_answer(arrays):
    arrays["correct"][0] += 1


def renumbered_documents(arrays):
    arrays["document"] += 1


def one_other_document(arrays):
    last = np.flatnonzero(arrays["row"] == arrays["row"][0])[-1]
    arrays["document"][last] += 1000


def renumbered_rows(arrays):
    """The sums of rows 3 and 4 exchanged."""
    order = np.argsort(
        np.where(arrays["row"] == 3, 4, np.where(arrays["row"] == 4, 3, arrays["row"])),
        kind="stable",
    )
    return {name: array if name == "row" else array[order] for name, array in arrays.items()}


def without(mask):
    return lambda arrays: {key: array[~mask(arrays)] for key, array in arrays.items()}


for name, change in {
    "one loss": times("nll", 1.5, slice(0, 1)),
    "all losses": times("nll", 0.9),
    "one loss by a billionth": times("nll", 1 + 1e-9, slice(0, 1)),
    "right answers": moved_right_answer,
    "losses of two documents": moved_loss,
    "targets of two documents": moved_target,
    "documents renumbered": renumbered_documents,
    "one document renumbered": one_other_document,
    "rows renumbered": renumbered_rows,
    "an entry removed": without(lambda arrays: np.arange(len(arrays["row"])) == 5),
    "a row removed": without(lambda arrays: arrays["row"] == 4),
    "all entries removed": without(lambda arrays: arrays["row"] >= 0),
    "an array removed": lambda arrays: {
        key: array for key, array in arrays.items() if key != "correct"
    },
    "single precision": lambda arrays: {**arrays, "nll": arrays["nll"].astype(np.float32)},
}.items():
    add(f"sums: {name}", edit_sums, change)
add("sums: cut", lambda folder, size: os.truncate(folder / "sums.npz", size), 1000)


# documents.csv
def document_cell(number, value):
    def change(lines):
        cells = lines[3].split(",")
        assert cells[number] != value
        cells[number] = value
        lines[3] = ",".join(cells)

    return change


for name, change in {
    "bytes": document_cell(3, "999"),
    "no bytes": document_cell(3, ""),
    "targets": document_cell(2, "16"),
    "number": document_cell(1, "4000"),
    "set of targets": document_cell(0, "0" * 64),
    "a line removed": lambda lines: lines.pop(3),
    "a line twice": lambda lines: lines.append(lines[3]),
    "a line more": lambda lines: lines.append(lines[3].replace(lines[3].split(",")[1], "5000", 1)),
    "no lines": lambda lines: lines[:1],
    "another name of all targets": lambda lines: [
        lines[0],
        *("f" * 64 + line[64:] for line in lines[1:]),
    ],
}.items():
    add(
        f"documents: {name}", lambda folder, edit: edit_lines(folder, "documents.csv", edit), change
    )


# configs.jsonl
def at(*place, value):
    def change(lines):
        node = lines[0]
        for key in place[:-1]:
            node = next(iter(node.values())) if key is None else node[key]
        assert node[place[-1]] != value, place
        node[place[-1]] = value

    return change


for name, change in {
    "seed": at("config", "seed", value=3),
    "steps": at("config", "train", "steps", value=5000),
    "base": at("config", "encoding", "base", value=500000.0),
    "encoding": at("config", "encoding", "_target_", value="posbench.encodings.alibi.Alibi"),
    "width": at("config", "model", "d_model", value=256),
    "layers": at("config", "model", "n_layer", value=12),
    "training length": at("config", "train", "length", value=128),
    "learning rate": at("config", "train", "lr", value=0.02),
    "number format of the training": at("config", "train", "dtype", value="fp32"),
    "optimizer": at("config", "train", "optimizer", value="adamw"),
    "trained scale": at(
        "config",
        "train",
        "scale_attention",
        value={"_target_": "posbench.scale_attention.log_n.LogN"},
    ),
    "parent": at(
        "config", "train", "parent", value={"run_id": "rope-64-s0-0123456789", "reach": 64}
    ),
    "name of the data": at("config", "data", "name", value="pg19"),
    "seed of the windows, in the configuration": at("config", "evaluate", "seed", value=5),
    "no configuration": at("config", value={}),
    "fingerprint of the data": at("provenance", "data_fingerprint", value="f" * 64),
    "commit": at("provenance", "commit", value="f" * 40),
    "uncommitted changes": at("provenance", "dirty_diff", value="abcd"),
    "platform": at("provenance", "platform", value="Linux"),
    "version of torch": at("provenance", "versions", "torch", value="3.0"),
    "weights": at("summary", "sha256", value="0" * 64),
    "validation loss": at("summary", "validation_loss", value=1.0),
    "tokens": at("summary", "tokens", value=1),
    "slope": at("end_slope", value=-0.1),
    "name of a training": at("run_id", value="rope-64-s0-0123456789"),
    "windows": at("evaluations", None, "setting", "windows", value=512),
    "targets of a window": at("evaluations", None, "setting", "targets", value=16),
    "room": at("evaluations", None, "setting", "max_length", value=2048),
    "number format": at("evaluations", None, "setting", "dtype", value="fp32"),
    "split": at("evaluations", None, "setting", "split", value="validation"),
    "seed of the windows": at("evaluations", None, "setting", "seed", value=9),
    "text": at("evaluations", None, "setting", "text", value="pg19 01234567"),
    "version of the protocol": at("evaluations", None, "setting", "version", value=2),
    "no setting": at("evaluations", None, "setting", value=None),
    "targets": at("evaluations", None, "targets", value="0" * 64),
    "machines": at("evaluations", None, "machines", value={"64": {"device": "cuda"}}),
    "no evaluations": at("evaluations", value={}),
    "a training removed": lambda lines: lines.pop(0),
    "a training twice": lambda lines: lines.append(lines[0]),
    "trainings exchanged": lambda lines: [
        line.__setitem__("config", other) for line, other in _exchanged(lines)
    ],
}.items():
    add(f"configs: {name}", edit_configs, change)


def _exchanged(lines):
    return list(zip(lines[:2], [line["config"] for line in lines[1::-1]], strict=True))


# Tables that follow from the evidence
def table_cell(column, value):
    def change(lines):
        names = lines[0].split(",")
        cells = next(csv.reader([lines[2]]))
        assert cells[names.index(column)] != value
        cells[names.index(column)] = value
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        lines[2] = text.getvalue()

    return change


for name, values in {
    "curve.csv": {
        "nll": "2.5",
        "difference": "-0.5",
        "half_width": "0.001",
        "gain": "0.5",
        "n_seeds": "9",
        "length": "96",
    },
    "trainings.csv": {
        "validation_loss": "1.0",
        "commit": "f" * 40,
        "weights_sha256": "0" * 64,
        "parameters": "7",
    },
}.items():
    for column, value in values.items():
        add(
            f"{name}: {column}",
            lambda folder, edit, name=name: edit_lines(folder, name, edit),
            table_cell(column, value),
        )
    add(
        f"{name}: a line removed",
        lambda folder, edit, name=name: edit_lines(folder, name, edit),
        lambda lines: lines.pop(2),
    )


def other_number(lines):
    number = next(
        i
        for i, line in enumerate(lines)
        if line.startswith("| rope") and any(c.isdigit() for c in line)
    )
    lines[number] = lines[number].replace("1", "2").replace("3", "4")


add("table.md: numbers", lambda folder, edit: edit_lines(folder, "table.md", edit), other_number)
add(
    "table.md: a line removed",
    lambda folder, edit: edit_lines(folder, "table.md", edit),
    lambda lines: lines.pop(6),
)
add(
    "curve.svg: a number",
    lambda folder, edit: edit_lines(folder, "curve.svg", edit),
    lambda lines: lines.insert(1, "<!-- 9 -->"),
)


# The list itself
def edit_list(folder, change):
    content = json.loads((folder / "hashes.json").read_text())
    change(content)
    (folder / "hashes.json").write_text(json.dumps(content))


for name, change in {
    "another hash": lambda content: content["files"].update({"rows.csv": "0" * 64}),
    "no hash": lambda content: content["files"].update({"rows.csv": ""}),
    "a file above": lambda content: content["files"].update({"../rows.csv": "0" * 64}),
    "newer": lambda content: content.update({"format": 2}),
    "no files": lambda content: content.pop("files"),
}.items():
    add(f"hashes.json: {name}", edit_list, change)
