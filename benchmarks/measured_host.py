"""docs/measured/host.md: the results of `host_cpu.py`."""

from __future__ import annotations

from measured import NAMES, Page, load, page, table

NAME = "host_cpu"
EXPLICIT, UPSTREAM, REENTRANT = "explicit", "upstream", "re-entrant"


def pages() -> list[Page]:
    rows = load(NAME)["rows"]
    lines, beside, older = [], [], []
    for row in rows:
        times = row["ms"]
        upstream = times.get(UPSTREAM)
        older.append(times[EXPLICIT] / times[REENTRANT])
        if upstream is not None:
            beside.append(times[EXPLICIT] / upstream)
        cells = [f"{one:.2f}" for one in (times[EXPLICIT], times[REENTRANT], older[-1])]
        others = [f"{one:.2f}" for one in (upstream, beside[-1])] if upstream else ["", ""]
        lines.append([NAMES[row["model"]], row["call"], *cells, *others])
    longest = max(row["ms"][EXPLICIT] for row in rows)
    made = page(
        "host",
        "How much work does the host have for a call of an explicit port?",
        "benchmarks/host_cpu.py",
        [NAME],
        "# Host time of a port",
        """The forms of one port, in vLLM's own manager. The models are tiny, a replay does nothing, and everything is
        in host memory. So the times are what the host does around a replay. A process of its own runs each form, and
        the processes take turns.""",
        f"""An explicit port took {min(older):.2f} to {max(older):.2f} of the time of the re-entrant form of the same
        port, and at most {longest:.2f} ms a call.""",
        f"""Beside upstream's port of the same model it took {min(beside):.2f} to {max(beside):.2f} times as long. Its
        results go through the model's own code, which puts newlines between rows with einops. Upstream has a second,
        shorter copy of that code in its port. The port leaves the model's code as it is.""",
        table(
            ["model", "call", "explicit, ms", "re-entrant", "explicit / re-entrant", "upstream", "explicit / upstream"],
            lines,
        ),
    )
    return [made]
