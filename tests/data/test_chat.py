"""Chat templates of checkpoints: read wherever they lie, rendered as transformers does, and
questions asked in them.
"""

import json
import re

import numpy as np
import pytest
from gguf_models import write_gguf
from hf_models import checkpoint, transformers
from test_cli import cli  # noqa: F401
from test_gguf_tokenizer import VOCABULARY, vocabulary
from test_text_tasks import questions
from tokenizers import Tokenizer

from posbench.common.errors import ConfigError
from posbench.data.chat import MESSAGE_MARK, chat_template, text_around_message
from posbench.data.task import IGNORED
from posbench.data.text_questions import TextQuestions
from posbench.data.tokenizers import PretrainedTokenizer
from posbench.gguf.tokenizer import tokenizer_json
from posbench.runs.rows import read_eval

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{"
    " '<|a|>system\nYou are helpful.<|b|>\n' }}{% endif %}{{'<|a|>' + message['role'] + '\n' +"
    " message['content'] + '<|b|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{"
    " '<|a|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "llama": (
        """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if tools is not none %}{{ tools | tojson }}{% endif %}
{{- "<|a|>system\\n\\nToday Date: " + date_string + "<|b|>" }}
{%- for message in messages %}
    {{- '<|a|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|b|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|a|>assistant\\n\\n' }}
{%- endif %}
"""
    ),
    "mistral": (
        """{{ bos_token }}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {% endif %}
    {% if message['role'] == 'user' %}
[INST] {{ message['content'] }} [/INST]
        {% continue %}
    {% endif %}
    {% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{% endfor %}
{% generation %}{% endgeneration %}
"""
    ),
}
OWN = {"bos_token": "<|a|>", "eos_token": "<|b|>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint(
        tmp_path_factory.mktemp("chat"), vocab_size=len(VOCABULARY), max_position_embeddings=512
    )


@pytest.fixture(scope="module")
def file(folder):
    more = {
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": CHATML,
    }
    return write_gguf(folder, metadata={**vocabulary(), **more})


def tokenizer(file) -> PretrainedTokenizer:
    return PretrainedTokenizer(Tokenizer.from_buffer(tokenizer_json(file)), "chat")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_that_of_transformers(name, file):
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(file).model, **OWN, chat_template=TEMPLATES[name]
    )
    message = "What is the pass key?"
    expected = theirs.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    before, behind = text_around_message({"template": TEMPLATES[name], **OWN})
    assert before + message + behind == expected and message in expected
    ids = theirs.apply_chat_template(
        [{"role": "user", "content": message}], add_generation_prompt=True, return_dict=False
    )
    assert tokenizer(file).encode([before + message + behind])[0][0].tolist() == ids


def test_a_date_is_the_same_every_day():
    assert text_around_message(
        {"template": "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}."}
    ) == (
        "26 Jul 2024 ",
        ".",
    )


def test_a_template_is_read_from_wherever_it_lies(file, tmp_path):
    assert chat_template(str(file)) == {"template": CHATML, **OWN}
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json(file))
    other = CHATML + " "

    def template_of(**config) -> dict:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return chat_template(str(tmp_path))

    for bos in ("<|a|>", {"content": "<|a|>", "special": True}):
        assert template_of(chat_template=CHATML, bos_token=bos, eos_token=None) == {
            "template": CHATML,
            "bos_token": "<|a|>",
        }
    named = [{"name": "tool_use", "template": other}, {"name": "default", "template": CHATML}]
    assert (
        template_of(chat_template=named)
        == {"template": CHATML}
        == chat_template(str(tmp_path / "tokenizer.json"))
    )
    (tmp_path / "chat_template.jinja").write_text(other)
    assert template_of(chat_template=CHATML) == {"template": other}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "holds no chat template"),
        ('{"chat_template": [5]}', "cannot be read"),
        ("{", "cannot be read"),
        (json.dumps({"chat_template": "{% for"}), "cannot be rendered"),
        (
            json.dumps({"chat_template": "{{ raise_exception('only with tools') }}"}),
            "cannot be rendered .only with tools",
        ),
        (
            json.dumps({"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}),
            "cannot be rendered",
        ),
        (
            json.dumps({"chat_template": "{{ messages[0].content }} {{ messages[0].content }}"}),
            "writes the message 2 times",
        ),
        (
            json.dumps({"chat_template": "{{ messages[0].content | upper }}"}),
            "writes the message 0 times",
        ),
    ],
)
def test_what_is_no_template_is_refused_in_one_sentence(config, reason, file, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json(file))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(
        ConfigError, match=f"evaluate.chat=true: .*{reason}.*leave evaluate.chat out.*[.]$"
    ):
        chat_template(str(tmp_path))


