"""Figures of one's own: the numbers drawn are the frame's in the unit asked for, every word does
what it says, and nothing overlaps.
"""

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest
from conftest import CONFIGS
from matplotlib.colors import to_hex, to_rgb
from script_calls import call
from synthetic import write_run

import posbench
from posbench.report.figures.lines import Mark
from posbench.report.figures.method_lines import lines_of_methods, panel_groups
from posbench.report.figures.palette import shades
from posbench.report.figures.paper import SIZES
from posbench.report.figures.style import FOREIGN_COLOURS
from posbench.report.frame import record_frame, records_of_frame
from posbench.report.plot import Options, draw_figure
from posbench.report.records import CurvePoint
from posbench.report.report import collect_report

ROOT = CONFIGS.parent
REPORTED = ROOT / "results" / "reported"
SHOWN = "\n".join(
    (ROOT / page / "README.md").read_text() for page in ("scripts", "results/reported")
)
EXAMPLES = re.findall(r"^python scripts/plot.py (.* out=\S+)$", SHOWN, re.M)


@pytest.fixture(scope="module")
def headline():
    return posbench.frame(REPORTED / "headline")


def find(axes, xs, ys):
    """The line that is drawn through these values; lines stand side by side within half an octave
    of x.
    """
    for line in axes.lines:
        x, y = map(np.asarray, line.get_data())
        if (
            len(y) == len(ys)
            and np.allclose(y.astype(float), ys, rtol=1e-9)
            and np.allclose(np.log2(x.astype(float)), np.log2(xs), atol=0.26)
        ):
            return line
    raise AssertionError(f"no line through {ys}")


def bars(axes):
    return {
        tuple(np.round(segment[:, 1], 9))
        for collection in axes.collections
        if hasattr(collection, "get_segments")
        for segment in collection.get_segments()
    }


def texts_of(svg):
    return [
        " ".join(node.itertext())
        for node in ElementTree.parse(svg).iter()
        if node.tag.endswith("}text")
    ]


def line_of(frame, encoding, extension="none", scale="none"):
    rows = frame[
        (frame.encoding == encoding)
        & (frame.extension == extension)
        & (frame.scale_attention == scale)
    ]
    return rows.sort_values("length")


def of(name, half):
    return lambda rows, sign=0: rows[name] + sign * rows[half]


DIFFERENCE, CHANGE = of("difference", "half_width"), of("change", "change_half_width")
LOSS = of("nll", "nll_half_width")
UNITS = {  # (y, reference): value, end of the interval
    ("nats", "none"): (LOSS, LOSS),
    ("ppl", "none"): (lambda rows: np.exp(rows.nll), lambda rows, sign: np.exp(LOSS(rows, sign))),
    ("bpb", "none"): (
        lambda rows: rows.bpb,
        lambda rows, sign: LOSS(rows, sign) * rows.bpb / rows.nll,
    ),
    ("difference", None): (DIFFERENCE, DIFFERENCE),
    ("change", None): (CHANGE, CHANGE),
    ("ppl", "floor"): (
        lambda rows: np.exp(rows.nll) / np.exp(rows.floor),
        lambda rows, sign: np.exp(DIFFERENCE(rows, sign)),
    ),
    ("bpb", "floor"): (
        lambda rows: rows.bpb * (1 - rows.floor / rows.nll),
        lambda rows, sign: DIFFERENCE(rows, sign) * rows.bpb / rows.nll,
    ),
    ("ppl", "rope"): (
        lambda rows: np.exp(rows.change),
        lambda rows, sign: np.exp(CHANGE(rows, sign)),
    ),
}


@pytest.mark.parametrize(("y", "reference"), UNITS)
def test_values_and_intervals_are_those_of_the_frame_in_every_unit(headline, y, reference):
    axes = posbench.plot(
        headline,
        y=y,
        reference=reference,
        lines="rope|yarn|none, rope|rerope|none",
        ylim=(-20, 300),
    )
    value, end = UNITS[y, reference]
    for extension in ("yarn", "rerope"):
        rows = line_of(headline, "rope", extension)
        find(axes, rows.length.astype(float), value(rows).to_numpy())
        intervals = {
            tuple(np.round(pair, 9)) for pair in zip(end(rows, -1), end(rows, 1), strict=True)
        }
        assert intervals <= bars(axes) and len(bars(axes)) == 2 * len(intervals)


