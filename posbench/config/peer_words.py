"""Words of other projects, and what they are called here: for the suggestion in a refusal.

Each table is {word elsewhere: word here}. The words elsewhere are in lower case, with _ for -."""

from collections.abc import Iterable


def _named(**words_here: str) -> dict[str, str]:
    """{word elsewhere: word here} of texts with the words that mean each word here.

    >>> _named(none="nope no_pe")
    {'nope': 'none', 'no_pe': 'none'}
    """
    return {word: here for here, words in words_here.items() for word in words.split()}


# {group: {name of a choice elsewhere: choice here}}
CHOICES_ELSEWHERE = {
    "encoding": _named(
        none="nope no_pe nopos no_pos nothing null",
        rope="rotary rotary_embedding rotary_emb",
        p_rope="partial_rope prope",
        learned="absolute abs learned_abs learned_absolute ape wpe",
        sinusoidal="sin sincos sinusoid vaswani",
        alibi="alibi_learned linear_bias",
        t5="t5_bias t5_relative relative relative_bias rpe",
        kerple="kerple_log kerple_power",
        randomized="random noisy randomized_pe",
        fox="forgetting forgetting_transformer forget_gate",
    ),
    "extension": _named(
        none="default vanilla extrapolation direct original",
        pi="linear position_interpolation interpolation linear_scaling",
        ntk="ntk_aware ntk_scaling static_ntk ntk_static",
        dynamic_ntk="dynamic ntk_dynamic dynamic_ntk_aware",
        ntk_by_parts="by_parts ntk_parts part_ntk ntk_part",
        abf="base rope_base base_change rope_theta",
        longrope="su longrope2",
        self_extend="selfextend grouped grouped_attention",
        dca="dual_chunk dual_chunk_attention chunkllama chunk_llama",
        streaming="streaming_llm streamingllm attention_sinks attention_sink sinks",
        window="sliding_window swa local_attention",
        lm_infinite="lminfinite lm_inf infinite",
        recompute_window="truncate truncation crop",
    ),
    "scale_attention": _named(
        none="default",
        log_n="log log_scaling logn_scaling",
        yarn_temperature="yarn mscale temperature attention_factor",
        ssmax="scalable_softmax",
        learned_sink="sink sinks attention_sink",
        asentmax="entmax entmax15 adaptive_scalable_entmax",
        off_by_one="softmax1 off_by_1 softmax_one",
    ),
    "data": _named(
        local="text txt json jsonl parquet file folder custom own mine shakespeare"
        " shakespeare_char tiny_shakespeare enwik8 text8 tinystories openwebtext c4 pile the_pile",
        wikitext103="wikitext wikitext2 wikitext_103 wikitext_2",
        fineweb_edu="fineweb",
        pysource="code python",
        mqar="associative_recall recall",
    ),
    "model": _named(
        small="tiny default mini nano",
        hf="huggingface pretrained checkpoint transformers",
        llama_cpp="gguf llamacpp",
        server="vllm sglang openai api http",
    ),
    "protocol": _named(
        fixed_targets="default loss nll fixed",
        disjoint="perplexity ppl non_overlapping nonoverlapping",
        sliding="sliding_window strided rolling",
        by_position="position per_position positions",
        accuracy="niah needle passkey ruler retrieval tasks",
        repeat="copy copying induction",
        shuffled_prefix="shuffle shuffled",
    ),
}

# {tokenizer elsewhere: data.tokenizer here}
TOKENIZERS_ELSEWHERE = _named(
    bytes="byte byte_level utf8 utf_8 raw ascii",
    char="character characters char_level chr",
    gpt2="gpt_2 gpt2_bpe tiktoken",
    bpe="word words unigram sentencepiece spm wordpiece",
)

