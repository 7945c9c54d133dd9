"""What results/reported/README.md says in numbers, and what the files say: pieces of its text with a # for each number, and the numbers."""

import math

from reported_values import (
    FINDINGS,
    LEDGER,
    PRIMARIES,
    STAGE2,
    at,
    by_length,
    changed,
    claim,
    context,
    full_turns,
    paired,
    rows,
    trained_at,
    trainings,
    wide,
    yarn_pairs,
)

Check = tuple[str, list[float]]
FAR = (2, 4, 8, 16)
FOR_256 = "mode=fixed target_len=256 (trained in)"


def headline() -> list[Check]:
    gains = [at("headline", encoding, 1, "gain") for encoding in ("rope", "p_rope", "fox", "hybrid")]
    one, key = rows("headline")[0], lambda times: wide("headline", "rope|streaming", times)
    sinks, low, high = [key(n)[0] for n in FAR], min(key(n)[0] - key(n)[1] for n in FAR), max(sum(key(n)) for n in FAR)
    hybrid = [-at("headline", "hybrid|none|log_n", times) for times in FAR[1:]]
    rope = [at("headline", "rope", 2), at("headline", "rope", 16), at("headline", "rope", 16, "nll")]
    return [
        ("# windows over # test documents", [one["n_targets"] / 8, one["n_units"]]),
        ("the same # tokens at every length", [one["n_targets"]]),
        ("brings # to # nat to RoPE, p-RoPE, FoX and the hybrid, # to ALiBi", [min(gains), max(gains), at("headline", "alibi", 1, "gain")]),
        ("(# trainings, # evaluations;", [len(trainings("headline")), len({row["eval_id"] for row in rows("headline")})]),
        ("A difference of # nat per token is # bits per byte", [0.05, 0.05 * one["n_targets"] / math.log(2) / one["n_bytes"]]),
        ("has lost # nat at twice its length and # at sixteen times, where its loss (#) is nearly", rope),
        ("with one token of context (#)", [float(context("headline", 1)[0]["nll"])]),
        ("the interval at 2x is +- # wide", wide("headline", "rope", 2)[1:]),
        ("remain # and # nat above the floor at 2x", [at("headline", "rope|pi", 2), at("headline", "rope|ntk", 2)]),
        *[("ReRoPE, Self-Extend and YaRN are # below", [-at("headline", f"rope|{name}", 2)]) for name in ("rerope", "self_extend", "yarn")],
        (
            "YaRN keeps # of # pairs of channels, and with the published beta, which keeps #,",
            [yarn_pairs(None)[1], 32, yarn_pairs(32.0)[1]],
        ),
        ("it is at # +- # there (# +- # with the default", [*wide("matched", "rope|yarn beta=32.0", 2), *wide("matched", "rope|yarn", 2)]),
        ("ReRoPE alone is # above the floor at 16x", [at("headline", "rope|rerope", 16)]),
        ("lowers its loss by # [#, #] at 8x", claim("H12 number of keys", -1, nats=True)),
        ("leaves it at # +- # at 16x", wide("headline", "rope|rerope|log_n", 16)),
        (
            "it may hold or miss the floor by #.",
            [abs(at("headline", "rope|rerope|log_n", 16)) + wide("headline", "rope|rerope|log_n", 16)[1]],
        ),
        ("loses by log-n: # [#, #] at 8x", claim("H13 rope with YaRN", nats=True)),
        ("it is # to # above it, every interval lies between # and #, and at 4x", [min(sinks), max(sinks), low, high]),
        ("at 4x above zero (# +- #)", key(4)),
        ("ALiBi's loss changes by # [#, #] from 1x to 16x (paired)", claim("S03 fixed targets", nats=True)),
        ("no loss of more than #.", [math.ceil(100 * claim("S03 fixed targets", nats=True)[2]) / 100]),
        ("its own floor is undecided (# +- # at 16x)", wide("headline", "alibi", 16)),
        ("that model is # [#, #] worse than RoPE (C7;", claim("C7", nats=True)),
        ("with slopes that suit 64 tokens #.", paired("matched", "alibi slope_scale=16.0", "rope base=10000.0", 1)[:1]),
        (
            "# to # below its floor from 4x to 16x, with",
            [edge([-at("headline", "fox", times) for times in FAR[1:]]) for edge in (min, max)],
        ),
        ("with # nats inside the window (RoPE #). The hybrid", [at("headline", "fox", 1, "nll"), at("headline", "rope", 1, "nll")]),
        ("is # to # below its floor there with log-n", [min(hybrid), max(hybrid)]),
        ("in which # of # pairs of channels make a full turn (46 of 64 in", [32 * full_turns(10000.0), 32]),
    ]