T_OF_2 = 4.302652729911275  # 97.5 % quantile of Student's t with 2 degrees of freedom
T_OF_202 = 1.971777


def test_a_line_of_other_trainings_is_subtracted_over_the_seeds_that_both_have(headline):
    figure, caption = draw_figure(
        headline, Options(y="nats", reference="hybrid", lines="alibi|none|none")
    )
    (axes,) = figure.axes
    mine, theirs = line_of(headline, "alibi"), line_of(headline, "hybrid")
    find(axes, mine.length.astype(float), mine.nll.to_numpy() - theirs.nll.to_numpy())
    differences = np.array([*mine.nll_by_seed]) - np.array([*theirs.nll_by_seed])
    half = T_OF_2 * differences.std(1, ddof=1) / np.sqrt(3)
    mean = differences.mean(1)
    assert bars(axes) == {
        tuple(np.round(pair, 9)) for pair in zip(mean - half, mean + half, strict=True)
    }
    assert "the 3 seeds that both lines have" in " ".join(caption())


def test_with_one_shared_seed_its_difference_is_drawn(tmp_path):
    paths = write_run(tmp_path, "rope", 0)
    for seed in range(3):
        paths += write_run(tmp_path, "alibi", seed)
    points = [point for section in collect_report(paths, "", "").sections for point in section]
    frame = record_frame(points, CurvePoint)
    options = Options(y="nats", reference="alibi", lines="rope|none|none")
    figure, _ = draw_figure(frame, options)
    (axes,) = figure.axes
    of_rope, of_alibi = line_of(frame, "rope"), line_of(frame, "alibi")
    shared = np.array([*of_rope.nll_by_seed])[:, 0] - np.array([*of_alibi.nll_by_seed])[:, 0]
    assert not np.allclose(shared, of_rope.nll.to_numpy() - of_alibi.nll.to_numpy(), atol=1e-4)
    find(axes, of_rope.length.astype(float), shared)


def test_intervals_of_a_loss_are_over_documents_or_over_seeds_where_only_rows_are_there():
    demo, rows = posbench.frame(REPORTED / "demo"), posbench.rows(REPORTED / "demo")
    (mean,) = line_of(demo, "alibi")[lambda line: line.length == 64].itertuples()
    plain = rows[(rows.encoding == "alibi") & (rows.length == 64) & (rows.extension == "none")]
    assert mean.nll_half_width == pytest.approx(T_OF_202 * plain.nll_sem.item(), rel=1e-5)
    assert mean.nll_over == "document" and mean.n_units == 203
    books = line_of(posbench.frame(REPORTED / "books"), "rope")
    losses = np.array([*books.nll_by_seed])
    assert books.nll_half_width.to_numpy() == pytest.approx(
        T_OF_2 * losses.std(1, ddof=1) / np.sqrt(3)
    )
    assert set(books.nll_over) == {"seeds"} and set(books.seeds) == {(0, 1, 2)}


SAID = {  # (folder, y, bars): what caption and footnote say of bars
    ("headline", "ppl", "interval"): "of the loss, over 5 seeds crossed with 291 documents",
    ("headline", "difference", "interval"): "paired difference, over 5 seeds crossed with 291",
    ("headline", "ppl", "seeds"): "Thin lines: the 5 seeds of each mean",
    ("headline", "ppl", "none"): "Scales: x logarithmic; y linear.",
    ("books", "ppl", "interval"): "of the loss, over 3 seeds alone",
    ("demo", "ppl", "interval"): "of the loss, over 203 documents (one seed)",
    ("demo", "ppl", "seeds"): "No lines of seeds: one seed: train more (seed=0,1,2)",
    ("catalogue", "ppl", "interval"): "No bars: one seed, and the losses of its targets are",
}