@pytest.mark.parametrize("name", ["passkey", "niah_multiquery"])
def test_a_question_in_a_chat_has_the_tokens_asked_for(name, file):
    plain = questions(name, tokenizer(file))
    chat_questions = TextQuestions(
        plain.task,
        name,
        "test",
        plain.file,
        plain.tokenizer,
        None,
        text_around_message({"template": CHATML}),
    )
    for length in (3000, 3001):
        part = chat_questions.parts(length)[0]
        assert part.task == f"{name} chat" and plain.parts(length)[0].task == name
        examples = chat_questions.draw(length, 2, [0], **part.arguments)
        assert examples.inputs_NT.shape == (2, length)
        for inputs, targets in zip(examples.inputs_NT, examples.targets_NT, strict=True):
            text = chat_questions.tokenizer.model.decode(
                [*inputs, targets[-1]], skip_special_tokens=False
            )
            match = re.fullmatch(
                r"<\|a\|>system\nYou are"
                r" helpful.<\|b\|>\n<\|a\|>user\n(.*)<\|b\|>\n<\|a\|>assistant\n(\S.*)",
                text,
                re.DOTALL,
            )
            assert match[1].endswith(("?", ".")) and MESSAGE_MARK not in text
            assert match[2].endswith(
                chat_questions.tokenizer.decode(targets[targets != IGNORED][-1:].tolist())
            )
        answers = [
            drawn.targets_NT[drawn.targets_NT != IGNORED]
            for drawn in (examples, plain.draw(length, 2, [0], **part.arguments))
        ]
        assert np.array_equal(*answers)


def test_a_checkpoint_is_asked_with_and_without_its_template_by_one_word(cli, file, tmp_path):  # noqa: F811
    words = [
        word
        for word in cli.common
        if not word.startswith(("model.", "train.", "evaluate.", "data.tokenizer"))
    ]
    words += [
        "evaluate.lengths=600",
        "evaluate.protocol=accuracy",
        "evaluate.tasks=passkey",
        "evaluate.windows=5",
    ]

    def evaluate(*more: str, **how):
        return cli(
            "model=hf",
            f"model.path={file}",
            f"data.tokenizer={file}",
            *words,
            *more,
            common=False,
            **how,
        )

    assert (
        "Accuracy: passkey chat" in evaluate("evaluate.chat=true").stdout
        and "nothing to do" in evaluate("evaluate.chat=true").stdout
    )
    assert "chat" not in evaluate().stdout.partition("Accuracy")[2]
    files = sorted(tmp_path.rglob("evals/accuracy/*.json"))
    assert (
        sorted({row["task"] for path in files for row in read_eval(path)})
        == ["passkey", "passkey chat"]
        and len(files) == 2
    )
    chats = [json.loads(path.read_text())["config"]["evaluate"]["chat"] for path in files]
    assert False in chats and {"template": CHATML, **OWN} in chats


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["evaluate.protocol=accuracy", "evaluate.tasks=passkey"],
            "data.tokenizer=bytes is not from a checkpoint",
        ),
        ([], "evaluate.chat=true is for questions of evaluate.tasks"),
        (
            ["evaluate.protocol=accuracy", "evaluate.tasks=passkey", "data.bos=true"],
            "begins a text as the template says",
        ),
        (
            ["evaluate.chat={template: x}", "evaluate.protocol=accuracy", "evaluate.tasks=passkey"],
            "evaluate.chat is a mapping",
        ),
    ],
)
def test_a_chat_that_cannot_be_is_refused(words, reason, cli):  # noqa: F811
    done = cli("evaluate.chat=true", *words, code=2)
    assert re.search(reason, done.stdout + done.stderr)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_has_one_bos_whoever_writes_it(name, file):
    plain, template = (
        questions("passkey", tokenizer(file)),
        text_around_message({"template": TEMPLATES[name], **OWN}),
    )

    def begin(bos):
        chat_questions = TextQuestions(
            plain.task, "passkey", "test", plain.file, plain.tokenizer, bos, template
        )
        return chat_questions.draw(3000, 1, [0]).inputs_NT[0, :4].tolist()

    assert begin(None)[0] == 0 and begin(0) == begin(None)  # these templates write it themselves
    assert begin(5) == [5, *begin(None)[:3]]  # which none of them does