def _counts() -> tuple[list[int], int, int, int, int, int]:
    """Primaries by verdict; comparisons behind them, and behind the confirmed; tests of Holm; verdicts it took back; decided by tests."""
    words = [one.verdict for one in PRIMARIES]
    return (
        [words.count(word) for word in ("confirmed", "refuted", "undecided", "gated")],
        len({one.compared for one in PRIMARIES}),
        len({one.compared for one in PRIMARIES if one.verdict == "confirmed"}),
        sum(one.p_holm is not None for one in PRIMARIES),
        sum(one.by_interval not in (None, one.verdict) for one in PRIMARIES),
        sum(one.note == "by test" for one in FINDINGS),
    )


def repeated() -> list[Check]:
    """Results that README.md, results/claims/README.md and scripts/README.md repeat."""
    (confirmed, refuted, undecided, gated), different, _, tested, alone, _ = _counts()
    return [
        ("of # endpoints, which are # comparisons, # are confirmed, # refuted,", [len(PRIMARIES), different, confirmed, refuted]),
        ("refuted, # undecided (# of them decided by their own interval,", [undecided, alone]),
        ("over the # that passed the gate), and # gated", [tested, gated]),
        ("had shown # of the # endpoints", [11, len(PRIMARIES)]),
        ("# readings of # comparisons (yamls", [len(STAGE2), len({str(one) for one in STAGE2})]),
        ("RoPE's base of 10,000 turns # of # pairs fully", [32 * full_turns(10000.0), 32]),
    ]


def _again(own: list) -> tuple[int, int]:
    """Endpoints that stage one left undecided, and those of them that a later stage's `own` findings decide, by claim and name."""
    open_ = [one for one in PRIMARIES if one.verdict == "undecided"]
    renamed = {"C7": "published slopes", "H09": "published slopes", "H16": "as published", "H19": "published slopes",
               "S03": "the protocol makes the gain", "S06": "out of reach"}  # fmt: skip
    decided = {(one.claim, one.endpoint) for one in own if one.verdict in ("confirmed", "refuted")}
    return len(open_), sum((one.claim, one.endpoint or renamed.get(one.claim, "")) in decided for one in open_)


