"""Compares the facts of a situation without and with the plugin."""

from __future__ import annotations

from typing import Any

from situations import SITUATIONS

#: Largest difference of an output, as a part of the largest value: graphs on the CPU round as eager does.
TOLERANCE = 1e-4


def harm(name: str, without: dict[str, Any], with_plugin: dict[str, Any]) -> str:
    """Why a server is worse with the plugin in this situation; empty if it is not.

    An adapter and our manager may serve where the situation says so; else nothing may differ. With the plugin a server
    may start where vLLM alone refuses to; any other situation that fails without the plugin shows nothing.
    """
    what = SITUATIONS[name]
    if "error" in without:
        is_refused = what.refusal and what.refusal in without["error"]
        return "" if is_refused else f"it does not start without the plugin: {without['error']}"
    if "error" in with_plugin:
        return f"it does not start: {with_plugin['error']}"
    for fact, value in without.items():
        now = with_plugin.get(fact)
        if fact == "outputs":
            if not _are_close(value, now):
                return "outputs differ"
        elif now != value and fact not in what.free:
            return f"{fact} is {now}, not {value}"
    if what.must_serve and with_plugin.get("manager") != what.must_serve:
        return f"nothing serves: {with_plugin.get('warnings')}"
    return ""


def _are_close(without: list[list[float]], now: list[list[float]]) -> bool:
    if [len(item) for item in without] != [len(item) for item in now]:
        return False
    largest = max((abs(value) for item in without for value in item), default=0.0)
    pairs = [pair for a, b in zip(without, now, strict=True) for pair in zip(a, b, strict=True)]
    return all(abs(a - b) <= TOLERANCE * largest for a, b in pairs)
