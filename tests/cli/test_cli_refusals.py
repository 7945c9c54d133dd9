"""Command lines that are not carried out: one sentence names what was typed and the way out."""

import pytest
from script_calls import call

from posbench.cli.key_help import explain_words, keys_and_folders
from posbench.common.errors import ConfigError

NO_LIST = "must be a list of positive whole numbers"
NEAR_MISSES = [
    ("model.n_heads=3", "(did you mean model.n_head?)"),
    ("lr=1", "(did you mean train.lr?)"),
    ("encoding.rope_theta=5", "(did you mean encoding.base?)"),
    ("batch_size=4", "(did you mean train.tokens_per_step, in tokens: sequences times"),
    ("extension=window window=5", "(did you mean encoding.window or extension.window?)"),
    ("extension=none extension.foo=4", "there is no such key; --cfg job prints all of them"),
    (
        "hydra.launcher.partition=gpu",
        "hydra.launcher.partition is no key of the chosen launcher: choose"
        " hydra/launcher=submitit_slurm, or leave it out",
    ),
    (
        "hydra/launcher=submitit_slurm hydra.launcher.partion=gpu",
        "hydra.launcher.partion is no key of a launcher (did you mean partition?): --cfg hydra -p"
        " hydra.launcher prints",
    ),
    ("data_path=notes.txt", "(did you mean data.path, of data=books or local?)"),
    ("finetune.steps=3", "(it is of finetune=longer)"),
    ("train.seed=1", "(did you mean seed?)"),
    ("encoding=yarn", "(did you mean extension=yarn?)"),
    ("extension=linear", "(did you mean pi?)"),
    ("extension=yarn extension.beta_slow=2", "(did you mean extension.alpha?)"),  # their beta_fast
    ("encoding=null", "encoding=null does not name a choice of its group"),
    ("log=offline", "log=offline is unknown: choose from default; "),
    ("log.mode=off", "(did you mean disabled?)"),
    ("encoding", "encoding is not NAME=VALUE: write it without spaces"),
    (
        "evaluate.lengths=[64,",
        "evaluate.lengths=[64, cannot be read to its end: quote words with brackets",
    ),
    ("seed=0,1", "seed=0,1 names several values: add -m to take each."),
    (
        "train.length=64,128",
        "add -m to take each, or type 'train.length=[64,128]' for one list",
    ),
    ("train.length=32,64 --cfg job", "train.length=32,64 names several values"),
    ("train.scale_attention=5", "refused: train.scale_attention=5 does not name"),
    ("seed=0 --foo", "--foo is not a flag"),
    ("seed=0 --cfg everything", "everything"),
    ("seed=0 --resolve", "--resolve"),
]
WITHOUT_EFFECT = [
    ("-m +jbos=1,2", "refused: +jbos=1 adds a key that nothing reads (did you mean jobs?): --cfg"),
    ("+model.checkpoint={a:1}", "+model.checkpoint={a:1} sets a value that posbench fills in"),
    ("~seed", "~seed removes a key that posbench needs"),
    (
        "+hydra.launcher._target_=somebody.Else",
        "refused: somebody.Else is not supported for trainings: choose hydra/launcher=grid",
    ),
    ("--config-dir nowhere", "refused: --config-dir nowhere is not a folder"),
    (
        "-m seed=0,1 extension=none,pi extension.mode=fixed",
        "refused: extension=none: Could not override 'extension.mode': there is no such key (it is"
        " of extension=",
    ),
    (
        "-m extension=pi,yrn extension.mode=fixed",
        "refused: extension=yrn is unknown (did you mean yarn?)",
    ),
    (
        "evaluate.protocol=sliding evaluate.targets=2",
        "refused: evaluate.targets=2 sets the last tokens of each window, and",
    ),
    (
        "evaluate.protocol=by_position evaluate.floor_block=2",
        "refused: evaluate.floor_block=2 sets texts of recompute_window",
    ),
    (
        "evaluate.protocol=accuracy evaluate.tasks=passkey evaluate.documents=a*",
        "refused: evaluate.documents=a* sets documents",
    ),
    ("out=there", "refused: out=there has no effect on scripts/run.py, only on "),
    (
        "model=hf model.path=llama train.lr=0.1 train.length=32 seed=3",
        "refused: model.path=llama is trained already, so seed=3 train.lr=0.1 would have no effect:"
        " leave it out",
    ),
    (
        "model=hf model.path=llama -m seed=0,1",
        "refused: model.path=llama is trained already, so seed=1 would have no effect: leave it",
    ),
    (
        "model=server evaluate.dtype=fp32",
        "refused: model=server computes in a number format of its own",
    ),
    (
        "model=llama_cpp evaluate.dtype=fp32",
        "refused: model=llama_cpp computes in a number format of its own",
    ),
    ("-m seed=range(0,inf)", "seed=range(0,inf) has no end"),
    ("-m seed=range(0,nan)", "seed=range(0,nan) has no end"),
]
OF_SCRIPTS = [
    *(
        (
            f"{script} -m {words}",
            f"has {jobs} jobs, and one command takes 10,000 at most: shorten {words.split()[0]}",
        )
        for script in ("run", "report")
        for words, jobs in (
            ("seed=range(0,1000000)", "1,000,000"),
            ("seed=range(0,10001)", "10,001"),
            ("seed=range(0,6000) encoding=rope,alibi", "12,000"),
        )
    ),
    *(
        (f"{script} dry=true", f"dry=true has no effect on scripts/{script}.py")
        for script in ("report", "anatomy", "prepare_data", "export_hf")
    ),
    (
        "compat lengths=64,99999999999999999999999",
        f"lengths=64,99999999999999999999999 {NO_LIST}",
    ),
    ("compat lengths=64,-1", f"lengths=64,-1 {NO_LIST}"),
    ("compat lengths=0", f"lengths=0 {NO_LIST}"),
    ("compat train_len=-4 reasons", "train_len=-4 must be a positive whole number"),
    ("benchmark repeats=64.5", "repeats=64.5 must be a positive whole number"),
    ("gallery out=", "out= is empty"),
    ("runs gc older=9999999999d", "older=9999999999d must be minutes"),
]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        *(pytest.param(f"run {typed} dry=true", words, id=typed) for typed, words in NEAR_MISSES),
        *(pytest.param(f"run {typed}", words, id=typed) for typed, words in WITHOUT_EFFECT),
        *(pytest.param(typed, words, id=typed) for typed, words in OF_SCRIPTS),
    ],
)
def test_a_command_is_refused_in_one_sentence(tmp_path, capfd, typed, words):
    script, *overrides = typed.split()
    done = call(capfd, tmp_path, script, *overrides)
    assert done.returncode == 2, done
    assert done.stderr.startswith("refused: ") and done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("evaluate.windws", "did you mean evaluate.windows"),
        ("extension=yran", "did you mean extension=yarn"),
        ("encoding --config-dir nowhere", "--config-dir nowhere is not a folder: name the one"),
        (
            "encoding --config-dir",
            "--config-dir names no folder: name the one that holds",
        ),
    ],
)
def test_an_explanation_is_refused(typed, words):
    with pytest.raises(ConfigError, match=words):
        explain_words(*keys_and_folders(typed.split()))


def test_a_report_of_a_run_is_of_its_last_step(world, capfd):
    words = [f"run={world.run(0)}", "report_dir=out", "results_dir=runs", "cache_dir=cache"]
    done = call(capfd, world.root, "report", *words, "step=1")
    assert done.returncode == 2 and "step=1 does not choose from run=" in done.stderr
    assert call(capfd, world.root, "report", *words, "step=6").returncode == 0  # its last one
