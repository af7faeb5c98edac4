"""`plan --watch`: a plan after each change of the descriptor, also after one that was wrong."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_scene import environment

from scaffold.descriptor.load import shipped_path

pytestmark = pytest.mark.trees


def test_a_change_is_planned_at_once(small_tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    right = shipped_path("internvl").read_text()
    file.write_text(right)
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from scaffold.cli.app import main; main(sys.argv[1:])"
    )
    arguments = ["plan", str(file), "--vllm", str(small_tree), "--watch"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(PYTHONUNBUFFERED="1"),
    ) as process:
        assert process.stdout is not None
        stream = process.stdout

        def planned() -> str:
            """Everything up to the note that the next change is waited for."""
            shown, end = b"", time.monotonic() + 120
            while b"Ctrl-C ends.\n" not in shown and time.monotonic() < end:
                if select.select([stream], [], [], 0.2)[0]:
                    shown += stream.read1(65536)
            return shown.decode()

        try:
            assert "implement SupportsEncoderCudaGraph in InternVLChatModel" in planned()
            file.write_text(right.replace("layout: tiles", "layout: tile"))
            assert "did you mean `tiles`" in planned()
            other = tmp_path / "saved"  # as editors save: a new file takes the place
            other.write_text(right.replace("key: internvl", "key: another"))
            other.replace(file)
            assert "mine on " in planned()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130


def test_what_cannot_be_watched(run, small_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(shipped_path("internvl").read_bytes())
    done = run("plan", tmp_path / "mine.yaml", "--vllm", small_tree, "--watch", "--format", "json")
    assert (done.code, "one document" in done.err) == (2, True)
    done = run("plan", "internvl", "--vllm", small_tree, "--watch")
    assert (done.code, "waits for changes of a file" in done.err) == (2, True)