def stage2() -> list[Check]:
    own = [one for one in LEDGER if one.stage == 2 and one.primary]
    done = [one for one in own if one.effect is not None]
    return [
        ("and # windows in # test documents", [4096, done[0].documents]),
        ("# of the # readings are measured, which are # of the # comparisons",
         [len(done), len(own), len({one.compared for one in done}), len({one.compared for one in own})]),
        ("by # [#, #] at 8x. - NTK", claim("C2", -1, stage=2)),
        ("which is # [#, #] above the floor at 2x; confirmed", claim("H16 as published", stage=2)),
        ("the tuned one, #, which is # [#, #] from it", [8, *claim("H16 tuned", stage=2)]),
        ("at 8x it is # [#, #] above the floor, and multiplier", claim("S06 out of reach", stage=2)),
        ("multiplier # lowers its loss there by # [#, #]", [8, *claim("S06 headroom", -1, stage=2)]),
        ("by 0.033 is refuted (# [#, #]), and", claim("S05 ReRoPE minus YaRN", stage=2)),
        ("is better than PI, confirmed (# [#, #])", claim("S05 tuned NTK minus PI", stage=2)),
        ("published NTK minus PI is undecided (# [#, #])", claim("S05 NTK minus PI", stage=2)),
        ("one step of the grid, # [#, #] times", claim("H01", stage=2)),
        ("sinusoidal is # [#, #] above its floor, learned # [#, #].", [*claim("H02 sinusoidal", stage=2), *claim("H02 learned", stage=2)]),
        ("with AMX, the other # on an EPYC", [len(trainings("claims2")) - 8]),
        ("at 16x it is # [#, #] above its floor, within the margin of #.", [*claim("H19 published slopes", stage=2), 0.02]),
        ("(every token of the window, # [#, #])", claim("C7 published slopes", stage=2)),
        ("its loss falls by # [#, #] more than on fixed", claim("S03 the protocol makes the gain", -1, stage=2)),
        ("where it changes by # [#, #].", claim("S03 no use of context", stage=2)),
        ("for ALiBi, which loses # [#, #] by it at 8x", claim("H13 alibi", stage=2)),
        ("p-RoPE stays undecided (# [#, #])", claim("H13 p_rope", stage=2)),
        ("and so does plain RoPE (# [#, #]).", claim("H13 rope", stage=2)),
        ("its rise at 8x is lower by # [#, #]", claim("S11", -1, stage=2)),
        ("Of the # endpoints that stage one left undecided, # are decided here", [*_again(own)]),
    ]  # fmt: skip


def stage5() -> list[Check]:
    own = [one for one in LEDGER if one.stage == 5 and one.primary]
    left = [value for steps in (30, 100) for value in claim(f"S10 recovered after {steps} steps", stage=5)]
    children = (
        "rope tuned from rope-64 steps=100|none",
        f"rope tuned from rope-64 steps=100|pi {FOR_256}",
        f"rope tuned from rope-64 steps=100|yarn {FOR_256}",
    )
    tuned = [at("claims5", name, 1, "nll") for name in children]
    before = [at("claims5", f"rope|{name}", 4, "nll") for name in ("none", "pi", "yarn")]
    return [
        ("the trainings below # of the # comparisons are measured", [sum(one.effect is not None for one in own), len(own)]),
        ("which leave # [#, #] and # [#, #] more than that", left),
        ("is undecided (# [#, #] after 30 steps)", claim("S10 faster", stage=5)),
        ("reads 256 tokens with # nats without an extension, # with PI and # with YaRN, from #, # and #.", [*tuned, *before]),
        ("as long texts is refuted (# [#, #] worse)", claim("C8 PoSE is as good", stage=5)),
        ("worse than PoSE is confirmed (# [#, #])", claim("C8 RandPos is worse", stage=5)),
        ("PoSE gains # [#, #] on no fine-tuning", claim("C8 PoSE minus no fine-tuning", -1, stage=5)),
        ("inside the window is refuted (# [#, #])", claim("DroPE no loss inside the window", stage=5)),
        ("than YaRN too (# [#, #] worse at 256 tokens)", claim("DroPE farther than YaRN", stage=5)),
        *_training_short(),
    ]


def _training_short() -> list[Check]:
    def loses(name: str) -> list[float]:
        return claim(f"TrainShort {name}", stage=5)

    made = trainings("frontier")
    failed = [trained_at("frontier", train_len, 2, what) for train_len in (32, 128) for what in ("difference", "half_width")]
    return [
        ("frontier: # trainings, five each of #, #, # and # tokens", [len(made), *sorted({row["train_len"] for row in rows("frontier")})]),
        ("with # million tokens in all", [made[0].tokens / 1e6]),
        ("on the same # targets", [rows("frontier")[0]["n_targets"]]),
        ("its last 64 loses # [#, #] to one of 256", loses("it pays to train long")),
        ("64 tokens lose # [#, #] with YaRN and", loses("64 tokens and YaRN")),
        ("# [#, #] with ReRoPE and log-n, 32 tokens", loses("64 tokens, ReRoPE and log-n")),
        ("log-n, 32 tokens # [#, #].", loses("32 tokens, ReRoPE and log-n")),
        ("128 tokens lose # [#, #] with YaRN and # [#, #] with", [*loses("128 tokens and YaRN"), *loses("128 tokens, ReRoPE and log-n")]),
        ("G is # nat for the trainings of 32 tokens and # for", [trained_at("frontier", train_len, 1, "gain") for train_len in (32, 128)]),
        ("is # +- # above its floor after 32 tokens and # +- # after 128 (", failed),
        ("64 tokens without an extension lose # [#, #].", loses("64 tokens, nothing")),
    ]


