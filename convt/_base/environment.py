"""The environment variables of convt: one table, and the function that reads them.

This module imports no other module of convt, because setup.py and the benchmark load it by its path.
"""

import os


def _count(text, _):
    count = int(text) if text.strip().isdecimal() else 0  # int() also accepts "+1" and "1_000"
    if count < 1:
        raise ValueError
    return count


def _number(text, _):
    number = float(text)
    if not number >= 0:
        raise ValueError
    return number


def _switch(text, _):
    return bool(("0", "1").index(text))


def _word(text, words):
    return words[words.index(text)]


def _words(text, words):
    return [_word(each, words) for each in text.split(",")]


def _path(text, _):
    return text


# How a value is read, and what is wanted. The readers raise ValueError for what means nothing.
_COUNT = _count, "an integer >= 1"
_NUMBER = _number, "a number >= 0"
_SWITCH = _switch, "0 or 1"
_WORD = _word, "one of {}"
_WORDS = _words, "some of {}, with commas between"
_PATH = _path, ""

# The variables of the package are described in docs/api/convt.md, the others in CONTRIBUTING.md and docs/benchmark.md.
PACKAGE = {
    "CONVT_NUM_THREADS": _COUNT,
    "CONVT_PACKED_LIMIT": _NUMBER,
    "CONVT_ISA": _WORD,
    "CONVT_BACKEND": _WORD,
    "CONVT_ONEDNN_LIB": _PATH,
    "CONVT_PRECISION": _WORD,
    "CONVT_COSTS": _PATH,
    "CONVT_TUNING": _PATH,
    "CONVT_VERBOSE": _SWITCH,
}
BUILD = {
    "CONVT_BUILD_ISAS": _WORDS,
    "CONVT_DEBUG_BUILD": _SWITCH,
    "CONVT_EMULATED_BUILD": _SWITCH,
    "CONVT_COVERAGE_BUILD": _SWITCH,
}
BENCHMARK = {"CONVT_BENCH_ONEDNN_SYCL": _PATH}


def read(name, words=()):
    """Return the value of a variable: a number, a bool, a text or a list of texts. None means that it is unset or empty.

    ``words`` are the values that a variable may have if these are words. Raise ValueError for values without a meaning.
    """
    convert, wanted = (PACKAGE | BUILD | BENCHMARK)[name]
    text = os.environ.get(name)
    try:
        return convert(text, list(words)) if text else None
    except ValueError:
        raise ValueError(f"{name}: got {text!r}, wanted {wanted.format(', '.join(words))}") from None
