"""The numbers in the sentences of results/reported/README.md are those of the CSVs, rounded; verdicts are those of the ledger.

A check is a piece of the text with a # for each number, and what the files say there. Every number outside of tables stands in a
check or in SETUP, so that a new sentence needs one of them.
"""

import re
from functools import cache
from pathlib import Path

import pytest
from conftest import CONFIGS
from prose_checks import Check, headline, ledger, projects, repeated, scale, stage2, stage5
from prose_checks_finetune import drope_twin, finetune
from prose_checks_methods import attention, books, catalogue, ladder, matched, newer, rates
from prose_checks_pretrained import advice, gemma3, smollm2, smollm2_books, smollm2_far
from prose_checks_tasks import needles, stage3, tasks
from reported_values import LEDGER, REPORTED, of_seeds, yarn_pairs

PARTS = (
    headline,
    ledger,
    scale,
    projects,
    stage2,
    stage3,
    stage5,
    finetune,
    drope_twin,
    catalogue,
    newer,
    rates,
    ladder,
    matched,
    books,
    smollm2,
    smollm2_books,
    smollm2_far,
    needles,
    gemma3,
    tasks,
    attention,
    advice,
)
NUMBER = r"(?<![\w.=/])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?!\.?\w)"

# What was chosen, or comes from the text, the code or the history: no result of an evaluation. Pieces of the text, apart by semicolons.
SETUP = """9.7 M tokens; BPE of 1,024 entries, 2.19 bytes per token; 0.03 % of the test split's sequences of 32 tokens; 16
machine-written files; less than 64 bytes; 372 of the 512 windows (73 %) and 238 of the 291 documents; 25 windows. A window
needs 1,024 tokens; 106 shortest of the 642; 4 layers, width 128, 2 heads of 64 channels, 1.0 M; 64 tokens of training length,
1,500 steps of 2,048 tokens (3.1 M; last 8 tokens; exactly 64 tokens; Beyond 64 tokens; are 95 %; lower 95 % bound;
(multiplier 1); StreamingLLM: 4 first; suit 64 tokens; 64 tokens of window; Gemma 3; AVX-512; trained on 64 tokens of Python source;
the last 64 tokens keeps; margin of 0.013 either way; of up to 4,096 tokens and in; of those of 8,192: of these; finds
nothing at 16,384 tokens; at 8,192 tokens 0; At 4,096 tokens these; at up to 4,096 tokens, before 8,192;
of 32,768 tokens in five; to 32,768; the
others; length: at 32,768 tokens no extension; DroPE's Table 10; length of 2,048 tokens, of SmolLM-360M; PI 0,
NTK 29.8, YaRN 48.3 percent; of Mistral Large 4, a learned; failing from 8x. Mistral Large 4's; by lot to 64 for
each; than another seed makes (0.09); arXiv 2512.12167; at 64 tokens a model;
its 95 % interval; scored has 1,024 tokens before; (46 of 64 in; slopes at 64
tokens; coordinates up to 1,024; Llama 3's; at 1,024 tokens takes; the last 8 targets; have 57 to 64 tokens of context, the
floor exactly 64; (1,000 steps, three seeds, 256 windows; 20 November, 16:48; code of 18:48 and; committed at 12:09; with 95 %
intervals; holds 10 to 20 % beyond; the 1.3 that was; from multiplier 1 to 2; multiplier 4 is; with multiplier 2 is; than the
0.033 that was; stay within 0.033 of; -0.033 was asked; 193 rows of 14 trainings; by 0.007 nat in the median and 0.042 at
most; 12 rows of four; the 0.03 nat, and a fifth; with 0.06 in its place; (2.78 times that, Student's
t with four degrees of freedom, times the root of 2); with seeds 5 to 12;
made for 256 tokens by at most 100 further steps; after 30 steps). Descriptive;
worse at 256 tokens). What; after 30 steps and after 100, which; Descriptive: after 100 steps; RoPE reads 256 tokens;
count with p = 1; that ReRoPE is better than YaRN by 0.033; holds 10 to 20 % beyond training (H01), undecided after;
 a factor of
2 apart, on seed 100; 2,048 whole windows (131,072; is 1.5 times as high; with 57 to 64 tokens of context each; of the 21
encodings; seed (100); at 2 to 16 times; NTK with multiplier 8; beta 10, ReRoPE with a window of 48; Self-Extend with 32; its
4 sinks; With 64 tokens of training; beta 10 and the published 32; length of 64 tokens breaks; RoPE with base 27; of 4,096
tokens; with base 10,000; beta of 32; base 27 is better; at base 10,000; at base 27; slopes times 16; (4 for the flattest
head; 0.25 as it is; from 128 tokens on; B of 512; over 64 tokens (0.003 nat for; (B 32, 0.045 nat); (threshold 16); published
512; with 192 dimensions; (-6.3, -4.2 with 128); where 128 gains; below 2,048; below 1,024; of 18 British novels; of 10 other
works; more than 16 bytes; from 16 to 32 brings; SmolLM2-135M-Instruct (instruct, 4-bit weights,
dequantised), trained to 8,192 tokens, reads 16,384 tokens; (q below 0.05); nat per token at 2,048 tokens and;
at 8,192, with factor; factor 2 costs; factor 4; distance of 8,192, one more;
 To 8,192 tokens: leave; At 16,384 tokens: cut the text to its last 8,192; with the fixed factor 2 and;
for 32,768 tokens, 1,024 targets; of its 18 pairs; extensions to 32,768; at 32,768 tokens no extension;
more than 4,096 tokens of; from more than 8,192 cannot; at 16,384 tokens, and log-n; The last 8,192 tokens alone; NTK with factor 2
stay; at 2,048 tokens. With factor 4 these; at 2,048 (with factor 4; at 8,192. PI loses; what reads all 16,384 tokens; as in DCA's Table 1;
arXiv 2402.17463; the first 16,384 tokens of these; perplexity at 4,096 tokens; at 8,192 and; at 16,384;
  'lengths=[64,128,256]'; (1,000 steps, one seed): attention of the last 8 queries of 32
windows; From 64 to 256 tokens; lies 64 tokens away or more; at 256 tokens, and; read to 16,384 tokens; read
at 256 tokens on; a model of 64 tokens that reads its last 64; to one of 256 that; refuted: 64 tokens lose; log-n, 32 tokens;
Descriptive: 128 tokens lose; 64 tokens without an; chosen at 64 tokens. The; last tokens of 256; a model of 256 loses; trainings
of 32 tokens and; for those of 128, and; after 32 tokens and; after 128 (against; learned at 64 tokens; models of two layers and width 64;
for 1,000 steps (2,000 of copying); 6,000, since fewer; and asked at up to 16 times; values of 8 pairs. NTK;
nearly all of 8 pairs; not bring ALiBi there (of 8 pairs); Of 8 pairs it finds; none at 4x; seeds 13 to 17; answers
of 4 pairs; with a margin of 0.033; children of trainings on 64 tokens, by at most 100 further steps of 2,048 tokens at; made for 256 tokens
with an; With 0 steps an; validation text of seed 0's; at 256 tokens after 100 steps, YaRN; after 100 steps they are; lower than
no extension after 100 steps; after 100 steps PI loses; to no extension; after 30 the; The cost at 64 tokens: after 100 steps the;
lower than YaRN at 1,024 tokens after 100 steps; of; The second 128 tokens; with YaRN after 100 steps,; Positions skipped at 64
tokens; worse at 256 tokens than texts of 256, and; after 100 steps at 64 tokens it loses; to its parent at 64, and; at 256; the
paper's; lowers the loss at 256 tokens; (three seeds, 100 steps); at 1,024 tokens RoPE finds; of the values of 8 pairs before;
after 100 steps without an extension; retrieval at 64 tokens too; after 100 steps; the others; of the 36 books that;
at 16,384 tokens, and log-n alone; A window over the last 8,192 tokens loses; of what reads all 16,384 tokens; NTK with factor 2 remain;
their cost at 2,048 tokens; at 2,048 tokens, where; In 36 windows of 35 books;
one-sided 95 % bounds of; 2,048 tokens lose; to all 8,192. Who; the 22 books that; for 131,072 tokens, 1,024 targets; so 32,768 tokens are;
above it at 131,072 tokens, as; some 8,192 tokens at every; YaRN with factor 16 is;
floor at 32,768 tokens and; at 131,072, NTK with factor 16; NTK-by-parts with factor 2 is; at 2,048
tokens, but at 32,768 tokens, which are; at 2,048 tokens. Llama 3's; in 4.4 % of the questions at 64
tokens, 14.9 % at 256 and 30.9 % at 1,024 (drawn and counted); Gemma 3 270M (not instructed, 4-bit; trained to 32,768
tokens, of whose 18 layers 15 see windows of 512 tokens, reads 65,536 tokens; up to 46,341 tokens, where; base of 10^6 and
heads of 256 channels"""