def scale() -> list[Check]:
    steps, lengths, some = (500, 1000, 1500, 3000), (32, 64, 128, 256), "rope steps=1500"
    alibi = "alibi slope_scale=16.0 steps"
    slopes = [(32, 8, "alibi slope_scale=32.0 steps=1500"), (256, 8, "alibi slope_scale=4.0 steps=1500")]
    made = len(trainings("scale"))

    def after(name: str, method: str = "none") -> list[float]:
        found = changed("scale", f"{name} steps=3000|{method}", f"{name} steps=500|{method}", 8)
        return [found.value, *found.interval()]

    def of_lengths(what: str, method: str = "none") -> list[float]:
        return [trained_at("scale", length, 1 if what == "gain" else 8, what, f"{some}|{method}") for length in lengths]

    def seeds(method: str) -> list[float]:
        return by_length("scale", f"{some}|{method}", (256, 32), 8)

    def gains(name: str, *of: int) -> list[float]:
        return [trained_at("scale", 64, 1, "gain", f"{name}={count}") for count in of]

    failures = [trained_at("scale", 64, 8, what, f"rope steps={count}") for count in steps for what in ("difference", "half_width")]
    return [
        ("experiment=scale: # trainings, three seeds of each: RoPE", [made]),
        ("on # tokens after #, #, # and # steps, and on #, #, # and # tokens with as", [64, *steps, *lengths]),
        ("G of RoPE is #, #, # and # nat; at 8x", gains("rope steps", *steps)),
        ("at 8x it is # +- #, # +- #, # +- # and # +- # above its floor. After", failures),
        ("After # steps that is # [#, #] more than after #.", [3000, *after("rope"), 500]),
        ("comparison is # [#, #] with YaRN,", after("rope", "yarn")),
        ("with YaRN, # [#, #] with ReRoPE and log-n, and", after("rope", "rerope|log_n")),
        ("and # [#, #] for FoX, whose G goes from # to #.", [*after("fox"), *gains("fox steps", 500, 3000)]),
        ("For ALiBi it is # [#, #], though its G goes from # to #.", [*after("alibi slope_scale=16.0"), *gains(alibi, 500, 3000)]),
        ("on #, #, # and # tokens is #, #, # and #, and at 8x", [*lengths, *of_lengths("gain")]),
        ("at 8x RoPE is #, #, # and # above its floor. With YaRN", of_lengths("difference")),
        ("With YaRN it is at #, #, # and #, with", of_lengths("difference", "yarn")),
        ("with ReRoPE and log-n at #, #, # and #. 256", of_lengths("difference", "rerope|log_n")),
        ("# tokens against #, seed by seed: #, # and # for RoPE", [256, 32, *seeds("none")]),
        ("for RoPE, #, # and # with YaRN, #, # and # with ReRoPE", [*seeds("yarn"), *seeds("rerope|log_n")]),
        ("From # to # tokens RoPE's failure", [32, 256]),
        ("FoX goes from # to # and", [trained_at("scale", length, 8, method="fox steps=1500") for length in (32, 256)]),
        ("ALiBi from # to #. A", [trained_at("scale", *one[:2], method=one[2]) for one in slopes]),
    ]


def projects() -> list[Check]:
    first = rows("projects")[0]
    return [
        ("# trainings of stage two (five", [len(trainings("projects"))]),
        ("Each has # windows", [first["n_targets"] / 8 / first["n_units"]]),
        ("at 16x it is # above its floor, and its interval (+- #)", wide("projects", "alibi", 16)),
        ("below the floor at 4x (# +- #).", [-wide("projects", "rope|yarn", 4)[0], wide("projects", "rope|yarn", 4)[1]]),
        ("PI is farther from it (#) than nothing is (#)", [at("projects", "rope|pi", 4), at("projects", "rope", 4)]),
    ]


