"""Measure speed and memory of every method, or of a checkpoint, beside plain attention.

python scripts/benchmark.py
    all methods on the default model, into results/benchmark
python scripts/benchmark.py only=t5,fox lengths=64,1024 repeats=9
python scripts/benchmark.py model.path=FILE.gguf
    a checkpoint: a folder, a GGUF file or a name of the hub
python scripts/benchmark.py model.path=FILE.gguf only=rerope,window lengths=16384,32768 dtype=fp32

Written: table.md, benchmark.json and, of the methods, a figure. A checkpoint is read in dtype=bf16,
at 2,048, 8,192 and 16,384 tokens, in 3 rounds, beside transformers' own model of the same file;
only= names its extensions. All of it runs on device=auto, a GPU if there is one."""

from posbench.cli.start import run_command

if __name__ == "__main__":
    run_command("benchmark")