@pytest.mark.parametrize(("folder", "y", "kind"), SAID)
def test_caption_and_footnote_say_which_bars_there_are(folder, y, kind):
    frame = posbench.frame(REPORTED / folder)
    options = Options(y=y, bars=kind, lines="rope|none|none", panel="none")
    figure, caption = draw_figure(frame, options)
    footnote = figure.texts[-1].get_text().replace("\n", " ")
    for text in (footnote, " ".join(caption())):
        assert SAID[folder, y, kind] in text
        assert "paired difference, as compare.py" not in text  # of one line
        assert ("ars: " in text) == (kind == "interval")
    assert bool(bars(figure.axes[0])) == ("95 %" in footnote)


def test_intervals_that_would_hide_the_lines_are_drawn_where_they_are_asked_for():
    frame = posbench.frame(REPORTED / "engines")
    drawn, in_caption = {}, {}
    for kind in (None, "interval"):
        options = Options(y="nats", bars=kind, panel="none", lines="rope|yarn, rope|ntk")
        figure, caption = draw_figure(frame, options)
        drawn[kind] = len(bars(figure.axes[0]))
        in_caption[kind] = "differ more from text to text" in " ".join(caption())
    assert drawn == {None: 0, "interval": 4} and in_caption == {None: True, "interval": False}


def test_seeds_are_thin_lines_behind_the_mean(headline):
    axes = posbench.plot(headline, y="ppl", lines="alibi|none|none", bars="seeds")
    rows = line_of(headline, "alibi")
    mean = find(axes, rows.length.astype(float), np.exp(rows.nll.to_numpy()))
    for values in np.exp(np.array([*rows.nll_by_seed])).T:
        line = find(axes, rows.length.astype(float), values)
        assert line.get_linewidth() < mean.get_linewidth() / 2
        assert line.get_zorder() < mean.get_zorder()
        assert list(line.get_xdata()) == [64, 128, 256, 512, 1024]
    assert not bars(axes)


def test_x_is_length_a_multiple_of_the_training_length_or_the_middle_of_bins_of_positions():
    frame = posbench.frame(REPORTED / "frontier")
    panels = posbench.plot(frame, x="multiple", panel="train_len", lines="rope|none|none")
    assert [axes.get_title("left") for axes in panels] == [
        f"trained at {length}" for length in frame.train_len.unique()
    ]
    for axes, length in zip(panels, frame.train_len.unique(), strict=True):
        rows = line_of(frame[frame.train_len == length], "rope")
        find(axes, rows.length.astype(float) / length, rows.difference.to_numpy())
    frame = posbench.frame(REPORTED / "pretrained")
    axes = posbench.plot(frame, y="ppl", log="x,y", xlim=(1, None))
    rows = line_of(frame, "rope", "yarn")
    ends = rows.length.to_numpy(float)
    find(axes, np.sqrt((np.append(0, ends[:-1]) + 1) * ends), np.exp(rows.nll.to_numpy()))
    assert axes.get_yscale() == "log" and axes.get_xlim()[0] == 1
    late = posbench.plot(frame)
    assert late.get_yscale() == "linear" and late.get_xlim()[0] > 8192 / 16


def test_without_words_names_colours_and_panels_are_those_of_the_report(headline):
    curve = records_of_frame(headline)
    for axes, group in zip(posbench.plot(headline), panel_groups(curve), strict=True):
        assert axes.get_title("left") == group.heading
        expected_colours = {
            line.name: line.pen.colour
            for line in lines_of_methods(group.points, curve, lambda point: Mark(point.length, 0.0))
        }
        shown_colours = {
            text.get_text().replace("\n", " "): text.get_color() for text in axes.texts
        }
        assert {name: shown_colours.get(name) for name in expected_colours} == expected_colours