def ledger() -> list[Check]:
    count, different, confirmed, tested, alone, by_test = _counts()
    return [
        ("Of # primary endpoints # are confirmed, # refuted, # undecided and # gated", [len(PRIMARIES), *count]),
        ("Holm's correction over the # that passed the gate; # numerical claims", [tested, by_test]),
        ("so the # endpoints are # comparisons and the # confirmed are #;", [len(PRIMARIES), different, count[0], confirmed]),
        ("the correction takes back: # of those #. All #", [alone, count[2], count[0] + count[1]]),
        ("(q below 0.05) would let # of the # stand", [sum((one.q or 1) < 0.05 for one in PRIMARIES), tested]),
        ("and holds # of the # endpoints", [11, len(PRIMARIES)]),
        ("(ReRoPE minus nothing at 8x: # [#, #])", claim("H12 positions")),
        ("(log-n on top: # [#, #]; log-n changes more", claim("H12 number of keys")),
        ("stay within 0.033 of the floor (# [#, #], S09", claim("H12 few keys at seen distances (window mask)")),
        ("by more than the margin is # [#, #] times", claim("H01")),
        ("for plain RoPE undecided (# [#, #])", claim("H13 rope")),
        ("for p-RoPE # [#, #], confirmed alone", claim("H13 p_rope")),
        ("for ALiBi # [#, #], refuted alone", claim("H13 alibi")),
        ("RoPE with NTK # [#, #]", claim("H13 rope with NTK")),
        ("the hybrid # [#, #], RoPE with YaRN # [#, #]", [*claim("H13 hybrid"), *claim("H13 rope with YaRN")]),
        ("YaRN is better than NTK (# [#, #])", claim("S05 YaRN minus NTK")),
        ("NTK than nothing (# [#, #])", claim("S05 NTK minus nothing")),
        ("ReRoPE minus YaRN, # [#, #]", claim("S05 ReRoPE minus YaRN")),
        ("NTK minus PI, # [#, #]", claim("S05 NTK minus PI")),
        ("the loss at 8x falls by # [#, #]", claim("S06", -1)),
        ("multiplier 4 is # [#, #] above the floor there", claim("S06 multiplier 4")),
        ("four sinks change the loss by # [#, #]", claim("S09 sinks")),
        ("sinusoidal is # [#, #] above its floor at 1.5x", claim("H02 sinusoidal")),
        ("learned (last row repeated) # [#, #]", claim("H02 learned")),
        ("at 16x it is # [#, #] from its floor", claim("H09")),
        ("its loss falls by # [#, #] under disjoint windows", claim("S03 disjoint windows", -1)),
        ("and changes by # [#, #] on fixed targets", claim("S03 fixed targets")),
        ("the difference, # [#, #], which would be", claim("S03")),
        ('"gains" # [#, #] under disjoint windows', claim("S03 RoPE that sees a window, disjoint", -1)),
        ("# [#, #] at 8x for the fixed norm of keys", claim("S11")),
        ("Descriptive: # [#, #] within the window, and cosine", claim("S11 cost at 1x")),
        ("cosine attention # [#, #] at 8x", claim("S11 cosine attention (l2)")),
        ("with QK-norm # [#, #] at 16x", claim("S07 with QK-norm at 16x")),
        ("these at 8x, # nats", [at("claims", 'rope trained with log_n {"clamp":false} qk_norm=rms|rerope', 8, "nll")]),
        ("(H27), undecided: # [#, #] at 2x", claim("H27")),
        ("it is # [#, #] worse (descriptive)", claim("H27 at 1x")),
        ("loses # [#, #] against half of it", claim("H18")),
        ("better than half by # [#, #] at 8x", claim("H18 w = 3L/4", -1)),
    ]