@cache
def prose(page: Path = REPORTED / "README.md") -> str:
    """A page in one line, without tables, addresses of links and marks of Markdown."""
    text = re.sub(r"<!--.*?-->|^\|.*$|^!\[.*$", "", page.read_text(), flags=re.M)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[*`]", "", text).split())


@cache
def checks() -> list[Check]:
    return [one for part in PARTS for one in part()]


def pattern(phrase: str) -> re.Pattern:
    return re.compile(re.escape(phrase).replace(re.escape("#"), f"({NUMBER})"))


def rounds_to(shown: str, value: float) -> bool:
    """Whether a number is `value` rounded to the digits that are shown, and its sign, where it has one, the right one."""
    digits = shown.replace(",", "").lstrip("+")
    rounded = f"{value:.{len(digits.partition('.')[2])}f}"
    return digits == rounded or digits == rounded.lstrip("-") and not float(digits)


def wrong(phrase: str, values: list[float], text: str) -> str:
    """What is wrong with a check's place in the text; empty where nothing is."""
    found = list(pattern(phrase).finditer(text))
    if len(found) != 1 or len(found[0].groups()) != len(values):
        return f"'{phrase}' stands {len(found)} times in the text, for {len(values)} numbers"
    pairs = zip(found[0].groups(), values, strict=True)
    return "; ".join(f"{shown} is {value:.5g} in the files: {found[0][0]}" for shown, value in pairs if not rounds_to(shown, value))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_numbers_in_sentences_are_those_of_the_files(part):
    assert not [said for said in (wrong(*check, prose()) for check in part()) if said]


def test_results_that_other_pages_repeat_are_those_of_the_files():
    text = " ".join(prose(REPORTED.parents[1] / page) for page in ("README.md", "results/claims/README.md", "scripts/README.md"))
    assert not [said for said in (wrong(*check, text) for check in repeated()) if said]


def test_every_number_of_the_text_is_checked_or_of_the_set_up():
    text = prose()
    phrases = [" ".join(phrase.split()) for phrase in SETUP.split(";")]
    assert not [phrase for phrase in phrases if phrase not in text], "SETUP: the text no longer says so"
    known = [match.span() for phrase in phrases for match in re.finditer(re.escape(phrase), text)]
    for phrase, _ in checks():
        known += [match.span(group) for match in pattern(phrase).finditer(text) for group in range(1, phrase.count("#") + 1)]
    loose = [one for one in re.finditer(NUMBER, text) if not any(start <= one.start() and one.end() <= end for start, end in known)]
    assert not [text[max(0, one.start() - 40) : one.end() + 20] for one in loose]


def test_rounding():
    pairs = [("0.65", 0.6546), ("+0.00", 0.0012), ("0.00", -0.0002), ("1,024", 1024), ("-0.058", -0.05776), ("3", 3.4)]
    assert all(rounds_to(*pair) for pair in pairs) and not any(rounds_to(shown, value + 1) for shown, value in pairs)
    cut = [("0.66", 0.6546), ("-0.057", -0.05776), ("+0.05", -0.05), ("0.187", 0.18776), ("-0.00", 0.001), ("265", 310)]
    assert not any(rounds_to(*pair) for pair in cut)


def test_yarns_tuned_beta_is_the_published_one():
    """As frequencies, and so in every reported loss."""
    assert yarn_pairs(10.0) == yarn_pairs(32.0) != yarn_pairs(None)
    for times in (1, 2, 4, 8, 16):
        tuned = of_seeds("ladder", "rope|yarn beta=10.0 mode=dynamic", times)
        assert len(tuned) == 3 and tuned == of_seeds("matched", "rope base=10000.0|yarn beta=32.0", times)


@pytest.mark.slow
def test_whose_windows_are_scored(tmp_path):
    """Counted from the default text, whose tokenizer is trained anew."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from posbench.data import prepare
    from posbench.evaluation.windows import choose

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        corpus = prepare(OmegaConf.to_container(compose("run").data), tmp_path)
    project_D = [name.partition("/")[0] for name in corpus.test.names]
    scored = choose(corpus.test, 1024, 512, 8, 0).document_N.tolist()
    ours = [document for document in scored if project_D[document] == "networkx"]
    short = int((corpus.test.document_lengths() <= 1024).sum())
    text = prose()
    for check in [
        ("networkx: # of the # windows (# %)", [len(ours), len(scored), 100 * len(ours) / len(scored)]),
        ("and # of the # documents", [len(set(ours)), len(set(scored))]),
        ("function_docs.py, gives # windows", [scored.count(corpus.test.names.index("mpmath/function_docs.py"))]),
        ("so the # shortest of the # test files", [short, len(project_D)]),
    ]:
        assert not wrong(*check, text)


HEADINGS = {
    1: "## Claims of the literature",
    2: "## Claims, stage two so far",
    3: "## Claims, stage three",
    5: "## Claims, stage five so far",
}
JUDGED = [one for one in LEDGER if one.primary and one.stage in HEADINGS and one.effect is not None]


def bullets(stage: int) -> list[str]:
    section = (REPORTED / "README.md").read_text().partition(HEADINGS[stage])[2].partition("\n## ")[0]
    return [" ".join(bullet.split()) for bullet in section.split("\n- ")[1:]]


@pytest.mark.parametrize("stage, claim", sorted({(one.stage, one.claim) for one in JUDGED}))
def test_verdicts_in_sentences_are_those_of_the_ledger(stage, claim):
    """A bullet headed by a claim names the verdict of each of its primaries, and says where one is the interval's alone."""
    for bullet in bullets(stage):
        if re.search(rf"^\*\*[^*]*\b{claim}\b", bullet):
            for one in (one for one in JUDGED if (one.stage, one.claim) == (stage, claim)):
                assert one.verdict in bullet.lower(), f"{claim} {one.endpoint} is {one.verdict}: {bullet}"
                if one.by_interval not in (None, one.verdict):
                    assert f"{one.by_interval} alone" in bullet and "undecided after the correction" in bullet, bullet