# {name of a key elsewhere: key, or group, here}
KEYS_ELSEWHERE = {
    **_named(
        encoding="pe pe_type pos_emb pos_enc pos position_encoding positional_encoding"
        " position_embedding position_embedding_type",
        extension="rope_scaling rope_type scaling",
        scale_attention="attn_scale attention_scaling logit_scale",
        name="run_name exp_name experiment_name sweep_name tag",
        seed="seeds random_seed",
        device="gpu cpu cuda",
        jobs="n_jobs num_workers workers max_workers parallel",
        processes="n_gpu gpus num_gpus nproc nproc_per_node world_size devices",
        results_dir="output_dir out_dir save_dir log_dir",
        data="dataset corpus",
    ),
    **{
        word: f"{group}.{key}"
        for group, keys in {
            "encoding": _named(
                base="rope_theta theta rotary_emb_base rope_base",
                fraction="rotary_pct partial_rotary_factor",
            ),
            "extension": _named(
                target_len="factor scaling_factor", alpha="beta_slow", beta="beta_fast",
                temperature="mscale",
            ),
            "train": _named(
                lr="learning_rate",
                steps="epochs num_train_epochs num_epochs max_iters train_iters num_steps"
                " max_train_steps iterations total_steps",
                tokens_per_step="batch_size per_device_train_batch_size micro_batch_size",
                micro_batches="gradient_accumulation_steps grad_accum accumulate",
                length="seq_len block_size max_seq_len seq_length max_seq_length context_length"
                " context_len context sequence_length n_ctx ctx max_position_embeddings"
                " n_positions original_max_position_embeddings",
                dtype="precision mixed_precision bf16 fp16 amp",
                clip="grad_clip max_grad_norm",
                validate_every="eval_interval eval_steps eval_every",
                checkpoint_every="save_steps save_interval save_every",
                log_every="log_interval logging_steps",
            ),
            "model": _named(
                d_model="hidden_size n_embd embed_dim d_embed dim hidden_dim emb_dim",
                n_layer="num_hidden_layers depth num_layers layers",
                n_head="num_attention_heads heads num_heads",
                n_kv_head="num_key_value_heads n_kv_heads kv_heads",
                d_ff="intermediate_size ffn_dim mlp_dim",
            ),
            "evaluate": _named(
                lengths="eval_lengths eval_length test_lengths test_length",
                windows="limit num_samples n_samples samples",
                protocol="metric metrics",
            ),
            "data": _named(path="data_path dataset_path data_dir", tokenizer="tokenizer_path"),
            "log": _named(
                mode="wandb wandb_mode use_wandb report_to", project="wandb_project",
                group="wandb_group", entity="wandb_entity",
            ),
        }.items()
        for word, key in keys.items()
    },
}  # fmt: skip

# {key here: what a value of the word elsewhere has to be changed to}
CHANGE_OF_VALUE = {
    "batch_size": "in tokens: sequences times train.length",
    "per_device_train_batch_size": "in tokens: sequences times train.length",
    "factor": "in tokens: the factor times train.length",
    "scaling_factor": "in tokens: the factor times train.length",
}

# {word elsewhere: why nothing here has a name for it}
WITHOUT_KEY = {
    "dropout": "models are trained without dropout",
    "resume": "the same command goes on from the last checkpoint",
    "resume_from_checkpoint": "the same command goes on from the last checkpoint",
    **dict.fromkeys(
        ("attn_implementation", "flash", "flash_attn", "flash_attention", "use_flash_attention"),
        "the attention kernel is chosen by method, length and device",
    ),
    **dict.fromkeys(
        ("verbose", "debug", "quiet", "log_level"), "every command prints the same lines"
    ),
}

# {command elsewhere: command here}
COMMANDS_ELSEWHERE = {
    **_named(
        run="train eval evaluate sweep test fit launch start",
        report="table tables summary results_table",
        plot="figure figures draw fig curve",
        demo="example quickstart tutorial",
        prepare_data="prepare tokenize download data",
        export_hf="export convert",
        compare="rank ranking best leaderboard diff",
    ),
    **dict.fromkeys(("list", "ls", "results", "status", "ps", "show"), "runs list"),
    **dict.fromkeys(("gc", "clean", "cleanup", "rm", "delete"), "runs gc"),
}


def normalized_word(word: str) -> str:
    """A word as these tables and the names of choices are written: NTK-aware is ntk_aware."""
    return word.strip().lower().replace("-", "_").replace(" ", "_")


def choice_meant(group: str, word: str, options: Iterable[str]) -> str | None:
    """Choice of a group that another project's word means; None for an unknown word.

    >>> choice_meant("encoding", "RoPE", ["rope", "none"])
    'rope'
    """
    options = list(options)
    name = normalized_word(word)
    meant = CHOICES_ELSEWHERE.get(group, {}).get(name, name)
    return meant if meant in options else None
