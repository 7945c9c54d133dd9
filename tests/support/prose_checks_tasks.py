"""What results/reported/README.md says of tasks in numbers, and what the files say: as in prose_checks.py."""

from prose_checks import Check
from reported_values import REPORTED, answers_apart, claim, rows, scored, scores, wide, within

from posbench.report.points import read_points
from posbench.report.scores import LEARNED, Score


def tasks() -> list[Check]:
    """Of retrieval at 64 to 1,024 tokens, beside the loss of other models on text."""

    def far(method: str, times: int = 16, task: str = "mqar 8 pairs") -> list[float]:
        return within(scored("tasks", task, method, times))

    parts = ("mqar 4 pairs", "mqar 8 pairs", "copy")
    learned, by_fox = ([far(name, 1, part)[0] for name in names for part in parts] for names in (("rope", "p_rope", "hybrid"), ("fox",)))
    none_copied = [far(name, 2, "copy")[0] for name in ("rope", "p_rope", "rope|pi", "rope|streaming")]
    far_copies = {(method, *rest): score.accuracy for (task, method, *rest), score in scores("tasks").items() if task == "copy"}
    at_16 = [share for (method, *_, times), share in far_copies.items() if times == 16 and method != "fox"]
    assert not any(none_copied) and not any(at_16) and not far("alibi", 4, "copy")[0] and scored("tasks", "copy", "fox", 1).n_seeds == 2
    assert far("rope|pi")[2] < far("rope")[1]
    assert far("rope|streaming")[2] < far("rope")[1] and far("rope|streaming")[2] < far("rope|ntk")[1]
    return [
        ("floor at 16x (# +- # in", wide("headline", "rope|streaming", 16)),
        ("and find # [#, #] of the values", far("rope|streaming")),
        ("NTK is # +- # above the floor there and finds # [#, #]", [*wide("headline", "rope|ntk", 16), *far("rope|ntk")]),
        ("RoPE as it is, # +- # above it, finds # [#, #]", [*wide("headline", "rope", 16), *far("rope")]),
        ("at 16x, # and #, YaRN #, and without any", [far(f"rope|{name}")[0] for name in ("rerope", "self_extend", "yarn")]),
        ("the hybrid # and FoX # [#, #]. PI, with # [#, #], finds", [far("hybrid")[0], *far("fox"), *far("rope|pi")]),
        ("At 2x Self-Extend copies # [#, #]", far("rope|self_extend", 2, "copy")),
        ("YaRN # [#, #], NTK # [#, #];", [*far("rope|yarn", 2, "copy"), *far("rope|ntk", 2, "copy")]),
        ("none of # with any seed", [scored("tasks", "copy", "rope", 2).n_texts]),
        (
            "is undecided, # [#, #]. At 4x Self-Extend copies # [#, #]",
            [*far("rope|rerope", 2, "copy"), *far("rope|self_extend", 4, "copy")],
        ),
        (
            ": # [#, #] at 2x, # [#, #] at 4x, # [#, #] at 8x, and at 16x # [#, #],",
            [value for times in (2, 4, 8, 16) for value in far("fox", times, "copy")],
        ),
        ("At 16x its loss is # +- # above the floor", wide("headline", "alibi", 16)),
        ("8 pairs it finds # [#, #] inside the window and # [#, #] there", [*far("alibi", 1), *far("alibi")]),
        ("copies # [#, #] inside, # [#, #] at 2x and none", [*far("alibi", 1, "copy"), *far("alibi", 2, "copy")]),
        ("rises by # +- #, a model finds # [#, #] inside and # [#, #] at", [*wide("headline", "none", 16), *far("none", 1), *far("none")]),
        ("right in at least # of all answers, and FoX in at least #.", [min(learned), min(by_fox)]),
        ("copies # of all strings", [far("none", 1, "copy")[0]]),
    ]


