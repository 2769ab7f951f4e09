"""What was measured, as Markdown and as pictures. In each column the best is marked, whoever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tabulate import tabulate

OURS = "oneread"
QUESTIONS = {"locations": "where is each block", "placements": "how long a prefix has each worker"}
COLUMNS = {
    "lookups": None,
    "p50": "time",
    "p99.9": "time",
    "x quiet": "factor",
    "longest": "time",
    "failed": "count",
    "wrong": "count",
    "lost": "count",
    "right again": "time",
}


def time_of(seconds: float) -> str:
    for unit, by in (("s", 1.0), ("ms", 1e3)):
        if seconds * by >= 1:
            return f"{seconds * by:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs" if seconds else "0"


def shown(value: Any, kind: str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return {"time": time_of, "factor": lambda x: f"{x:.1f}", "bytes": bytes_of}.get(str(kind), "{:,}".format)(value)


def bytes_of(count: float) -> str:
    if abs(count) < 10_000:
        return f"{count:.0f} B"
    return f"{count / 1e6:,.1f} MB"


def best(values: list[Any]) -> Any:
    numbers = [value for value in values if isinstance(value, (int, float))]
    # Where all are the same, none is best.
    return min(numbers) if len(set(numbers)) > 1 else None


def marked(rows: list[list[Any]], kinds: list[str | None]) -> list[list[str]]:
    """The cells as texts; of each column that has a kind, the lowest is bold."""
    lowest = [best([row[n] for row in rows]) if kind else None for n, kind in enumerate(kinds)]
    return [
        [
            f"**{shown(cell, kind)}**" if low is not None and cell == low else shown(cell, kind)
            for cell, kind, low in zip(row, kinds, lowest, strict=True)
        ]
        for row in rows
    ]


def markdown(headers: list[str], rows: list[list[str]]) -> str:
    return str(tabulate(rows, headers, tablefmt="github", disable_numparse=True))


def wins(what: str, by_system: dict[str, float]) -> str | None:
    """A sentence where another system than ours is best."""
    ours = {name: value for name, value in by_system.items() if name.startswith(OURS)}
    if not ours or not by_system:
        return None
    name = min(by_system, key=lambda each: by_system[each])
    if name in ours or by_system[name] == min(ours.values()):
        return None
    mine = min(ours, key=lambda each: ours[each])
    return f"{what}: {name} has {time_of(by_system[name])}, {mine} {time_of(ours[mine])}"


def quiet_table(result: dict[str, Any], question: str, won: list[str]) -> str:
    # Kind and size; each system has p50 and p99.9.
    found = {what: row for what, row in result["rounds"].items() if what.startswith(question)}
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    rows = []
    for what, row in found.items():
        for figure in ("p50", "p99.9"):
            values = {name: row[name][figure] for name in row}
            least = best(list(values.values()))
            cells = [time_of(values[n]) if n in values else "-" for n in names]
            cells = [f"**{c}**" if values.get(n) == least is not None else c for n, c in zip(names, cells)]
            kind, size = what.removeprefix(f"{question}, ").split(": ")
            rows.append([f"{kind}, {int(size):,} a call, {figure}", *cells])
            if sentence := wins(f"{QUESTIONS[question]}, {kind}, {int(size):,} blocks a call, {figure}", values):
                won.append(sentence)
    bad = {name: sum(row[name]["failed or wrong"] for row in found.values() if name in row) for name in names}
    rows.append(["failed or wrong lookups, of all", *(f"{bad[name]:,}" for name in names)])
    return markdown(["", *names], rows)


def memory_table(result: dict[str, Any], question: str) -> str:
    rows: list[list[Any]] = []
    for key, figures in result["systems"].items():
        if key.startswith(question):
            rate = figures["blocks"] / max(figures["fill seconds"], 1e-9)
            of = [figures["blocks"], round(rate), figures["bytes a block"], figures["bytes a reader"]]
            rows.append([key.removeprefix(f"{question}: "), *of])
    headers = ["", "blocks", "filled, blocks a second", "a block", "a process that asks"]
    return markdown(headers, marked(rows, [None, None, None, "bytes", "bytes"]))


def scene_table(result: dict[str, Any], scene: str, question: str, won: list[str]) -> str:
    quiet = result["scenes"].get("quiet", {})
    found = {key: row for key, row in result["scenes"][scene].items() if key.startswith(question)}
    rows: list[list[Any]] = []
    notes = []
    p999 = {}
    for key, row in found.items():
        name = key.removeprefix(f"{question}: ")
        before = quiet.get(key, {}).get("p99.9")
        after = row.get("p99.9")
        cells = {**row, "x quiet": after / before if after and before and scene != "quiet" else None}
        if "right again" in row and row["right again"] is None:
            cells["right again"] = "not yet"
        hit = f"{name} ({row['hit']})" if "hit" in row else name
        rows.append([hit, *(cells.get(column) for column in COLUMNS)])
        if after:
            p999[name] = after
        if "rate" in row:
            rate = row["rate"]
            rate = rate if isinstance(rate, str) else f"{rate:,.0f} blocks a second went"
            notes.append(f"{name}: {rate}")
        if "why" in row:
            notes.append(f"{name}: {row['why']}")
        errors = row.get("errors", {})
        notes += [f"{name}, {count} times: {error}" for error, count in sorted(errors.items())[:3]]
    if sentence := wins(f"{QUESTIONS[question]}, {scene}, p99.9", p999):
        won.append(sentence)
    table = markdown(["", *COLUMNS], marked(rows, [None, *COLUMNS.values()]))
    return table + "".join(f"\n* {note}" for note in ["", *notes] if note).replace("\n*", "\n\n*", 1)


def report(result: dict[str, Any]) -> str:
    won: list[str] = []
    parts = []
    for question, what in QUESTIONS.items():
        if not any(key.startswith(question) for key in result["systems"]):
            continue
        parts += [f"## {what.capitalize()}?", "Memory:", memory_table(result, question)]
        parts += ["One lookup after the other:", quiet_table(result, question, won)]
        for scene, rows in result["scenes"].items():
            if any(key.startswith(question) for key in rows):
                batch = result["sizes"]["batch"]
                head = f"{scene.capitalize()}; {batch} blocks a lookup, one due every"
                parts += [f"{head} {result['sizes']['pace'] * 1e3:g} ms:", scene_table(result, scene, question, won)]
    parts.append("## Where another one is better")
    parts.append("\n".join(f"* {sentence}" for sentence in won) or "Nowhere, by p50 and p99.9.")
    load = " ".join(f"{each:.2f}" for each in result["load"])
    parts.append(f"{result['machine']}; load {load} at the start; {', '.join(result['versions'])}.")
    parts += [f"Left out: {name} ({why})." for name, why in result["missing"].items()]
    return "\n\n".join(parts) + "\n"


def draw(result: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(key.split(": ")[1] for key in result["systems"]))
    colors = {name: f"C{n}" for n, name in enumerate(names)}

    def style(name: str) -> dict[str, Any]:
        ours = name.startswith(OURS)
        return {"color": colors[name], "linewidth": 2.2 if ours else 1.2, "label": name}

    kinds = list(dict.fromkeys(what.split(": ")[0] for what in result["rounds"]))
    figure, grid = pyplot.subplots(1, len(kinds), figsize=(4.2 * len(kinds), 4), squeeze=False, sharey=True)
    for axes, kind in zip(grid[0], kinds):
        lines: dict[str, list[tuple[int, float]]] = {}
        for what, row in result["rounds"].items():
            if what.startswith(f"{kind}: "):
                size = int(what.split(": ")[1])
                for name, figures in row.items():
                    lines.setdefault(name, []).append((size, 1e6 * figures["p50"] / size))
        for name, points in lines.items():
            axes.plot(*zip(*points), marker="o", **style(name))
        axes.set(xscale="log", yscale="log", xlabel="blocks a call", title=kind)
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=8)
    grid[0][0].set_ylabel("µs a block, median")
    figure.savefig(folder / "rounds.png", bbox_inches="tight", dpi=110)
    pyplot.close(figure)

    questions = [each for each in QUESTIONS if any(key.startswith(each) for key in result["systems"])]
    scenes = list(result["scenes"])
    size = (6.5 * len(questions), 2.6 * len(scenes))
    figure, grid = pyplot.subplots(len(scenes), len(questions), figsize=size, squeeze=False, sharey=True)
    for line, scene in zip(grid, scenes):
        for axes, question in zip(line, questions):
            for key, row in result["scenes"][scene].items():
                if not key.startswith(question) or not row.get("line"):
                    continue
                at, longest = zip(*row["line"])
                name = key.split(": ")[1]
                axes.plot(at, [1e3 * each for each in longest], **style(name))
                # Where answers were wrong, or none came.
                bad = row["bad at"]
                axes.plot(bad, [3e4] * len(bad), "x", markersize=3, color=colors[name])
            axes.set(yscale="log", title=f"{question}: {scene}", ylim=(1e-3, 1e5))
            axes.title.set_fontsize(9)
            axes.grid(True, alpha=0.3)
            if axes.lines:
                axes.legend(fontsize=7, loc="lower right")
            else:
                axes.axis("off")
        line[0].set_ylabel("longest, ms")
    for axes in grid[-1]:
        axes.set_xlabel("seconds; crosses: wrong or failed")
    figure.tight_layout()
    figure.savefig(folder / "scenes.png", dpi=110)
    pyplot.close(figure)
