"""Quantities in words: counts, lists, durations and sizes."""

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """Count and noun.

    >>> plural(1, "seed"), plural(3000, "seed")
    ('1 seed', '3,000 seeds')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_of(names: Sequence[str], most: int) -> str:
    """Names with commas between them; of more than `most` the first, and the number of the rest.

    >>> first_of(["rope", "alibi", "fox"], 3), first_of(["rope", "alibi", "fox"], 1)
    ('rope, alibi, fox', 'rope and 2 more')
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def duration_words(seconds: float) -> str:
    """A length of time in the unit that suits it.

    >>> [duration_words(seconds) for seconds in (80, 600, 7200, 1e6, 1e9)]
    ['80 s', '10 min', '2.0 h', '12 days', '32 years']
    """
    hours = seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    if hours < 1.5:
        return f"{seconds / 60:.0f} min"
    if hours < 48:
        return f"{hours:.1f} h"
    if hours < 24 * 730:
        return f"{hours / 24:.0f} days"
    return f"{hours / 24 / 365:.0f} years"


def clock(seconds: float) -> str:
    """A duration in two units, for a progress line.

    >>> clock(3900), clock(180), clock(7)
    ('1h05m', '3m00s', '7s')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    if minutes:
        return f"{minutes}m{seconds:02d}s"
    return f"{seconds}s"


def age(seconds: float) -> str:
    """A duration in its largest unit, for a table.

    >>> age(40), age(7300)
    ('40s', '2h')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def size_words(n: int) -> str:
    """Bytes in units of 1024.

    >>> size_words(1536), size_words(12)
    ('1.5 KiB', '12 bytes')
    """
    from rich.filesize import pick_unit_and_suffix

    unit, name = pick_unit_and_suffix(n, ["bytes", "KiB", "MiB", "GiB", "TiB"], 1024)
    return f"{n} {name}" if unit == 1 else f"{n / unit:.1f} {name}"