def test_lines_are_chosen_by_name_in_order_and_renamed(headline):
    labels = {"alibi": "ALiBi", "rope|yarn": "ours"}
    options = Options(
        lines="alibi|none|none, rope + yarn|none, *|streaming", panel="encoding", labels=labels
    )
    figure, caption = draw_figure(headline, options)
    assert [axes.get_title("left") for axes in figure.axes][:2] == ["ALiBi", "rope"]
    names = [{text.get_text() for text in axes.texts} for axes in figure.axes]
    assert "no extension" in names[0] and {"ours", "streaming"} <= names[1] and "pi" not in names[1]
    assert "291 documents" in " ".join(caption()) and "95 % t interval" in " ".join(caption())


def test_two_sweeps_are_told_apart_and_a_paper_stands_beside_them(tmp_path, capfd):
    (tmp_path / "paper.csv").write_text(
        "encoding,length,ppl,low,high,train_len\nrope,64,20,18,23,64\nrope,128,30,25,31,64\n"
    )
    folders = [REPORTED / name for name in ("demo", "headline")]
    words = "lines=rope|none|none y=ppl panel=none out=here format=svg,pdf,png size=column"
    words = ["demo", str(folders[1]), "paper.csv", *words.split()]
    done = call(capfd, tmp_path, "plot", *words, pictures=True)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "here").iterdir())
    assert [path.name for path in files] == [
        f"demo-ppl.{ending}" for ending in ("pdf", "png", "svg")
    ]
    assert f"svg  {files[2].relative_to(tmp_path)}" in done.stdout
    shown_texts = texts_of(files[2])
    assert (
        all(f"({name})" in " ".join(shown_texts) for name in ("demo", "headline", "paper.csv"))
        and "perplexity" in shown_texts
    )
    assert files[0].read_bytes().startswith(b"%PDF") and b"/FontFile2" in files[0].read_bytes()
    from PIL import Image

    assert Image.open(files[1]).width == 3.3 * 400
    frames = [
        posbench.frame(folders[0]).assign(source="demo"),
        posbench.frame(folders[1]).assign(source="headline"),
    ]
    frames.append(posbench.frame([folders[0], tmp_path / "paper.csv"]).dropna(subset="source"))
    axes = posbench.plot(pandas.concat(frames), y="ppl", lines="rope|none|none", panel="none")
    lines = [
        find(axes, rows.length.astype(float), np.exp(rows.nll.to_numpy()))
        for rows in (line_of(frame, "rope") for frame in frames)
    ]
    ours, again, theirs = (to_hex(line.get_color()) for line in lines)
    blues = {colour.lower() for colour in shades(0)}
    assert {ours, again} <= blues and theirs in FOREIGN_COLOURS
    assert (
        len({(str(line._dash_pattern), line.get_marker()) for line in lines}) == 3
        and lines[2].get_marker() == "x"
    )
    assert {(18.0, 23.0), (25.0, 31.0)} < bars(axes)


def test_a_folder_without_tasks_is_named_beside_one_with_them(tmp_path, capfd):
    done = call(
        capfd,
        tmp_path,
        "plot",
        "tasks",
        "demo",
        "y=accuracy",
        "panel=task",
        "lines=rope",
        "format=svg",
        "out=here.svg",
    )
    assert (
        done.returncode == 0
        and "nothing of this kind: demo" in done.stdout
        and (tmp_path / "here.svg").exists()
    )


def test_accuracy_has_its_own_intervals():
    frame = posbench.frame(REPORTED / "tasks", "accuracy")
    panels = posbench.plot(frame, panel="task", lines="rope|rerope")
    for axes, task in zip(panels, frame.task.unique(), strict=True):
        rows = line_of(frame[frame.task == task], "rope", "rerope")
        find(axes, rows.length.astype(float), rows.accuracy.to_numpy())
        assert {tuple(np.round(pair, 9)) for pair in zip(rows.low, rows.high, strict=True)} == bars(
            axes
        )


