"""Questions of a newcomer: the section that answers each is at most two clicks from
README.md, and holds the words that matter.
"""

import re
from pathlib import Path

import pytest
from conftest import CONFIGS

ROOT = CONFIGS.parent
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
QUESTIONS = [  # question, page, heading, words of the answer
    ("How do I see something at once?", "README.md", "# posbench", "make demo; minutes; no GPU"),
    (
        "How long does the demo take on my processor?",
        "results/reported/demo/README.md",
        "## On other processors",
        "AVX2; minutes",
    ),
    (
        "What is the floor?",
        "results/README.md",
        "### Reading a curve",
        "train_len; dropping the earlier text",
    ),
    ("How do I run one method?", "README.md", "## One job", "encoding=rope extension=ntk"),
    (
        "How do I compare several with seeds?",
        "README.md",
        "## A sweep",
        "-m; seed=0,1,2; scripts/report.py",
    ),
    ("What does a run cost before I start it?", "scripts/README.md", "## run.py", "dry=true"),
    ("A run was interrupted: what now?", "README.md", "## One job", "Ctrl-C; resumes"),
    ("What do the exit codes mean?", "scripts/README.md", "# scripts", "exit code; a job failed"),
    (
        "Which methods are there, from which papers?",
        "configs/README.md",
        "## Methods",
        "yarn; alibi; log_n",
    ),
    (
        "Which methods go together?",
        "configs/compat.md",
        "# What goes with what",
        "rope; alibi; streaming",
    ),
    ("Can I use my own text?", "configs/README.md", "## Data", "local; data.path"),
    (
        "Can I use my own checkpoint?",
        "README.md",
        "## Your own model",
        "model=hf; model.path",
    ),
    (
        "Which families of models work?",
        "configs/README.md",
        "### Other families",
        "Gemma; DeepSeek",
    ),
    (
        "Can I fine-tune with an extension?",
        "configs/README.md",
        "## Fine-tuning",
        "finetune; steps",
    ),
    ("Can I measure retrieval?", "configs/README.md", "### Tasks", "mqar; passkey"),
    ("Does it run on a cluster?", "configs/README.md", "## Launchers", "submitit_slurm"),
    (
        "How do I reproduce a reported number?",
        "README.md",
        "## Reported numbers",
        "scripts/reproduce.py; compares",
    ),
    ("How do I add a method?", "README.md", "## Adding a method", "_target_; --config-dir"),
    (
        "Which setting should I choose for longer texts?",
        "scripts/README.md",
        "## advise.py",
        "target=; recommends",
    ),
    ("Does my engine do what I asked?", "scripts/README.md", "## identify.py", "engine"),
    (
        "What does this rope_scaling mean elsewhere?",
        "scripts/README.md",
        "## explain.py",
        "vLLM; llama.cpp",
    ),
    ("How do I draw a figure for a paper?", "scripts/README.md", "## plot.py", "y=; size="),
    ("How do I explore results?", "scripts/README.md", "## explore.py", "filter; interval"),
    (
        "Which protocol gives the papers' perplexity?",
        "results/README.md",
        "## Protocols",
        "sliding; disjoint; perplexity",
    ),
    (
        "How are intervals computed?",
        "results/README.md",
        "### Intervals",
        "Student's t; seeds crossed with documents",
    ),
    (
        "What do the columns of a CSV mean?",
        "results/columns.md",
        "# Columns",
        "nll; train_len; nats/token",
    ),
    ("What was found?", "results/reported/README.md", "# Findings", "ten findings"),
    (
        "Sinks and a window, or YaRN?",
        "results/reported/README.md",
        "## 3.",
        "first four tokens; YaRN",
    ),
    (
        "On which text and models were they measured?",
        "results/reported/headline/README.md",
        "## Set-up",
        "sympy; 1.0 M parameters",
    ),
    (
        "What do the findings not show?",
        "results/reported/README.md",
        "## Limits",
        "Size; Text; Seeds",
    ),
    (
        "Which claims of the literature hold?",
        "results/claims/README.md",
        "# Claims",
        "brief.md; confirmed; refuted",
    ),
]


def pages_within(clicks: int) -> set[Path]:
    """Pages of this repository that as many links lead to."""
    pages = reached = {ROOT / "README.md"}
    for _ in range(clicks):
        links = (
            (page.parent / link).resolve()
            for page in reached
            for link in LINK.findall(page.read_text())
            if ":" not in link
        )
        reached = {path / "README.md" if path.is_dir() else path for path in links}
        reached = {path for path in reached if path.suffix == ".md" and path.exists()} - pages
        pages = pages | reached
    return pages


def section(page: str, heading: str) -> str:
    """Text below a heading, until the next of its level or above; code blocks belong to it, and
    their comments are no headings.
    """
    blocks = re.split(r"(^```.*?^```)", (ROOT / page).read_text(), flags=re.S | re.M)
    lines = [
        line
        for block in blocks
        for line in ([block] if block.startswith("```") else block.splitlines())
    ]
    start = next(
        at for at, line in enumerate(lines) if line == heading or line.startswith(f"{heading} ")
    )
    level = (
        heading.partition(" ")[0] if not heading.startswith("# ") else "##"
    )  # of a page: what stands before its sections
    ends = (
        at
        for at, line in enumerate(lines)
        if at > start and re.match(rf"#{{1,{len(level)}}} ", line)
    )
    return " ".join("\n".join(lines[start : next(ends, len(lines))]).split())


@pytest.mark.parametrize(
    "question, page, heading, words", QUESTIONS, ids=[row[0] for row in QUESTIONS]
)
def test_the_answer_stands_where_it_is_looked_for(question, page, heading, words):
    assert not [
        word for word in words.split("; ") if word.lower() not in section(page, heading).lower()
    ]


def test_answers_are_two_clicks_away():
    answering = {ROOT / page for _, page, *_ in QUESTIONS}
    assert answering <= pages_within(2)
    assert not answering <= pages_within(1)
