"""Two runs held against each other: is convt slower in the second, beyond what chance explains?

Chance is estimated from the rounds: a figure is its smallest round, and the gap from there to the median round says how
far chance moves a round. A change counts where it passes the gaps of both runs together. It must pass 10% in any case:
where a process's arrays happen to lie in memory moves all of its rounds together, by so much on a layer in ten.
The machine itself may have changed pace between the runs. Where both have timed the same peers, of the same versions,
their median change is taken for the machine's and divided out.
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median

from . import COMMAND
from .record import FORMAT
from .shared import words

LEAST = 10.0  # percent
KEY = ("dtype", "precision", "layout", "mode", "bias", "threads", "isa", "peer")


def _read(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"not a result of format {FORMAT} of `{COMMAND} --json`")
    except (OSError, ValueError) as exc:
        raise argparse.ArgumentTypeError(f"{path}: {exc}") from exc
    for each in content["results"]:
        each.setdefault("precision", "highest")  # of a file that was written before there were others
    return content


def _by_key(content: dict) -> dict[tuple, dict]:
    return {(json.dumps(each["layer"]), *(each[word] for word in KEY)): each for each in content["results"]}


def _name(result: dict) -> str:
    cap = f", at most {result['isa']}" if result["isa"] else ""
    dtype = result["dtype"] if result["precision"] == "highest" else f"{result['dtype']} of {result['precision']} precision"
    threads = words.count(result["threads"], "thread")
    return f"{result['layer']['name']} ({dtype}, {result['layout']}, {result['mode']}, {threads}{cap})"


def drift(before: dict, after: dict, pairs: list[tuple[dict, dict]]) -> float:
    """How many times as long the machine takes in the second run, by the peers that both have."""
    same = {peer for peer, version in before["versions"].items() if after["versions"].get(peer) == version} - {"convt"}
    changes = [
        new["seconds"] / old["seconds"] for old, new in pairs if old["peer"] in same and old["seconds"] and new["seconds"]
    ]
    return median(changes) if changes else 1.0


def regressions(before: dict, after: dict, least: float) -> tuple[list[str], list[str]]:
    """The lines about layers that got worse, and those about everything else worth saying."""
    old_results, new_results = _by_key(before), _by_key(after)
    pairs = [(old, new_results[key]) for key, old in old_results.items() if key in new_results]
    pace = drift(before, after, pairs)
    worse, other = [], [f"the peers took {pace:.3f} times as long: taken for the machine's pace, and divided out"] * (pace != 1)
    for field in ("cpu", "cores"):
        if before["machine"][field] != after["machine"][field]:
            other.append(f"the machines differ: {before['machine'][field]}, then {after['machine'][field]}")
    ours = [(old, new) for old, new in pairs if old["peer"] == "convt"]
    for old, new in ours:
        if old["status"] == "ok" != new["status"]:
            worse.append(f"{_name(new)}: was timed, now {new['status']}: {new['how']}")
        if not old["seconds"] or not new["seconds"]:
            continue
        change, allowed = new["seconds"] / old["seconds"] / pace - 1, max(least, old["noise"] + new["noise"])
        times = f"{old['seconds'] * 1e3:.3f} ms, then {new['seconds'] * 1e3:.3f} ms"
        line = f"{_name(new)}: {times}, {change:+.1%} (noise {allowed:.1%})"
        if change > allowed:
            worse.append(line)
        elif change < -allowed:
            other.append(f"faster: {line}")
    missing = sum(key not in new_results and old["peer"] == "convt" for key, old in old_results.items())
    if missing:
        other.append(
            f"{missing} of the first run's problems are not in the second" + (", which is partial" * (not after["complete"]))
        )
    other.append(f"compared {words.count(len(ours), 'problem')}")
    return worse, other


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"{COMMAND} compare",
        description="Is convt slower in the second run than in the first? Exits with 1 if so, beyond the noise of the rounds.",
    )
    parser.add_argument(
        "--least", type=float, default=LEAST, metavar="PERCENT", help=f"the smallest change that counts (default: {LEAST:.0f})"
    )
    parser.add_argument("before", type=_read, metavar="A.json")
    parser.add_argument("after", type=_read, metavar="B.json")
    options = parser.parse_args(arguments)
    worse, other = regressions(options.before, options.after, options.least / 100)
    for line in other:
        print(line)
    for line in worse:
        print(f"slower: {line}")
    if not any(result["peer"] == "convt" for result in options.after["results"]):
        print("nothing of convt's to compare", file=sys.stderr)
        return 2
    return int(bool(worse))