def test_a_frame_of_few_columns_is_drawn():
    frame = pandas.DataFrame(
        {"encoding": "rope", "length": [64, 128], "train_len": 64, "nll": [3.0, 3.5]}
    )
    find(posbench.plot(frame), frame.length.astype(float), frame.nll)
    exploded = posbench.plot(frame.assign(nll=[3.0, 900.0]), y="ppl", log="x,y")
    assert 3 <= len(exploded.get_yticks()) <= 10


def overlaps(figure):
    """Texts that leave the figure, and pairs of them that lie over each other."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [
        artist
        for artist in figure.findobj(lambda artist: hasattr(artist, "get_text"))
        if artist.get_text().strip() and artist.get_visible()
    ]
    boxes = [(artist.get_text(), artist.get_window_extent(renderer)) for artist in texts]
    out = [
        text
        for text, box in boxes
        if box.x0 < -1 or box.y0 < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1
    ]
    crossing = [
        (a, b)
        for n, (a, box) in enumerate(boxes)
        for b, other_box in boxes[:n]
        if box.padded(-1.5).overlaps(other_box.padded(-1.5))
    ]
    return out, crossing


@pytest.mark.parametrize(
    ("size", "style"), [*((size, "paper") for size in SIZES), ("page", "dark")]
)
@pytest.mark.parametrize(
    ("folder", "options"),
    [
        (
            "demo",
            {
                "lines": "rope|none, rope|rerope|none, alibi",
                "title": "A title that takes more than one line of a column",
            },
        ),
        ("demo", {"y": "ppl", "log": "x,y"}),
        ("demo", {"ylim": (-0.1, 0.1), "xlim": (64, 600)}),
        (
            "smollm2_books",
            {"y": "bpb", "lines": "rope|none, rope|dca, rope|rerope", "panel": "none"},
        ),
        ("pretrained", {"y": "change"}),
    ],
)
def test_no_text_overlaps_or_leaves_a_figure(folder, options, size, style):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure, _ = draw_figure(
        posbench.frame(REPORTED / folder), Options(size=size, style=style, **options)
    )
    FigureCanvasAgg(figure)
    assert overlaps(figure) == ([], [])
    leaders = [
        line.get_xdata()
        for axes in figure.axes
        for line in axes.lines
        if line.get_transform() == axes.transAxes
    ]
    assert leaders and all(max(xs) == xs[-1] for xs in leaders)
    width, height = SIZES[size]
    assert figure.get_figwidth() * 72 == pytest.approx(width) and (
        height is None or figure.get_figheight() * 72 == pytest.approx(height)
    )
    ground = to_rgb(figure.get_facecolor())
    assert (sum(ground) < 0.5) == (style == "dark")
    for text in figure.findobj(
        lambda artist: hasattr(artist, "get_text") and artist.get_text().strip()
    ):
        light, dark = sorted((luminance(to_rgb(text.get_color())), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 2, text.get_text()


def luminance(rgb):
    return sum(
        weight * (channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4)
        for weight, channel in zip((0.2126, 0.7152, 0.0722), rgb, strict=True)
    )


def test_every_committed_picture_has_one_command():
    pictures = [Path(shlex.split(words)[-1].removeprefix("out=")).name for words in EXAMPLES]
    assert sorted(pictures) == sorted(path.name for path in (REPORTED / "plots").glob("*.svg"))


@pytest.mark.parametrize("words", EXAMPLES)
def test_the_pictures_of_the_pages_are_those_of_its_commands(words, tmp_path, capfd):
    *words, out = shlex.split(words)
    committed = ROOT / out.removeprefix("out=")
    done = call(capfd, ROOT, "plot", *words, f"out={tmp_path / committed.name}", pictures=True)
    assert done.returncode == 0, done.stderr
    texts = [texts_of(path) for path in (tmp_path / committed.name, committed)]
    assert texts[0] == texts[1] and len(texts[0]) > 10, "make plots"


def test_a_report_draws_the_bars_that_are_chosen(tmp_path, capfd):
    words = [f"runs=[{REPORTED / 'demo'}]", "report_dir=out"]
    done = call(capfd, tmp_path, "report", *words, "bars=seeds")
    assert done.returncode == 0, done.stderr