def needles() -> list[Check]:
    """Of SmolLM2-135M-Instruct, whose training length is 8,192 tokens: a number in noise, in its chat template."""
    asked = "niah_single_1 chat"

    def found(method: str, times: float = 2, task: str = asked) -> list[float]:
        return within(scored("needles", task, method, times))

    def worse(of: str, minus: str, times: int = 2) -> list[float]:
        return answers_apart("needles", of, minus, asked, times)

    def four(method: str) -> list[float]:
        return worse(method, "rope|self_extend", 4)

    plain, every = (scored("needles", asked, method, 2) for method in ("rope", "rope|self_extend"))
    in_words = ("passkey", "niah_multikey_2", "niah_single_1")
    assert max(found("rope", 1, task)[0] for task in in_words) < LEARNED
    best = scored("needles", asked, "rope|self_extend", 4)
    longest, longer = (
        {row["max_distance"] for row in rows("needles") if (row["extension"], row["length"]) == ("self_extend", length)}
        for length in (16384, 32768)
    )
    short = (1 / 8, 1 / 4, 1 / 2)
    assert [found("rope", times)[0] for times in short] == [1, 1, 1]
    points = [one for one in read_points(REPORTED / "needles" / "accuracy.csv", Score) if one.task == asked]
    far = {(one.extension, one.depth): one.accuracy for one in points if one.length == 32768 and one.depth is not None}
    for method in ("streaming", "lm_infinite"):
        assert [depth for (name, depth), share in far.items() if name == method and share] == [1]
    assert len(longest) == len(longer) == 1
    points = [one for one in points if one.length <= 16384 and one.setting.startswith("10 ")]
    deep = {(one.extension, one.length, one.depth): one.accuracy for one in points}
    assert deep["none", 8192, 0] == 0
    for method in ("streaming", "lm_infinite"):
        assert [deep[method, 16384, depth] for depth in (0, 0.25, 0.5, 0.75, 1)] == [0, 0, 0, 0, 1]
    return [
        ("and in # [#, #] of those of 8,192", found("rope", 1)),
        (", # [#, #], and its -ln p of the answers is # +- # nats", [*found("rope"), plain.nll, plain.half_width]),
        (", # [#, #], those at the very", found("rope|self_extend")),
        ("too, with an -ln p of # +- # nats; no", [every.nll, every.half_width]),
        ("no distance is longer than # with it", [*longest]),
        ("YaRN finds # [#, #]; that it answers", found("rope|yarn")),
        ("worse is undecided (# [#, #] nats), better", worse("rope|yarn", "rope|self_extend")),
        ("better than no extension it does (# [#, #])", worse("rope", "rope|yarn")),
        ("NTK finds # [#, #] and answers # [#, #] nats worse", [*found("rope|ntk"), *worse("rope|ntk", "rope|yarn")]),
        ("PI # [#, #] and # [#, #] worse", [*found("rope|pi"), *worse("rope|pi", "rope|yarn")]),
        ("at that length, find # [#, #] and # [#, #]:", [*found("rope|streaming"), *found("rope|lm_infinite")]),
        ("farther from the floor, answers # [#, #] nats better", worse("rope|streaming", "rope|yarn")),
        (
            ", # [#, #], with an -ln p of # +- # nats and no distance longer than #.",
            [*found("rope|self_extend", 4), best.nll, best.half_width, *longer],
        ),
        ("Of YaRN it is # [#, #], and that it answers worse stays undecided (# [#, #] nats)", [*found("rope|yarn", 4), *four("rope|yarn")]),
        ("a window find # [#, #] and LM-Infinite # [#, #], the one", [*found("rope|streaming", 4), *found("rope|lm_infinite", 4)]),
        ("and sinks answer # [#, #] nats worse than", four("rope|streaming")),
        ("as it is the model finds # [#, #], # [#, #] nats worse", [*found("rope", 4), *four("rope")]),
        ("NTK finds # [#, #] of them and is # [#, #] nats behind", [*found("rope|ntk", 4), *worse("rope|ntk", "rope|yarn", 4)]),
        ("PI # [#, #] and # [#, #] behind it", [*found("rope|pi", 4), *worse("rope|pi", "rope|yarn", 4)]),
        (
            "at 8,192 tokens # [#, #] of passkeys, # [#, #] of RULER's niah_multikey_2 and # [#, #] of niah_single_1",
            [value for task in in_words for value in found("rope", 1, task)],
        ),
        ("At 4,096 tokens these are # [#, #], # [#, #] and # [#, #]", [value for task in in_words for value in found("rope", 1 / 2, task)]),
        ("chat template # [#, #] of passkeys", found("rope", 1 / 2, "passkey chat")),
    ]


def stage3() -> list[Check]:
    with_sink = 'rope trained with learned_sink {"init":0.0}'
    return [
        ("its loss stays # [#, #] bits per byte from the floor", claim("S09 window", stage=3)),
        ("needs no first tokens beside it, is undecided (# [#, #] with", claim("S09 first tokens", stage=3)),
        ("without a learned sink the difference is # [#, #]", claim("S09 first tokens without a sink", stage=3)),
        ("a model trained with it loses # [#, #] less", claim("S09 cost of a sink at 1x", -1, stage=3)),
        ("fails with it too: # +- # nats above its floor", wide("claims3", with_sink, 16, data="pysource")),
        ("# +- # without it", wide("claims3", "rope", 16, data="pysource")),
        ("sinks with a window are # [#, #] lower in loss than ReRoPE", claim("S12 order by loss", -1, stage=3)),
        ("right in # [#, #] fewer of the answers", claim("S12 order by accuracy", stage=3)),
        ("keeps its loss is refuted (# [#, #])", claim("S12 ALiBi's accuracy", stage=3)),
        ("keeps its loss is undecided (# [#, #] with", claim("S12 ALiBi's loss", stage=3)),
        ("RoPE as it is gives # [#, #], and", within(scored("claims3", "mqar 4 pairs", "rope", 16))),
        ("its loss is # +- # nats above the floor", wide("claims3", "rope", 16, data="pysource+mqar")),
    ]
