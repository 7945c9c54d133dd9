import json
import math
import re

import numpy as np
import pytest
from synthetic import (
    CURVES,
    DOCUMENTS,
    FLOORS,
    GAINS,
    LENGTHS,
    TARGETS,
    Built,
    derived,
    with_settings,
    write_eval,
    write_run,
)

from posbench.common.errors import RunError
from posbench.config.identity import method_args, method_name
from posbench.config.names import shipped_yamls
from posbench.report.figures.captions import curve_caption
from posbench.report.labels import Labels
from posbench.report.records import read_points
from posbench.report.report import collect_report
from posbench.runs.rows import read_csv
from posbench.runs.target_losses import LOSS_ARRAYS
from posbench.statistics.clustered import student_quantile

COMMAND = "python scripts/run.py experiment=demo"
FLOOR_N = np.full(TARGETS, 3.0)
DOCUMENT = np.arange(TARGETS) % DOCUMENTS


def references(root, floor_N=FLOOR_N, half=0.1, **changed):
    """Floor and half window of one training of rope."""
    windows = ((0, None), (half, changed.get("train_len", 64) // 2))
    evaluations = (
        ([floor_N + more] * 3, LENGTHS[1:], {"window": window}) for more, window in windows
    )
    return [
        write_eval(root, "rope", "recompute_window", "none", losses, lengths, args=args, **changed)
        for losses, lengths, args in evaluations
    ]


def trained(root, half=0.1, **changed):
    return [
        *references(root, half=half, **changed),
        write_eval(root, "rope", "none", "none", flat(0), LENGTHS, **changed),
    ]


def flat(shift):
    return [np.full(TARGETS, 3.0 + shift)] * 4


def only(points, **values):
    (match,) = [
        point
        for point in points
        if all(getattr(point, name) == value for name, value in values.items())
    ]
    return match


def test_the_demo_grid(tmp_path):
    paths = [
        path
        for encoding in ("rope", "alibi", "sinusoidal")
        for seed in (0, 1, 2)
        for path in write_run(tmp_path, encoding, seed)
    ]
    report = Built(paths, tmp_path / "out", "Demo", COMMAND, pictures="blank")
    points = read_points(tmp_path / "out" / "curve.csv")
    assert len(points) == len(CURVES) * len(LENGTHS)
    assert {path.name for path in report.files} == {
        "rows.csv",
        "sums.npz",
        "documents.csv",
        "configs.jsonl",
        "trainings.csv",
        "curve.csv",
        "table.md",
        "table.tex",
        "report.html",
        "explore.html",
        "hashes.json",  # fmt: skip
        *(
            f"{name}.{kind}"
            for name in ("curve", "heatmap", "differences")
            for kind in ("png", "svg")
        ),
    }
    assert all(path.stat().st_size > 0 for path in report.files)
    assert len(read_csv(tmp_path / "out" / "rows.csv")) == 3 * (
        len(CURVES) * len(LENGTHS) + 3 * 2 * 3
    )
    for (encoding, extension, scale), shifts in CURVES.items():
        for length, shift in zip(LENGTHS, shifts, strict=True):
            point = only(
                points, encoding=encoding, extension=extension, scale_attention=scale, length=length
            )
            assert point.difference == pytest.approx(shift, abs=0.01 + 0.1 * abs(shift))
            assert point.difference == pytest.approx(point.nll - point.floor, abs=1e-5)
            assert (point.n_seeds, point.over, point.floor) == (
                3,
                "seeds x documents",
                pytest.approx(FLOORS[encoding], abs=0.03),
            )
            assert point.gain == pytest.approx(GAINS[encoding], abs=0.01)
    assert not report.notes


def test_terminal_and_markdown_show_the_same_cells(tmp_path):
    report = Built(write_run(tmp_path, "rope"), tmp_path / "out", "Demo", COMMAND)
    markdown, terminal = (tmp_path / "out" / "table.md").read_text(), report.table_text()
    assert markdown == report.markdown()
    numbers = re.compile(r"[+-]?\d+\.\d+(?: \+- \d+\.\d+ [<>~])?")
    assert (
        numbers.findall(terminal) == numbers.findall(markdown)
        and len(numbers.findall(markdown)) > 80
    )
    assert (
        "| encoding | extension | scale_attention | 1x (64) | 2x (128) | 4x (256) | 8x (512) |"
        in markdown
    )
    for cells in (
        "fixed_targets",
        "240 targets in 20 documents",
        "pysource",
        "bpe-1024",
        "trained at 64",
        "seeds: 1",
        "gate: ok",
    ):
        assert cells in markdown and cells in terminal
    assert "\x1b[31m" in report.table_text(colour=True) and "\x1b" not in terminal


def test_difference_and_change_are_paired_and_clustered_by_document(tmp_path):
    # The loss varies wildly between targets; the difference is 0.5 in half of the documents and 0.3
    # in the others, and pi takes it all.
    floor_N = np.random.default_rng(0).normal(3, 2, TARGETS).astype(np.float32)
    shift_N = np.where(DOCUMENT % 2, 0.5, 0.3)
    paths = references(tmp_path, floor_N) + [
        write_eval(tmp_path, "rope", "none", "none", [floor_N + shift_N] * 4, LENGTHS)
    ]
    paths.append(write_eval(tmp_path, "rope", "pi", "none", [floor_N] * 4, LENGTHS))
    report = Built(paths, tmp_path / "out", "t", COMMAND)
    plain, pi = (
        only(read_points(tmp_path / "out" / "curve.csv"), length=512, extension=name)
        for name in ("none", "pi")
    )
    assert (plain.difference, plain.over, plain.change) == (
        pytest.approx(0.4, abs=1e-6),
        "document",
        None,
    )
    width = student_quantile(0.975, 19) * math.sqrt(0.1**2 * 20 / 19 / 20)
    assert plain.half_width == pytest.approx(width, rel=1e-4)
    assert (pi.difference, pi.change) == pytest.approx(
        (0, -0.4), abs=1e-6
    ) and pi.change_half_width == pytest.approx(width, rel=1e-4)
    assert "G rope seed 0: 32 -> 64 tokens of context bring 0.100" in report.markdown()


@pytest.mark.parametrize(
    ("half", "verdict"), [(0.1, "gate: ok"), (0.0, "gate: failed"), (-0.1, "gate: failed")]
)
def test_the_gate(tmp_path, half, verdict):
    report = collect_report(trained(tmp_path, half), "t", COMMAND)
    assert verdict in report.markdown() and verdict in report.table_text()
    short, way = (
        re.search(r"gate: failed, (\S+) nats/token short", report.markdown()),
        "train longer (train.steps) or a larger model",
    )
    assert (float(short[1]) if short else None) == (None if half > 0 else -half) and (
        way in report.markdown()
    ) == (half <= 0)


def test_g_has_half_of_its_interval_behind_it_as_tables_have(tmp_path):
    # G is 0.2 in half of the 20 documents and 0.1 in the others.
    paths = references(tmp_path)
    half_N = 3.0 + np.where(DOCUMENT % 2, 0.2, 0.1)
    paths[1] = write_eval(
        tmp_path, "rope", "recompute_window", "none", [half_N] * 3, LENGTHS[1:], args={"window": 32}
    )
    markdown = collect_report(
        [*paths, write_eval(tmp_path, "rope", "none", "none", flat(0), LENGTHS)], "t", COMMAND
    ).markdown()
    width = student_quantile(0.975, 19) * math.sqrt(0.05**2 * 20 / 19 / 20)
    assert (
        f"bring 0.150 +- {width:.3f} nats/token, 95 % above {0.15 - width:.3f}; gate: ok"
        in markdown
        and "s.e." not in markdown
    )


def test_the_beta_that_null_stands_for_is_said(tmp_path):
    """A quarter of the 10.19 turns of the fastest pair in 64 tokens, where 32 is published; not
    known for frequencies of another kind.
    """
    yarn = {"alpha": 1.0, "beta": None, "ramp": "index"}
    paths = [
        write_eval(
            tmp_path,
            "rope",
            "yarn",
            "none",
            flat(0),
            LENGTHS,
            args=yarn,
            encoding_args={"base": 10000.0},
        )
    ]
    assert (
        "yarn alpha=1.0, ramp=index, beta=2.546 (null; 32 is published)"
        in collect_report(paths, "t", COMMAND).markdown()
    )
    paths = [
        write_eval(
            tmp_path,
            "rope",
            "yarn",
            "none",
            flat(0),
            LENGTHS,
            args={**yarn, "beta": 8.0},
            encoding_args={"base": 10000.0},
        )
    ]
    assert (
        "yarn alpha=1.0, beta=8.0, ramp=index\n" in collect_report(paths, "t", COMMAND).markdown()
    )
    paths = [write_eval(tmp_path, "alibi", "yarn", "none", flat(0), LENGTHS, args=yarn)]
    assert "beta" not in collect_report(paths, "t", COMMAND).markdown()


def test_a_floor_shorter_than_twice_the_training_length_is_none(tmp_path):
    # At the training length recompute_window has less than its full window, so it is no reference
    # there.
    paths = [
        write_eval(
            tmp_path,
            "rope",
            "recompute_window",
            "none",
            [np.full(TARGETS, 9.0), np.full(TARGETS, 3.0)],
            (64, 128),
        )
    ]
    (curve,) = collect_report(
        [*paths, write_eval(tmp_path, "rope", "none", "none", flat(0.25), LENGTHS)], "t", COMMAND
    ).sections
    assert [point.difference for point in curve] == [pytest.approx(0.25)] * 4


def test_one_document_shows_no_gain_and_says_what_would(tmp_path):
    paths = trained(tmp_path)
    for path in paths:
        with np.load(path.with_suffix(".npz")) as stored:
            np.savez(path.with_suffix(".npz"), **{**stored, "document": np.zeros(TARGETS, int)})
    assert (
        "gate: failed, one document shows nothing: evaluate.windows for more"
        in collect_report(paths, "t", COMMAND).markdown()
    )


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_two_seeds_say_that_one_degree_of_freedom_is_left(tmp_path, seeds):
    report = collect_report(
        [path for seed in range(seeds) for path in write_run(tmp_path, "alibi", seed)], "t", COMMAND
    )
    sentence = (
        "two seeds leave one degree of freedom: Student's t is 12.7, and 4.3 with a third seed"
    )
    assert (
        (sentence in report.markdown())
        == (f"T{sentence[1:]}." in curve_caption(report.sections[0], relative=True))
        == (seeds == 2)
    )


def test_missing_evaluations_are_counted_and_the_command_said(tmp_path):
    paths = [
        write_eval(tmp_path, "rope", "none", "none", flat(0), LENGTHS),
        tmp_path / "a.json",
        tmp_path / "b.json",
    ]
    paths[0].with_suffix(".npz").unlink()  # without floor and arrays the losses still stand
    text = collect_report(paths, "t", COMMAND).markdown()
    assert f"2 of 3 evaluations are not there yet: `{COMMAND}`" in text and "gate: unknown" in text
    assert "| rope | none | none | 3.000 | 3.000 |" in text and "minus the floor" not in text
    with pytest.raises(RunError, match="None of the 2 .*experiment=demo"):
        collect_report(paths[1:], "t", COMMAND)


def test_cells_say_what_is_not_finite_untested_or_of_other_arguments(tmp_path):
    make = [({"factor": 2, "mode": "fixed"}, 0.1), ({"factor": 4, "mode": "fixed"}, 0.2)]
    paths = [
        write_eval(tmp_path, "rope", "pi", "none", flat(shift), LENGTHS, args=args)
        for args, shift in make
    ]
    losses = [*flat(0)[:3], np.full(TARGETS, np.inf)]
    paths += [
        write_eval(
            tmp_path,
            "rope",
            "none",
            "none",
            losses,
            LENGTHS,
            untested=True,
            encoding_args={"base": 1e4},
        )
    ]
    text = collect_report([*references(tmp_path), *paths], "t", COMMAND).markdown()
    assert (
        "| rope | pi factor=2 | none | 3.100" in text
        and "| rope | pi factor=4 | none | 3.200" in text
    )
    assert (
        "| none * | none | 3.000 | 3.000 | 3.000 | not finite |" in text
        and "* a pair of methods its authors have not tested" in text
    )


def labels(*changes):
    row = {
        "encoding": "rope",
        "encoding_args": {},
        "extension": "none",
        "extension_args": {},
        "scale_attention": "none",
        "run_id": "r",
    }
    rows = [
        {**row, "trained_scale": None, "finetune": None, "task": None, **change}
        for change in changes
    ]
    return list(map(Labels(rows), rows))


def test_an_argument_that_came_later_tells_nothing_apart_at_its_default():
    names = labels(
        *(
            {"encoding": "alibi", "encoding_args": args}
            for args in ({}, {"slope_scale": 1.0}, {"slope_scale": 16.0})
        )
    )
    assert [encoding for encoding, *_ in names] == ["alibi", "alibi", "alibi slope_scale=16.0"]


def test_long_lists_of_numbers_are_told_apart_by_their_ends_and_a_hash():
    lists = [None, [1.0] * 31 + [4.0], [1.0] * 30 + [2.0, 4.0], [1.0, 2.0]]
    names = [
        name
        for _, name, _ in labels(
            *(
                {"extension": "longrope", "extension_args": {"factors": factors}}
                for factors in lists
            )
        )
    ]
    assert (
        names[0] == "longrope"
        and names[3] == "longrope factors=[1.0, 2.0]"
        and len(set(names)) == 4
    )
    assert all(
        name.startswith("longrope factors=1.0..4.0#") and len(name) < 35 for name in names[1:3]
    )


@pytest.mark.parametrize("name", ["fox_rope", "gemma3"])
def test_what_a_yaml_makes_of_the_class_of_another_is_called_by_the_yaml(name):
    yaml_node, cls = shipped_yamls("encoding")[name], method_name(shipped_yamls("encoding")[name])
    names = labels(
        *(
            {"encoding": cls, "encoding_args": method_args(node)}
            for node in (yaml_node, shipped_yamls("encoding")[cls])
        )
    )
    assert [encoding for encoding, *_ in names] == [name, cls] and name != cls


def test_two_trainings_of_one_cell_are_told_apart_by_their_hashes(tmp_path):
    # No config.yaml says in what they differ, and both have seed 0.
    for name, shift in (("rope-64-s0-aaaa", 0.0), ("rope-64-s0-bbbb", 0.5)):
        write_eval(
            tmp_path / name, "rope", "none", "none", flat(shift), LENGTHS, eval_id=name, run_id=name
        )
    text = collect_report(sorted(tmp_path.glob("*/*/evals/*/*.json")), "t", COMMAND).markdown()
    assert (
        "| rope run=aaaa | none | none | 3.000" in text
        and "| rope run=bbbb | none | none | 3.500" in text
    )
    assert "differ in run_id;" in text


def test_two_evaluations_of_one_training_are_never_taken_for_one(tmp_path):
    paths = [
        write_eval(tmp_path / name, "rope", "none", "none", flat(0), LENGTHS, eval_id=name)
        for name in ("a", "b")
    ]
    with pytest.raises(RunError, match="report them apart"):
        collect_report(paths, "t", COMMAND)


def test_a_gate_is_taken_from_an_evaluation_of_the_same_windows_alone(tmp_path):
    few = [with_settings(path, windows=2) for path in trained(tmp_path / "few", 0.2)]
    many = write_eval(
        tmp_path / "many",
        "rope",
        "none",
        "none",
        flat(0),
        LENGTHS,
        protocol="yarn_script",
        eval_id="x",
    )
    report = collect_report([*few, with_settings(many, stride=16)], "t", COMMAND)
    assert [part.lines[-1].split("; ")[-1] for part in report.parts] == [
        "gate: ok",
        "gate: unknown",
    ]
    report = collect_report([*few, with_settings(many, windows=2, stride=16)], "t", COMMAND)
    assert (
        "G rope seed 0 (by fixed_targets): 32 -> 64 tokens of context bring 0.200"
        in report.parts[1].lines[-1]
    )


@pytest.mark.parametrize("documents", [True, False])
def test_a_row_that_is_no_plain_mean_of_its_documents_is_compared_by_means(tmp_path, documents):
    """Rows of yarn_script and lceg_script: windows of the latter run across documents."""
    options = {"protocol": "lceg_script"}
    paths = [
        write_eval(tmp_path, "rope", extension, "none", flat(shift), LENGTHS, **options)
        for extension, shift in (("none", 0), ("ntk", 0.5))
    ]
    content = json.loads(paths[1].read_text())
    content["rows"][-1] = derived({**content["rows"][-1], "nll": 3.75})
    paths[1].write_text(json.dumps(content))
    for path in paths if not documents else ():
        with np.load(path.with_suffix(".npz")) as stored:
            places = {name: stored[name] for name in ("document", "offset")}
            windows = {
                f"{name}_{length}": stored[name][i].reshape(2, -1)
                for name in LOSS_ARRAYS
                for i, length in enumerate(LENGTHS)
            }
        np.savez(path.with_suffix(".npz"), length=LENGTHS, **places, **windows)
    *plain, weighted = [
        point
        for point in collect_report(paths, "t", COMMAND).sections[0]
        if point.extension == "ntk"
    ]
    assert (weighted.change, weighted.change_half_width) == (pytest.approx(0.75), None)
    assert weighted.nll_half_width is None
    assert all((point.nll_half_width is not None) == documents for point in plain)
    assert all(
        point.change == pytest.approx(0.5) and (point.change_half_width is not None) == documents
        for point in plain
    )


def test_figures_of_a_report_before_are_not_left_beside_the_new(tmp_path):
    out = tmp_path / "out"
    two = [write_eval(tmp_path, "rope", "none", "none", flat(0), LENGTHS)]
    two += [
        write_eval(
            tmp_path / "other", "rope", "none", "none", flat(1), LENGTHS, train_len=128, eval_id="x"
        )
    ]
    Built(two, out, "t", COMMAND, pictures="blank")
    for name in ("curve-mine.png", "curve-2.pdf", "notes.md"):
        (out / name).write_text("a reader's own")
    assert (out / "curve-2.svg").exists()
    Built(two[:1], out, "t", COMMAND, pictures="blank")
    assert not list(out.glob("curve-2.[sp][vn]g")) and (out / "curve.svg").exists()
    assert {"curve-mine.png", "curve-2.pdf", "notes.md"} <= {path.name for path in out.iterdir()}
    (out / "report.html").unlink()
    (out / "curve-2.svg").write_text("of something else: no report is here")
    Built(two[:1], out, "t", COMMAND, pictures="blank")
    assert (out / "curve-2.svg").exists()


def test_a_floor_needs_no_more_text_than_its_targets_have_before_them(tmp_path):
    """Eight targets with 64 tokens each take 71: a max_length of 96 holds them, one of 70 does not,
    and the line of G says what does.
    """

    def upto(length):
        paths = []
        for name, loss, window in (
            ("recompute_window", 3.0, None),
            ("recompute_window", 3.1, 32),
            ("none", 3.2, None),
        ):
            args = {"window": window} if name == "recompute_window" else None
            path = write_eval(
                tmp_path / str(length),
                "rope",
                name,
                "none",
                [np.full(TARGETS, loss)] * 2,
                (64, length),
                args=args,
            )
            paths.append(with_settings(path, max_length=length))
        return collect_report(paths, "t", COMMAND)

    (curve,) = upto(96).sections
    assert [(point.length, round(point.difference, 3)) for point in curve] == [(64, 0.2), (96, 0.2)]
    assert "32 -> 64 tokens of context bring 0.100" in upto(96).parts[0].lines[-1]
    report = upto(70)
    assert {point.difference for point in report.sections[0]} == {None}
    assert "71 tokens or more (evaluate.max_length)" in report.parts[0].lines[-1]


@pytest.mark.parametrize("width", [80, 30])
def test_no_line_is_longer_than_the_terminal_and_no_number_is_lost(tmp_path, width):
    report = collect_report(write_run(tmp_path, "rope"), "Demo", COMMAND)
    text = report.table_text(width=width)
    assert max(map(len, text.splitlines())) <= width
    numbers = re.compile(r"[+-]\d+\.\d+ [<>~]")
    shown = report.parts[0].tables[1].pieces(1000)[0]
    assert sorted(numbers.findall(text)) == sorted(
        str(cell) for row in shown.rows for cell in row if numbers.match(str(cell))
    )
    assert width < 80 or text.count("rope     leaky_rerope none ") == 3  # no cell is folded


def test_lengths_that_another_experiment_added_to_a_file_are_left_out(tmp_path):
    paths = write_run(tmp_path, "rope")
    report = collect_report(
        paths, "t", "x", lengths={path: [64, 256] for path in paths if "recompute" not in path.name}
    )
    (curve,) = report.sections
    assert {point.length for point in curve} == {64, 256} and all(
        point.difference is not None for point in curve
    )
    assert {row["length"] for row in report.rows if row["extension"] != "recompute_window"} == {
        64,
        256,
    }


def test_a_control_is_not_given_the_comparison_of_the_copies(tmp_path):
    """Protocol repeat has two rows of the training length, and stores the losses of the copies for
    both.
    """
    options, losses = {"protocol": "repeat", "task": "copies"}, np.full(TARGETS, 3.0)
    floor = write_eval(
        tmp_path,
        "rope",
        "recompute_window",
        "none",
        [losses] * 2,
        (64, 128),
        args={"window": None},
        **options,
    )
    paths = [floor] + [
        write_eval(tmp_path, "rope", name, "none", [losses + n, losses], (64, 128), **options)
        for n, name in enumerate(("none", "pi"))
    ]
    for path in paths:
        content = json.loads(path.read_text())
        nll = content["rows"][0]["nll"] - 2 + 3 * path.name.startswith("pi")
        control = derived({**content["rows"][0], "task": "control", "nll": nll})
        path.write_text(
            json.dumps({**content, "rows": [content["rows"][0], control, *content["rows"][1:]]})
        )
    report = Built(paths, tmp_path / "report", "Copies", "x")
    for (curve,) in (
        report.sections,
        collect_report([], "Copies", "x", evidence=[tmp_path / "report"]).sections,
    ):
        copies, control = (
            only(curve, extension=f"pi ({task})", length=64) for task in ("copies", "control")
        )
        assert (copies.nll, copies.change, copies.difference) == pytest.approx((4, 1, 1))
        assert (control.nll, control.change, control.difference, control.floor) == (
            5,
            None,
            None,
            None,
        )


def test_what_tells_trainings_of_one_yaml_apart_is_not_said_of_another_of_the_same_class(tmp_path):
    paths = []
    for place, name, gate in (
        ("a", "rope", "none"),
        ("b", "rope", "headwise"),
        ("c", "smollm3", "none"),
    ):
        encoding = shipped_yamls("encoding")[name]
        run = f"rope-64-s0-{place * 10}"
        options = {"encoding_args": method_args(encoding), "run_id": run}
        paths.append(
            write_eval(tmp_path / place, "rope", "none", "none", flat(0), LENGTHS, **options)
        )
        config = {
            "model": {"output_gate": gate},
            "data": {},
            "encoding": encoding,
            "train": {"steps": 1000},
        }
        (paths[-1].parents[2] / "config.yaml").write_text(json.dumps(config))
    names = {point.encoding for point in collect_report(paths, "", COMMAND).sections[0]}
    assert names == {"rope output_gate=none", "rope output_gate=headwise", "smollm3"}


@pytest.mark.parametrize("trained_scale", ["none", 'log_n {"clamp":false}'])
def test_a_model_is_compared_with_itself_without_extension_whatever_scale_it_was_trained_with(
    tmp_path, trained_scale
):
    paths = [
        write_eval(
            tmp_path,
            "rope",
            extension,
            "none",
            [np.full(TARGETS, loss) for loss in losses],
            LENGTHS[:2],
            trained_scale=trained_scale,
        )
        for extension, losses in (("none", (3.0, 4.0)), ("pi", (3.25, 3.5)))
    ]
    points = collect_report(paths, "", "").sections[0]
    changes = {(point.extension, point.length): point.change for point in points}
    assert changes["pi", 64] == pytest.approx(0.25)
    assert changes["pi", 128] == pytest.approx(-0.5)
    assert changes["none", 64] is None
